"""Wherever a run is interrupted, and however it trains: what goes on in fresh objects ends with the same bits.

A kill leaves the run directory as it is at that moment, so one run that is photographed after each transition gives all
its kills at once; each photograph is gone on with by objects built anew. `test_exact_resume.py` shows the same with
real processes and real kills. `make test` takes configurations in which every two values meet, and the named places;
`make test-all` takes the whole product, and every transition.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest

from tachograph.engine import Journal, Trainer
from tachograph.engine.journal import Background, Files, Pulse, Record
from tachograph.engine.world import World
from tests.jobs.exact_job import BATCHES, EVERY, Configuration, after_everyone, build, covering, differences, outcome

Proven = Callable[[int], None]

KILLED: dict[str, Any] = {"here": None, "batches": 3, "epoch": "epoch", "never": None}
"""Killed; and the snapshots there are: of the very transition, every so often, none."""
WAYS = (*KILLED, "stopped", "failed")

PLACES: dict[str, Callable[[Record], bool]] = {
    "before training": lambda r: r.dest == "sanity_check",
    "first batch": lambda r: r.event == "Stepped" and r.state.batch_idx_in_epoch == 1 and r.state.cur_epoch_idx == 1,
    "middle batch": lambda r: r.event == "Stepped" and r.state.batch_idx_in_epoch == 4,
    "last batch": lambda r: r.event == "Stepped" and r.state.batch_idx_in_epoch == BATCHES,
    "batch in hand": lambda r: r.event == "Fetched" and r.state.batch_idx_in_epoch == 6,
    "in a window": lambda r: r.state.accumulated == 2,
    "update skipped": lambda r: r.data.get("skipped", False),
    "in a validation": lambda r: r.event == "Stepped" and r.dest == "validate",
    "validated": lambda r: r.event == "Validated" and r.dest == "fetch",
    "last validation of an epoch": lambda r: r.event == "Exhausted" and r.dest == "validate",
    "end of an epoch": lambda r: r.dest == "epoch_end",
    "between two epochs": lambda r: r.event == "EpochEnded" and r.dest == "epoch_begin",
    "window carried": lambda r: r.event == "EpochBegan" and r.state.accumulated > 0,
    "next to the end": lambda r: r.dest == "epoch_end" and r.state.cur_epoch_idx == 1,
}


@attrs.frozen
class Point:
    """Where a run is interrupted.

    Attributes:
        seq: after this transition.
        way: how; one of `WAYS`.
        again: the run that goes on is killed once more, after this transition of the same epoch; None: it isn't.
    """

    seq: int
    way: str
    again: int | None = None


# -- lives -------------------------------------------------------------------------------------------------


class Unsynced(Files):
    """Writes, and doesn't wait for the disk: a kill takes nothing from the kernel."""

    def fdatasync(self, fd: int) -> None:
        pass

    def fsync_dir(self, path: Path) -> None:
        pass


class Done:
    """Work that was done as soon as it was begun."""

    def is_alive(self) -> bool:
        return False

    def join(self) -> None:
        pass


class Asleep(Pulse):
    """Does nothing by itself."""

    def ask(self) -> None:
        pass


class AtOnce(Background):
    """Does work before the run goes on, so that it's the same every time what a photograph holds."""

    def start(self, work: Callable[[], None], name: str) -> Done:
        work()
        return Done()

    def pulse(self, work: Callable[[], None], every: float, name: str) -> Pulse:
        return Asleep(work, every, name)


def built(configuration: Configuration, run_dir: Path, way: str, foreign: int = 0) -> Trainer:
    trainer = build(run_dir, KILLED.get(way), configuration, foreign=foreign)
    trainer.world = World(files=Unsynced(), background=AtOnce())
    return trainer


def photograph(trainer: Trainer, way: str, at: Collection[int], to: Path) -> None:
    """Have the run directory copied after certain transitions, when everyone has heard them."""

    def copy(trainer: Trainer, path: Any = None) -> None:
        seq = trainer.trainer_state.seq
        if seq in at:
            shutil.copytree(trainer.run_dir, to / str(seq), copy_function=_copy)

    if way != "here":
        after_everyone(trainer, copy)
        return
    after_everyone(trainer, lambda trainer: trainer.request_snapshot() if trainer.trainer_state.seq in at else None)
    trainer.on("on_after_snapshot", copy)


