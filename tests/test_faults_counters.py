"""Counters, limits and epoch boundaries: totals, whatever the limit, the loader's length and the interruption."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tachograph.drivers import StubDriver
from tachograph.engine import Callback, Events, Journal, Trainer, diff
from tachograph.engine.callbacks.callback import MOMENTS
from tachograph.engine.snapshots import catalogue
from tests.test_resume import notices
from tests.toys import Sum, sides, stub


class Log(Callback):
    """Writes outside, so it is told nothing twice: the epoch of each step, and after how many steps an epoch ended."""

    outside_effects = True

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.ends: list[int] = []

    def on_train_batch_end(self, trainer: Any) -> None:
        self.epochs.append(trainer.cur_epoch_idx)

    def on_train_epoch_end(self, trainer: Any) -> None:
        self.ends.append(trainer.global_forward_batches)


# -- boundaries --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 3, 20])
@pytest.mark.parametrize("first", [{"n_batches": 1}, {"n_epochs": 1}, {"stop": True}])
@pytest.mark.parametrize("then", [{"n_batches": 2}, {"n_epochs": 2}])
@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("known", [True, False])
def test_a_run_that_ended_exactly_at_an_epoch_s_end_repeats_and_loses_none(
    run_dir: Path, length: int, first: dict[str, Any], then: dict[str, Any], same: bool, known: bool
) -> None:
    """R21: by a limit in batches, in epochs, or by a stop there; each epoch's end is heard once.

    Where nobody knows the length, nobody knows at a limit in batches that the epoch is over; it is seen at the next
    fetch.
    """
    log = Log()

    def build(limit: dict[str, Any]) -> Trainer:
        limit = {k: v * length if k == "n_batches" else v for k, v in limit.items() if k != "stop"} or {"n_epochs": 9}
        driver = StubDriver(known_length=known)
        return stub(list(range(length)), driver, run_dir=run_dir, callbacks=log, **limit)

    trainer = build(first)
    if "stop" in first:
        trainer.on(Events.on_train_epoch_end, lambda t: t.cur_epoch_idx == 1 and t.stop("at the end"))
    trainer.run()
    assert log.epochs == [0] * length
    assert log.ends == ([length] if known or "n_batches" not in first else [])
    if same:
        if "n_batches" in then:
            trainer.n_batches = then["n_batches"] * length
        else:
            trainer.n_batches, trainer.n_epochs = None, 2  # type: ignore[attr-defined]
        end = trainer.run()
    else:
        trainer = build(then)
        end = trainer.run(resume_from="auto")
    ended = 2 if known or "n_batches" not in then else 1
    assert log.epochs == [0] * length + [1] * length
    assert log.ends == [length, 2 * length][:ended]
    assert (end.optimizer_steps, end.global_forward_batches, end.cur_epoch_idx) == (2 * length, 2 * length, ended)
    assert sum(r.event == "EpochEnded" for r in Journal(run_dir)) == ended


# -- totals ------------------------------------------------------------------------------------------------

EPOCH = 4
LIMITS: list[dict[str, Any]] = [
    *({"n_batches": n} for n in (0, 3, 4, 5, 10)),
    *({"n_epochs": n} for n in (0, 1, 2, 3)),
    {"n_batches": 7, "n_epochs": 1},  # batches are the stricter word
    {"n_epochs": None},
]


def total(limit: dict[str, Any]) -> int | None:
    if limit.get("n_batches") is not None:
        return int(limit["n_batches"])
    return None if limit["n_epochs"] is None else limit["n_epochs"] * EPOCH


def set_limit(trainer: Trainer, limit: dict[str, Any]) -> None:
    trainer.n_batches = limit.get("n_batches")
    if trainer.n_batches is None:
        trainer.n_epochs = limit["n_epochs"]  # type: ignore[attr-defined]


def named(limit: dict[str, Any]) -> str:
    return ",".join(f"{k}={v}" for k, v in limit.items())


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("again", LIMITS, ids=named)
@pytest.mark.parametrize("done", LIMITS[:-1], ids=named)
def test_every_limit_after_every_other_one_is_a_total(
    tmp_path: Path, done: dict[str, Any], again: dict[str, Any], known: bool
) -> None:
    """R37: new_limit <= done: 0 steps, done, and a message; else exactly new_limit - done more. Same object or not."""

    def build(place: str, limit: dict[str, Any]) -> Trainer:
        settings = {"snapshot_every": None, "run_dir": tmp_path / place, **limit}
        return stub([1] * EPOCH, StubDriver(known_length=known), **settings)

    for place in ("fresh", "same"):
        first = build(place, done)
        first.run()
        before = first.global_forward_batches
        assert before == total(done)
        trainer = first if place == "same" else build(place, again)
        if place == "same":
            set_limit(trainer, again)
        endless = total(again) is None
        if endless:
            trainer.on(Events.on_train_batch_end, lambda t: t.global_forward_batches == 17 and t.stop())
        said = notices(trainer)
        end = trainer.run(resume_from=None if place == "same" else "auto")
        expected = max(before, 17 if endless else total(again) or 0)
        assert (end.state, end.global_forward_batches, end.optimizer_steps) == ("done", expected, expected), place
        told = [text for text in said if text == "the limit is reached already: nothing was run"]
        assert len(told) == (expected == before), (place, said)


steps = st.one_of(
    st.builds(lambda n: ("n_batches", n), st.integers(0, 14)),
    st.builds(lambda n: ("n_epochs", n), st.integers(0, 4)),
    st.builds(lambda n: ("stop", n), st.integers(1, 5)),
    st.builds(lambda n: ("crash", n), st.integers(1, 5)),
)


class Crash(Exception):
    pass


def live(run_dir: Path, lives: list[tuple[str, int]], same: list[bool], length: int, known: bool, k: int) -> None:
    """A run of lives that end by limits, stops and crashes; the last one goes to the end of the fourth epoch."""

    def build(place: Path, crash: int = 0) -> Trainer:
        def strike(driver: StubDriver) -> None:
            if driver.calls.count("train_step") == crash:
                raise Crash

        driver = StubDriver(known_length=known, on={"train_step": strike})
        about = {"metrics": {"m": Sum()}, "validate_dataloaders": [1]}
        return stub(list(range(length)), driver, n_epochs=4, run_dir=place, accumulation_steps=k, seed=3, **about)

    trainer: Trainer | None = None
    for (kind, number), goes_on in zip([*lives, ("n_epochs", 4)], [*same, False], strict=True):
        n = number % (4 * length + 1) if kind == "n_batches" else number
        fresh = trainer is None or not goes_on or trainer.trainer_state.state == "exception" or kind == "crash"
        if fresh:
            trainer = build(run_dir, n if kind == "crash" else 0)
        assert trainer is not None
        trainer.n_batches, trainer.n_epochs = None, 4  # type: ignore[attr-defined]
        if kind == "n_batches":
            trainer.n_batches = n
        elif kind == "n_epochs":
            trainer.n_epochs = n  # type: ignore[attr-defined]
        begun = [0 if fresh else trainer.global_forward_batches]
        trainer.on("on_after_resume", lambda t, report, begun=begun: begun.append(t.global_forward_batches))
        goal = {"n_batches": n, "n_epochs": n * length}.get(kind, 4 * length)
        seen = []

        def count(trainer: Any, kind: str = kind, n: int = n, seen: list[int] = seen) -> None:
            seen.append(1)
            if kind == "stop" and len(seen) == n:
                trainer.stop("asked")

        handle = trainer.on(Events.on_train_batch_end, count)
        try:
            end = trainer.run(resume_from="auto" if fresh else None)
        except Crash:
            continue
        finally:
            handle.remove()
        if kind == "stop" and len(seen) == n:
            goal = min(goal, end.global_forward_batches)
        assert end.state == "done"
        assert end.global_forward_batches == max(begun[-1], goal)
    straight = build(run_dir.parent / "straight")
    straight.run()
    assert trainer is not None
    assert trainer.trainer_state.optimizer_steps == straight.trainer_state.optimizer_steps
    assert trainer.driver.weight == straight.driver.weight  # type: ignore[union-attr]
    assert diff(run_dir, run_dir.parent / "straight") is None
    assert sides(run_dir, "diverged") == []


lived = {
    "lives": st.lists(steps, min_size=1, max_size=4),
    "length": st.integers(1, 4),
    "known": st.booleans(),
    "k": st.integers(1, 3),
}


@pytest.mark.filterwarnings("ignore:.*isn't exact")
@settings(max_examples=10, deadline=None)
@given(data=st.data(), **lived)
def test_any_lives_end_where_one_life_would_have(data: Any, lives: Any, length: int, known: bool, k: int) -> None:
    """R21, R24, R37, R53: limits, stops and crashes in any order, in the same object and in new ones."""
    same = data.draw(st.lists(st.booleans(), min_size=len(lives), max_size=len(lives)))
    with tempfile.TemporaryDirectory() as folder:
        live(Path(folder) / "run", lives, same, length, known, k)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:.*isn't exact")
@settings(max_examples=150, deadline=None)
@given(data=st.data(), **lived)
def test_very_many_lives_end_where_one_life_would_have(data: Any, lives: Any, length: int, known: bool, k: int) -> None:
    same = data.draw(st.lists(st.booleans(), min_size=len(lives), max_size=len(lives)))
    with tempfile.TemporaryDirectory() as folder:
        live(Path(folder) / "run", lives, same, length, known, k)


# -- stop and end ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["stop", "end_epoch"])
@pytest.mark.parametrize("at", range(1, 10))
@pytest.mark.parametrize("k", [1, 2])
def test_two_verbs_two_histories(tmp_path: Path, verb: str, at: int, k: int) -> None:
    """R24: stopped and gone on with, an epoch is whole; ended, it is cut, which the counters and the record say."""

    def build(name: str) -> Trainer:
        return stub([0, 1, 2, 3, 4], run_dir=tmp_path / name, accumulation_steps=k, n_epochs=2)

    whole = build("straight")
    whole.run()
    trainer = build("run")

    def act(trainer: Any) -> None:
        if trainer.global_forward_batches == at:
            getattr(trainer, verb)("here")

    handle = trainer.on(Events.on_train_batch_end, act)
    trainer.run()
    handle.remove()
    end = trainer.run()
    seen = trainer.driver.seen  # type: ignore[union-attr]
    if verb == "stop":
        assert seen == [0, 1, 2, 3, 4] * 2
        assert (end.cur_epoch_idx, end.global_forward_batches) == (2, 10)
        assert trainer.journal.chain == whole.journal.chain  # type: ignore[union-attr]
        return
    epoch, batch = divmod(at, 5)
    cut = at % 5 != 0
    lengths = [batch if cut and e == epoch else 5 for e in range(2)]
    assert seen == [b for n in lengths for b in range(n)]
    assert (end.cur_epoch_idx, end.global_forward_batches) == (2, sum(lengths))
    ends = [r for r in Journal(tmp_path / "run") if r.event == "Exhausted"]
    assert [bool(r.data["cut"]) for r in ends].count(True) == 1
    assert [r.state.batch_idx_in_epoch for r in ends] == lengths


# -- lengths that nobody knows -----------------------------------------------------------------------------


class Uneven:
    """Epochs of other lengths, as a sequence that the stub can read."""

    def __init__(self, lengths: tuple[int, ...]) -> None:
        self.lengths = lengths


class UnevenDriver(StubDriver):
    """A stub whose epochs have the lengths it is told; it never knows them beforehand."""

    def __init__(self, lengths: tuple[int, ...], says: int | None = None) -> None:
        super().__init__(known_length=False)
        self._lengths, self._says = lengths, says

    def length(self) -> int | None:
        return self._says

    def open_epoch(self, epoch: int, done: int, samples: int | None = None) -> int | None:
        self._batches = [100 * epoch + i for i in range(self._lengths[epoch])]
        super().open_epoch(epoch, done, samples)
        return self._says


def triples(trainer: Trainer) -> list[tuple[int, int, int]]:
    found: list[tuple[int, int, int]] = []

    def note(trainer: Any, outputs: Any) -> None:
        state = trainer.trainer_state
        found.append((state.cur_epoch_idx, state.batch_idx_in_epoch, state.global_forward_batches))

    trainer.on(Events.on_before_backward, note)
    return found


def uneven(run_dir: Path, lengths: tuple[int, ...], says: int | None, **about: Any) -> Trainer:
    driver = UnevenDriver(lengths, says)
    return stub([0], driver, n_epochs=len(lengths), run_dir=run_dir, **{"snapshot_every": None, **about})


@pytest.mark.parametrize("says", [None, 5])
@pytest.mark.parametrize("tail", ["flush", "carry", "drop"])
@pytest.mark.parametrize("k", [1, 3])
def test_epoch_batch_and_step_are_stored_and_not_divided(tmp_path: Path, k: int, tail: str, says: int | None) -> None:
    """SV3, R53: lengths 5, 3, 7, unknown or wrongly said; stopped after each of the 15 steps."""
    lengths = (5, 3, 7)
    about = {"accumulation_steps": k, "accumulation_tail": tail}
    straight = uneven(tmp_path / "straight", lengths, says, **about)
    expected = triples(straight)
    end = straight.run()
    flat = [(e, b) for e, n in enumerate(lengths) for b in range(n)]
    assert expected == [(e, b, i) for i, (e, b) in enumerate(flat)]
    for stop in range(1, 15):
        first = uneven(tmp_path / str(stop), lengths, says, **about)
        before = triples(first)
        first.on(Events.on_train_batch_end, lambda t, stop=stop: t.global_forward_batches == stop and t.stop())
        first.run()
        again = uneven(tmp_path / str(stop), lengths, says, **about)
        after = triples(again)
        assert again.run(resume_from="auto") == end
        assert before + after == expected
        assert again.journal.chain == straight.journal.chain  # type: ignore[union-attr]
        assert again.driver.weight == straight.driver.weight  # type: ignore[union-attr]


@settings(max_examples=15, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple),
    stops=st.lists(st.integers(1, 12), max_size=3),
    k=st.integers(1, 4),
    tail=st.sampled_from(["flush", "carry", "drop"]),
    says=st.none() | st.integers(1, 5),
)
def test_whatever_the_lengths_a_chain_of_stops_goes_the_straight_run_s_way(
    lengths: tuple[int, ...], stops: list[int], k: int, tail: str, says: int | None
) -> None:
    """R53."""
    about = {"accumulation_steps": k, "accumulation_tail": tail}
    with tempfile.TemporaryDirectory() as folder:
        straight = uneven(Path(folder) / "straight", lengths, says, **about)
        expected = triples(straight)
        straight.run()
        found: list[tuple[int, int, int]] = []
        for stop in [*sorted(stops), None]:
            trainer = uneven(Path(folder) / "run", lengths, says, **about)
            now = triples(trainer)
            trainer.on(Events.on_train_batch_end, lambda t, stop=stop: t.global_forward_batches == stop and t.stop())
            trainer.run(resume_from="auto")
            found += now
        assert found == expected
        assert trainer.journal.chain == straight.journal.chain  # type: ignore[union-attr]


# -- a save from anywhere ----------------------------------------------------------------------------------


def everything(trainer: Trainer) -> Iterator[str]:
    """Every moment, event, state and transition that can be subscribed to."""
    yield from MOMENTS
    yield from trainer.machine.event_classes
    yield from trainer.machine.names
    yield from sorted({f"{row.source} -> {row.dest}" for row in trainer.machine.rows})


def saving(run_dir: Path, target: str | None = None) -> Trainer:
    trainer = stub(
        [0, 1, 2, 3, 4],
        n_epochs=2,
        accumulation_steps=2,
        validate_every=(3, -1),
        metrics={"m": Sum()},
        validate_dataloaders=[5, 6],
        seed=3,
        run_dir=run_dir,
        snapshot_every=None,
    )
    if target is not None:
        given: Callable[..., None] = lambda trainer, *args: trainer.request_snapshot()  # noqa: E731
        trainer.on(target, given)
    return trainer


TARGETS = sorted(set(everything(saving(Path("nowhere")))))
NEVER = {"on_save_model", "on_load_model", "on_exception", "Failed", "exception", "on_after_trainer_initialized"}


@pytest.mark.parametrize("target", [t for t in TARGETS if t not in NEVER and "-> exception" not in t])
def test_saved_from_anywhere_a_run_goes_on_with_exactly_what_is_left(tmp_path: Path, target: str) -> None:
    """R07, R57: the counters of a snapshot say what is done, and the run resumed from it does the rest, no more."""
    straight = saving(tmp_path / "straight")
    end = straight.run()
    saving(tmp_path / "run", target).run()
    taken = catalogue(tmp_path / "run")[0]
    assert taken
    for snapshot in taken[:: max(1, len(taken) // 6)]:
        state = snapshot.about()["state"]
        again = saving(tmp_path / f"from {snapshot.seq}")
        assert again.run(resume_from=snapshot.path) == end
        done = state["global_forward_batches"]
        assert again.driver.seen == ([0, 1, 2, 3, 4] * 2)[done:]  # type: ignore[union-attr]
        taken_steps = again.driver.calls.count("optimizer_step")  # type: ignore[union-attr]
        assert taken_steps == end.optimizer_steps - state["optimizer_steps"]
        assert again.driver.weight == straight.driver.weight  # type: ignore[union-attr]
        assert again.journal.chain == straight.journal.chain  # type: ignore[union-attr]


def test_a_save_at_the_end_of_step_three_says_three_four_times(run_dir: Path) -> None:
    """R07."""
    trainer = stub([0, 1, 2, 3, 4], n_epochs=1, run_dir=run_dir, snapshot_every=None)
    trainer.on(Events.on_train_batch_end(once=3), lambda t: t.request_snapshot())
    trainer.run()
    state = catalogue(run_dir)[0][0].about()["state"]
    names = ("global_forward_batches", "batch_idx_in_epoch", "optimizer_steps", "samples")
    assert [state[name] for name in names] == [3, 3, 3, 3]


@pytest.mark.parametrize("same", [True, False])
@pytest.mark.parametrize("stop", range(1, 22))
def test_a_limit_that_is_lowered_below_what_is_done_ends_the_run_where_it_stands(
    tmp_path: Path, stop: int, same: bool
) -> None:
    """R37: stopped after any transition, with a batch in hand or before a validation too; and it can go on after it."""

    def build(name: str, **limit: Any) -> Trainer:
        return saving_with(tmp_path / name, **limit)

    straight = build("straight")
    straight.run()
    for name, limit in (("batches", {"n_batches": 0}), ("epochs", {"n_epochs": 0})):
        first = build(name)
        for state in first.machine.names:
            if state not in first.machine.final:
                first.on(state, lambda t: t.trainer_state.seq == stop and t.stop("here"), priority=-1)
        first.run()
        done = first.global_forward_batches
        trainer = first if same else build(name, **limit)
        if same:
            set_limit(trainer, limit)
        end = trainer.run(resume_from=None if same else "auto")
        assert (end.state, end.global_forward_batches) == ("done", done)
        third = build(name)
        third.run(resume_from="auto")
        assert third.driver.weight == straight.driver.weight  # type: ignore[union-attr]
        assert third.journal.chain == straight.journal.chain  # type: ignore[union-attr]


def saving_with(run_dir: Path, **limit: Any) -> Trainer:
    about = {"metrics": {"m": Sum()}, "validate_dataloaders": [5], "validate_every": (2, -1), "seed": 3}
    return stub([0, 1, 2], run_dir=run_dir, snapshot_every=None, accumulation_steps=2, **about, **limit)
