"""`Progress`, and its displays, one file each. One place computes the numbers; a display only renders them.

A new display is a new file, and its line in `choosing`.
"""

from .progress import Progress
from .reference import ProgressCallback, RawTextCallback, RichCallback, TqdmCallback
from .status import Status

__all__ = ["Progress", "ProgressCallback", "RawTextCallback", "RichCallback", "Status", "TqdmCallback"]
