"""A part of a run, executed again in memory: what verify, rewind and a fork stand on.

`rehearsing` stands a trainer at a point of a run and goes on from there, `reexecution` holds each transition against
its record, `verifying` and `patrol` say what came of it, and `rehearsals` is the part of the trainer that users call.
"""

from .patrol import Verdict, judged, patrol, repeated
from .rehearsals import Rehearsals
from .rehearsing import Rehearsal
from .verifying import Verification, verify

__all__ = ["Rehearsal", "Rehearsals", "Verdict", "Verification", "judged", "patrol", "repeated", "verify"]
