"""The second half of what a driver must pass: whole runs with it, interrupted anywhere, end as the straight run does.

`tachograph.drivers.contract` has the first half, which needs no engine. One class may inherit from both:

    class TestMyDriver(DriverContract, RunContract):
        def make(self):
            return MyDriver(model()), loader(), None
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from tachograph.drivers.contract import Subject
from tachograph.drivers.contract.course import same_weights
from tachograph.drivers.contract.subject import expect

from .journal import Journal, Record
from .trainer import Trainer


class RunContract(Subject):
    """Whole runs of two epochs, with accumulation windows and validations.

    Attributes:
        settings: further arguments of the trainers.
    """

    settings: dict[str, Any] = {}

    def metrics(self) -> dict[str, Any] | None:
        """Build metrics of what the model's evaluation returns; None leaves validations out."""
        return {"loss": "loss"}

    def test_a_run_is_the_same_each_time(self) -> None:
        straight, again = self._straight(), self._straight()
        self._expect_equal(again, straight, "run once more")

    def test_a_run_stopped_after_any_kind_of_transition_goes_on_to_the_same_end(self) -> None:
        straight = self._straight()
        for name, seq in self._kinds(straight).items():
            run_dir = self._run_dir(straight)
            first = self._trainer(run_dir)
            _after_each(first, [seq], lambda trainer: trainer.stop("here", on_all_ranks=True))
            first.run()
            second = self._trainer(run_dir)
            second.run(resume_from="auto", on_divergence="raise")
            self._expect_equal(second, straight, f"stopped after {name}, and gone on with,")

    def test_a_run_killed_after_any_kind_of_transition_goes_on_to_the_same_end(self) -> None:
        straight = self._straight()
        if straight.ranks.world_size > 1:
            return  # a folder can't be copied while other processes write
        for name, run_dir in self._photographs(straight).items():
            again = self._trainer(run_dir)
            again.run(resume_from="auto", on_divergence="raise")
            self._expect_equal(again, straight, f"killed after {name}, and gone on with,")

    # -- how -----------------------------------------------------------------------------------------------

    def _trainer(self, run_dir: Path) -> Trainer:
        metrics, loader = self.metrics(), self.evaluation_loader()
        driver, train, optimizers = self.make()
        self.stack.callback(driver.close)
        self._ranks = driver.ranks
        given = {"metrics": metrics, "validate_dataloaders": loader} if metrics is not None else {}
        settings = {"accumulation_steps": 2, "seed": self.seed, "validate_every": (2, -1), **given, **self.settings}
        return Trainer(
            None,
            driver,
            train,
            optimizers,
            n_epochs=2,
            run_dir=run_dir,
            snapshot_every=None,
            progress_bar=None,
            **settings,
        )

    def _straight(self) -> Trainer:
        driver, _, _ = self.make()
        self.stack.callback(driver.close)
        trainer = self._trainer(self.folder(driver.ranks) / "run")
        trainer.run()
        return trainer

    def _run_dir(self, beside: Trainer) -> Path:
        return self.folder(beside.ranks) / "run"

    def _kinds(self, straight: Trainer) -> dict[str, int]:
        """The last transition of each kind, within an open window and without one: its name -> seq."""
        found = {_name(record): record.seq for record in _records(straight)[:-1]}
        expect(len(found) >= 6, f"a run must have more kinds of transitions than {sorted(found)}")
        return found

    def _photographs(self, straight: Trainer) -> dict[str, Path]:
        """Copies of a run's directory after each kind of transition, soon after a snapshot was taken there."""
        kinds = {seq: name for name, seq in self._kinds(straight).items()}
        folder, run_dir = self.folder(straight.ranks), self._run_dir(straight)
        trainer = self._trainer(run_dir)
        _after_each(trainer, kinds, lambda trainer: trainer.request_snapshot(on_all_ranks=True))
        found: dict[str, Path] = {}

        def copy(trainer: Trainer, path: Path) -> None:
            seq = int(path.name)
            if seq in kinds:
                found[kinds[seq]] = Path(shutil.copytree(run_dir, folder / path.name))

        trainer.on("on_after_snapshot", copy)
        trainer.run()
        self._expect_equal(trainer, straight, "with snapshots")
        return found

    @staticmethod
    def _expect_equal(trainer: Trainer, straight: Trainer, how: str) -> None:
        for mine, its in zip(_records(trainer), _records(straight), strict=False):
            expect(
                mine.chain == its.chain,
                f"{how} a run differs first at {mine.source} --{mine.event}--> {mine.dest}, "
                f"transition {mine.seq}: {mine.data}, not {its.data}",
            )
        ends = [(t.trainer_state.seq, t.trainer_state.state) for t in (trainer, straight)]
        expect(ends[0] == ends[1], f"{how} a run ends at {ends[0]}, not at {ends[1]}")
        drivers = [t.driver for t in (trainer, straight)]
        expect(same_weights(*drivers), f"{how} a run ends with other weights")  # type: ignore[arg-type]


def _records(trainer: Trainer) -> list[Record]:
    journal = trainer.journal
    assert isinstance(journal, Journal)
    return list(journal)


def _name(record: Record) -> str:
    window = ", with an open window" if record.state.accumulated else ""
    return f"{record.source} --{record.event}--> {record.dest}{window}"


def _after_each(trainer: Trainer, seqs: Collection[int], act: Callable[[Trainer], None]) -> None:
    """Do something when everyone has heard of certain transitions."""

    def heard(trainer: Any) -> None:
        if trainer.trainer_state.seq in seqs:
            act(trainer)

    for name in trainer.machine.names:
        if name != trainer.machine.initial:
            trainer.on(name, heard, priority=-1)


__all__ = ["RunContract"]