def _copy(source: str, to: str) -> None:
    """Copy a file; of a snapshot, which nobody changes any more, another name is enough."""
    (os.link if "/snapshots/" in source else shutil.copyfile)(source, to)


class Struck(Exception):
    """An error of the run's own."""


def end(trainer: Trainer, way: str, seq: int) -> None:
    """Run until a transition, and end there: by a stop, or by an error after the last snapshot."""

    def stop(trainer: Trainer) -> None:
        if trainer.trainer_state.seq == seq:
            trainer.stop("here")

    def fail(trainer: Trainer) -> None:
        if trainer.trainer_state.seq == seq:
            raise Struck
        if trainer.trainer_state.seq == seq - 1:
            trainer.request_snapshot()

    after_everyone(trainer, stop if way == "stopped" else fail)
    try:
        trainer.run()
    except Struck:
        assert way == "failed"


# -- the proof ---------------------------------------------------------------------------------------------


@attrs.frozen
class Straight:
    """The run that nothing happened to."""

    configuration: Configuration
    run_dir: Path
    outcome: dict[str, Any]

    @classmethod
    def of(cls, configuration: Configuration, folder: Path) -> Straight:
        trainer = built(configuration, folder / "straight", "never")
        trainer.run()
        return cls(configuration, folder / "straight", outcome(trainer))

    def records(self) -> list[Record]:
        return list(Journal(self.run_dir))

    def expect_of(self, trainer: Trainer) -> None:
        assert not differences(self.outcome, outcome(trainer))


def prove(straight: Straight, points: Iterable[Point], folder: Path) -> int:
    """Interrupt runs at points, go on in fresh objects, and hold the ends against the straight one.

    Args:
        straight: the run that nothing happened to.
        points: where and how.
        folder: for the runs.

    Returns:
        How many interruptions were shown to leave no trace.
    """
    proven = 0
    for way, seqs in _by_way(points).items():
        photographs = folder / way
        if way in KILLED:
            trainer = built(straight.configuration, folder / "run", way)
            photograph(trainer, way, seqs, photographs)
            trainer.run()
            straight.expect_of(trainer)  # it wasn't changed by being looked at
            shutil.rmtree(folder / "run")
        for seq, again in seqs.items():
            if way not in KILLED:
                end(built(straight.configuration, photographs / str(seq), way), way, seq)
            newest = {"here": seq, "stopped": seq, "failed": seq - 1, "never": 0}.get(way)
            goes_on(straight, photographs / str(seq), way, newest, again, folder)
            proven += 1
            if again is not None:
                newest = again if way == "here" else newest
                goes_on(straight, folder / str(again), way, newest, None, folder)
                proven += 1
    return proven


def _by_way(points: Iterable[Point]) -> dict[str, dict[int, int | None]]:
    by_way: dict[str, dict[int, int | None]] = {}
    for point in points:
        by_way.setdefault(point.way, {})[point.seq] = point.again
    return by_way


def goes_on(straight: Straight, run_dir: Path, way: str, newest: int | None, again: int | None, folder: Path) -> None:
    """Go on with a run whose newest snapshot is of a known transition, and expect the straight run's end."""
    trainer = built(straight.configuration, run_dir, way, foreign=1)
    if again is not None:
        photograph(trainer, way, [again], folder)
    trainer.run(resume_from="auto")
    straight.expect_of(trainer)
    said = [side for side in Journal(run_dir).sides() if side.kind in ("diverged", "matched", "resumed")]
    assert not [side for side in said if side.kind == "diverged"]
    assert all(side.data["matched"] == side.data["of"] for side in said if side.kind == "matched")
    stood = [side.data["at"] for side in said if side.kind == "resumed"]
    assert newest in (None, stood[-1])
    shutil.rmtree(run_dir)


