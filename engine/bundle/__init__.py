"""A part of a run in one file, for a report of a bug: packed with its secrets masked, unpacked as a run directory.

It knows journals and snapshots, and the rules of what may leave a machine. It must not import torch, but where the
trainer's own loader or the sample ids are asked for.
"""

from .contents import AFTER, BEFORE, Contents, gather
from .packing import Packed, listed, pack, write
from .unpacking import BundleFault, Unpacked, unpack

__all__ = [
    "AFTER",
    "BEFORE",
    "BundleFault",
    "Contents",
    "Packed",
    "Unpacked",
    "gather",
    "listed",
    "pack",
    "unpack",
    "write",
]
