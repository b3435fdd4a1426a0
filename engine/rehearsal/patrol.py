"""Verifying more than once: a share of a run here and there, or one part several times to tell what fault it is."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from tachograph.states.errors import CallerError

from .rehearsing import Rehearsal
from .verifying import Verification, verify

if TYPE_CHECKING:
    from ..trainer import Trainer

_OF_THE_MACHINE = ("environment.cpu", "environment.device", "host")
"""What tells one machine from another."""


@attrs.frozen
class Verdict:
    """What several executions of one part of a run say together.

    Attributes:
        kind: "matches"; "nondeterministic": they differ from each other; "changed": all part from the record in one
            way, and code, a library or a setting is another one; "machine": likewise, and only the machine is another
            one; "once": likewise, and nothing that is known is another one.
        text: the same in a sentence.
        verifications: each.
    """

    kind: str
    text: str
    verifications: Sequence[Verification]


def repeated(
    build: Callable[[], Trainer], run_dir: str | Path, start: int | None, stop: int | None, times: int
) -> Verdict:
    """Execute a part of a run several times, each time by a trainer that is built anew, and say what the results mean.

    Args:
        build: builds a trainer.
        run_dir: the run.
        start: as in `Trainer.verify`.
        stop: likewise.
        times: how often, > 1.

    Raises:
        CallerError: `times` isn't > 1; or as `Trainer.verify`.
    """
    if times < 2:
        raise CallerError(f"to tell whether results differ from each other takes 2 repetitions, not {times}")
    held: list[Verification] = []
    for _ in range(times):
        held.append(verify(build(), run_dir, start, stop))
    return judged(held)


def judged(held: Sequence[Verification]) -> Verdict:
    """Say what several executions of the same part mean."""
    found = {_key(verification) for verification in held}
    parted = [verification for verification in held if verification.divergence is not None]
    times = len(held)
    if not parted:
        return Verdict("matches", f"all {times} repetitions match what was recorded", held)
    if len(found) > 1:
        told = f"the {times} repetitions differ from each other: {len(parted)} of them part from the record"
        way = "An operation isn't deterministic (deterministic=True makes torch name it), or something draws from a"
        what = "source that no seed reaches: secrets, the time, a file that grows"
        return Verdict("nondeterministic", f"{told}. {way} {what}", held)
    alike = f"all {times} repetitions part from the record at {parted[0].divergence.seq:,}, and in the same way"  # type: ignore[union-attr]
    changed = {k: v for k, v in parted[0].differing.items() if k not in _OF_THE_MACHINE}
    machine = {k: v for k, v in parted[0].differing.items() if k in _OF_THE_MACHINE}
    since = [*(f"{name} changed" for name in parted[0].changed_code), *_listed(changed)]
    if since:
        return Verdict("changed", f"{alike}. Since it was recorded {', '.join(since)}", held)
    if machine:
        return Verdict("machine", f"{alike}. Only the machine is another one: {', '.join(_listed(machine))}", held)
    left = "a fault of the machine at that time, data whose content has changed, or code that isn't the script's"
    return Verdict("once", f"{alike}. Nothing that is known has changed since it was recorded: it is {left}", held)


def _key(verification: Verification) -> Any:
    found = verification.divergence
    return None if found is None else (found.seq, found.field, repr(found.found))


def _listed(pairs: dict[str, tuple[Any, Any]]) -> list[str]:
    return [f"{name} changed from {old} to {new}" for name, (old, new) in pairs.items()]


def patrol(trainer: Trainer, run_dir: str | Path, share: float, chance: random.Random) -> Iterator[Verification]:
    """Execute a share of a run again, here and there, from snapshots; end after the first divergence.

    Each part lies between two snapshots, whole, and which ones is drawn: at least the share, one part at the least.

    Args:
        trainer: built as the run's was.
        run_dir: the run.
        share: of its transitions, > 0.0 and <= 1.0.
        chance: draws.

    Raises:
        CallerError: the share is out of range; or as `Trainer.verify`.
    """
    if not 0.0 < share <= 1.0:
        raise CallerError(f"the share must be > 0 % and <= 100 %, not {share:.3%}")
    for first, stop in _chosen(_parts(Rehearsal(trainer, run_dir)), share, chance):
        done = verify(trainer, run_dir, first, stop)
        yield done
        if done.divergence is not None:
            return


def _chosen(parts: list[tuple[int, int]], share: float, chance: random.Random) -> list[tuple[int, int]]:
    """Draw parts that are at least a share of all; in the order of the run, since its beginning can only be first."""
    left = share * sum(last - first + 1 for first, last in parts)
    chance.shuffle(parts)
    chosen = []
    for first, last in parts:
        chosen.append((first, last))
        left -= last - first + 1
        if left <= 0:
            break
    return sorted(chosen)


def _parts(rehearsal: Rehearsal) -> list[tuple[int, int]]:
    """Return the parts of a run that lie between two points where it can be entered: (first, last) of each."""
    begins = rehearsal.entries()
    last = rehearsal.last - rehearsal.ends_from_outside(rehearsal.last)
    ends = [*begins[1:], last]
    return [(begin + 1, end) for begin, end in zip(begins, ends, strict=True) if end > begin]


__all__ = ["Verdict", "judged", "patrol", "repeated"]