def named(records: list[Record]) -> dict[str, int]:
    """Find the places that a run has: name -> transition."""
    found = {name: next((r.seq for r in records if fits(r)), 0) for name, fits in PLACES.items()}
    return {name: seq for name, seq in found.items() if seq}


def again_after(records: list[Record], seq: int) -> int | None:
    """Choose a later transition of the same epoch for a second kill; None where there's none."""
    here, last = records[seq - 1], records[-1].seq
    for later in (seq + 1 + seq % 5, seq + 1):
        if later < last and records[later - 1].state.cur_epoch_idx == here.state.cur_epoch_idx:
            return later
    return None


def every_way(seqs: Iterable[int], records: list[Record], shift: int, ways: tuple[str, ...] = WAYS) -> Iterator[Point]:
    """Give each point one of the ways in turn, and a second kill."""
    for n, seq in enumerate(seqs):
        way = ways[(n + shift) % len(ways)]
        if way == "failed" and seq == 1:
            way = "stopped"  # before the first transition there is no snapshot
        yield Point(seq, way, again_after(records, seq))


def ids(configurations: list[Configuration]) -> list[str]:
    return [configuration.id for configuration in configurations]


# -- the tests ---------------------------------------------------------------------------------------------

SAMPLE = covering(EVERY)
ALONE = [configuration for configuration in EVERY if configuration.workers == 0]
WITH_WORKERS = [configuration for configuration in EVERY if configuration.workers]


@pytest.mark.parametrize("configuration", SAMPLE, ids=ids(SAMPLE))
def test_interrupted_at_a_named_place_it_ends_with_the_same_bits(
    configuration: Configuration, tmp_path: Path, proven: Proven
) -> None:
    """R01 R02 R05 R06 R07 R10 R21 R22 R23 R26 R27 R29 R33 R41 R54 R57 R68."""
    straight = Straight.of(configuration, tmp_path)
    records = straight.records()
    index = SAMPLE.index(configuration)
    places = list(named(records).values())
    if configuration.workers:  # starting them is most of the cost
        places = places[index % 2 :: 2]
    proven(prove(straight, every_way(places, records, index), tmp_path))


def test_the_sample_has_every_place_and_every_way(tmp_path: Path) -> None:
    """So that nothing is passed over in silence: places that a run lacks are left out."""
    straight = Straight.of(Configuration(window="3 carry", precision="fp16"), tmp_path)
    records = straight.records()
    places = named(records)
    assert places.keys() == PLACES.keys()
    assert {point.way for point in every_way(places.values(), records, 0)} == set(WAYS)
    entered = {records[seq - 1].dest for seq in places.values()}
    assert entered == {"sanity_check", "epoch_begin", "fetch", "step", "validate", "epoch_end"}


@pytest.mark.sweep
@pytest.mark.parametrize("configuration", ALONE, ids=ids(ALONE))
def test_interrupted_after_any_transition_it_ends_with_the_same_bits(
    configuration: Configuration, tmp_path: Path, proven: Proven
) -> None:
    """Twice, with a snapshot of that very transition; and once in one of the other ways."""
    straight = Straight.of(configuration, tmp_path)
    records = straight.records()
    seqs = range(1, records[-1].seq)
    here = [Point(seq, "here", again_after(records, seq)) for seq in seqs]
    others = every_way(seqs, records, EVERY.index(configuration), WAYS[1:])
    once = [attrs.evolve(point, again=None) for point in others]
    proven(prove(straight, [*here, *once], tmp_path))


@pytest.mark.sweep
@pytest.mark.parametrize("configuration", WITH_WORKERS, ids=ids(WITH_WORKERS))
def test_read_by_workers_and_interrupted_at_a_named_place_it_ends_with_the_same_bits(
    configuration: Configuration, tmp_path: Path, proven: Proven
) -> None:
    straight = Straight.of(configuration, tmp_path)
    records = straight.records()
    points = every_way(named(records).values(), records, EVERY.index(configuration))
    proven(prove(straight, points, tmp_path))
