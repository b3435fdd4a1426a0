"""Verify: a part of a run is executed again, up to the first transition that isn't what was recorded."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import attrs

from tachograph.states import Failed
from tachograph.states.errors import CallerError

from ..comparison.causes import Known, explained
from ..comparison.divergence import Divergence
from .reexecution import Parted
from .rehearsing import Rehearsal

_A_STEP = 2
"""Transitions from one step to the next, with nothing but a fetch between."""

if TYPE_CHECKING:
    from ..journal import Record
    from ..trainer import Trainer


@attrs.frozen
class Verification:
    """What became of a part of a run when it was executed again.

    Attributes:
        divergence: the first transition that differs; None where none does.
        first: the first transition that was executed again.
        last: the last one that was asked for.
        matched: how many matched.
        stopped: why it ended before `last`, though nothing differs; "" where it didn't.
        cost: where it began, in words.
        differing: settings and parts of the environment that differ: name -> (the run's, the trainer's).
        changed_code: the user's own files that changed.
    """

    divergence: Divergence | None
    first: int
    last: int
    matched: int
    stopped: str
    cost: str
    differing: dict[str, tuple[Any, Any]]
    changed_code: Sequence[str]

    @property
    def count(self) -> str:
        """How many transitions match, from which on."""
        n = self.matched
        return f"{n:,} transition{'' if n == 1 else 's'} match{'es' if n == 1 else ''}, from {self.first:,} on"

    def __str__(self) -> str:
        if self.divergence is not None:
            return f"{self.matched:,} transitions match, from {self.first:,} on; then they part at {self.divergence}"
        done = f"{self.matched:,} of {self.last - self.first + 1:,} transitions match"
        return f"{done}, {self.first:,} to {self.first + self.matched - 1:,}" + (
            f"; {self.stopped}" if self.stopped else ""
        )


def verify(trainer: Trainer, run_dir: str | Path, start: int | None, stop: int | None) -> Verification:
    """Execute a part of a run again; see `Trainer.verify`."""
    rehearsal = Rehearsal(trainer, run_dir)
    first, last = _range(rehearsal, start, stop)
    if rehearsal.ends_from_outside(last):
        if first == last:
            raise CallerError(f"transition {last} was asked for from outside: there is nothing to execute again")
        last -= 1
    begin = rehearsal.start(first - 1)
    begins = 0 if begin is None else begin.seq
    cost = rehearsal.cost(begin, last) if last > begins else ""
    trainer.say(f"executes {run_dir} again, {cost}")
    found, stopped, seed = None, "", (trainer.seed, trainer._seed_given)
    assert trainer.driver is not None
    try:
        with trainer.driver.forked(), rehearsal.entered(begin, _part):
            try:
                stopped = rehearsal.go(last)
            except Parted as parted:
                found = parted.divergence
            except Exception as error:
                found = _failed(rehearsal, error)
                if found is None and rehearsal.reexecution is not None:
                    rehearsal.reexecution.matched += 1  # it failed as it had
    finally:
        trainer.driver.close()
        trainer.batch = trainer.batch_indices = None
        trainer.seed, trainer._seed_given = seed
    assert rehearsal.reexecution is not None
    if found is not None and not found.cause:
        found = _explained(found, rehearsal)
    differing = rehearsal.differing, rehearsal.changed_code
    return Verification(found, begins + 1, last, rehearsal.reexecution.matched, stopped, cost, *differing)


def _explained(found: Divergence, rehearsal: Rehearsal) -> Divergence:
    """Say what a divergence means, as far as it is known."""
    reexecution, trainer, run = rehearsal.reexecution, rehearsal.trainer, str(rehearsal.run_dir)
    assert reexecution is not None
    settings, environment = rehearsal.differences()
    before = reexecution.weights_at and found.seq - reexecution.weights_at <= _A_STEP
    known = Known(
        names=("the run", "this trainer"),
        runs=(run, run),
        settings=settings,
        code=rehearsal.changed_code,
        environment=environment,
        differ=reexecution.apart.differ,
        agree=reexecution.apart.agree,
        before=("parameters",) if before else (),
        window=trainer.accumulation_steps,
        events=(rehearsal.record(found.seq).event, reexecution.apart.event),
        deterministic=bool(trainer._environment().get("deterministic_algorithms")),
    )
    told = explained(found, known)
    only = f"--start {found.seq} --stop {found.seq} --repeat 3"
    return attrs.evolve(told, hint=f"tachograph verify {shlex.quote(run)} --trainer module:function {only}")


def _range(rehearsal: Rehearsal, start: int | None, stop: int | None) -> tuple[int, int]:
    """Return the first and the last transition that are asked for."""
    for seq, name in ((start, "start"), (stop, "stop")):
        if seq is not None:
            rehearsal.check(seq, name)
    last = rehearsal.last if stop is None else stop
    if start is not None and start > last:
        raise CallerError(f"start={start} comes after stop={last}: there is nothing between them")
    return (rehearsal.earliest() if start is None else start), last


def _part(divergence: Divergence) -> NoReturn:
    raise Parted(divergence)


def _failed(rehearsal: Rehearsal, error: Exception) -> Divergence | None:
    """Return what an error means: nothing, where the run had failed so at that transition."""
    trainer = rehearsal.trainer
    seq, source = trainer.trainer_state.seq + 1, trainer.trainer_state.state
    record: Record = rehearsal.record(seq)
    kind = type(error).__name__
    if record.event == Failed.__name__ and record.data.get("kind") == kind:
        return None
    failed = record.event == Failed.__name__
    field, before = ("data.kind", record.data.get("kind")) if failed else ("event", record.event)
    return Divergence(seq, field, before, f"{kind}: {error}", "what was executed again failed", state=source)


__all__ = ["Verification", "verify"]
