"""Two histories held against each other: where they part, what is known of it, and why, in words.

`parting` finds the transition by the chains, `fingerprinted` by the bits of steps and snapshots, `evidence` gathers
what the run directories tell, `causes` makes sentences of it, and `comparing` puts it together. No torch in it.
"""

from .causes import Known, explained, kind_of
from .comparing import Comparison, compare
from .divergence import Diverged, Divergence

__all__ = ["Comparison", "Diverged", "Divergence", "Known", "compare", "explained", "kind_of"]
