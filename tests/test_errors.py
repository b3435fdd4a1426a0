"""What becomes of an error, wherever it strikes and whatever it is."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.drivers import StubDriver
from tachograph.engine import Callback, Events, Journal
from tachograph.engine.journal import JournalWriter
from tachograph.engine.snapshots import SnapshotWriteFault
from tachograph.states import Stepped
from tests.toys import Sum, sides, stub, transitions


class Odd(Exception):
    """Its constructor takes what nobody else would give."""

    def __init__(self, *, code: int, where: list[int]) -> None:
        super().__init__()
        self.code, self.where = code, where


class Refusing(Exception):
    """It takes no attributes, so no notes."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name != "__traceback__":
            raise AttributeError(name)


class Mute(Exception):
    """It can't say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Noted(Exception):
    """Its notes are of its own kind."""

    __notes__ = ("its own",)


KINDS: list[Callable[[], BaseException]] = [
    lambda: ValueError("plain"),
    lambda: KeyboardInterrupt(),
    lambda: SystemExit(3),
    lambda: GeneratorExit(),
    lambda: StopIteration("mine"),
    lambda: StopAsyncIteration(),
    lambda: MemoryError(),
    lambda: RecursionError("too deep"),
    lambda: Odd(code=3, where=[1]),
    lambda: Refusing("nothing sticks"),
    lambda: Mute(),
    lambda: Noted("with notes"),
    lambda: OSError(5, "a file", "/no\udcffname"),
    lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
]
if sys.version_info >= (3, 11):
    KINDS.append(lambda: BaseExceptionGroup("several", [ValueError("one"), KeyboardInterrupt()]))  # noqa: F821


class Tally(Callback):
    """Counts batches, and can be made to fail where its state is asked for."""

    def __init__(self) -> None:
        self.seen = 0
        self.strike: Callable[[], None] = lambda: None

    def on_train_batch_end(self, trainer: Any) -> None:
        self.seen += 1

    def state_dict(self) -> dict[str, Any]:
        self.strike()
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


class Scoring(Sum):
    """A metric that can be made to fail anywhere."""

    def __init__(self) -> None:
        self.on: dict[str, Callable[[], None]] = {}
        super().__init__()

    def update(self, value: int) -> None:
        self.on.get("update", int)()
        super().update(value)

    def compute(self) -> dict[str, int]:
        self.on.get("compute", int)()
        return super().compute()

    def reset(self) -> None:
        self.on.get("reset", int)()
        super().reset()


class Capturing(StubDriver):
    """A driver that can be made to fail where it copies, writes and closes."""

    def capture(self, extra: Any, batch: Any = None) -> Any:
        self._called("capture")
        return super().capture(extra, batch)

    def save(self, capture: Any, directory: Path) -> Any:
        self._called("save")
        return super().save(capture, directory)


def build(run_dir: Path | None, driver: StubDriver | None = None, **settings: Any) -> Any:
    settings = {"metrics": {"m": Scoring()}, "validate_dataloaders": [5, 6, 7], "validate_every": 2, **settings}
    settings = {"n_epochs": 3, "snapshot_every": 2, "callbacks": Tally(), "seed": 3, **settings}
    return stub([3, 1, 4], Capturing() if driver is None else driver, run_dir=run_dir, **settings)


class Strike:
    """Raises an error at the call that is its turn.

    Args:
        error: what is raised.
        at: the number of the call; 0: never.
    """

    def __init__(self, error: BaseException, at: int) -> None:
        self.error, self.left = error, at

    def __call__(self, *_: Any) -> None:
        self.left -= 1
        if self.left == 0:
            raise self.error


def listen(target: Any) -> Callable[[Any, Strike], None]:
    return lambda trainer, strike: trainer.on(target, strike)


def method(name: str) -> Callable[[Any, Strike], None]:
    return lambda trainer, strike: trainer.driver._on.update({name: strike})


def metric(name: str) -> Callable[[Any, Strike], None]:
    return lambda trainer, strike: trainer.evaluator.metrics["m"].on.update({name: strike})


def setting(name: str, value: Callable[[Strike], Any]) -> Callable[[Any, Strike], None]:
    return lambda trainer, strike: setattr(trainer, name, value(strike))


def callbacks_state(trainer: Any, strike: Strike) -> None:
    trainer.listeners.callbacks["Tally"].strike = strike


PLACES: dict[str, tuple[Callable[[Any, Strike], None], int, str]] = {
    # what is made to fail, at which of its calls, and the state that the run is in then
    "the driver's setup": (method("setup"), 1, ""),
    "a fetch": (method("next_batch"), 4, "fetch"),
    "the opening of an epoch": (method("open_epoch"), 2, "epoch_begin"),
    "the model": (method("train_step"), 4, "step"),
    "the backward pass": (method("backward"), 4, "step"),
    "the update": (method("optimizer_step"), 4, "step"),
    "the sanity check": (method("evaluate_step"), 1, "sanity_check"),
    "a validation": (method("evaluate_step"), 4, "validate"),
    "a metric's update": (metric("update"), 4, "validate"),
    "a metric's compute": (metric("compute"), 2, "validate"),
    "a metric's reset": (metric("reset"), 3, "validate"),
    "a moment": (listen(Events.on_train_batch_end), 3, "fetch"),
    "a moment inside a step": (listen(Events.on_before_backward), 3, "step"),
    "a moment inside a validation": (listen(Events.on_validate_batch_end), 4, "validate"),
    "a thinned moment": (listen(Events.on_train_batch_end(every=2)), 2, "validate"),
    "a state": (listen("epoch_end"), 1, "epoch_end"),
    "a transition": (listen("step -> fetch"), 2, "fetch"),
    "an event": (listen(Stepped), 3, "fetch"),
    "the first transition": (listen(Events.on_sanity_check_begin), 1, "sanity_check"),
    "a snapshot's moment": (listen(Events.on_after_snapshot), 2, "any"),  # whenever it is written
    "a callback's state": (callbacks_state, 3, "validate"),
    "a snapshot's copy": (method("capture"), 2, "validate"),
    "a snapshot's writing": (method("save"), 2, "any"),
}


FEW = KINDS[:1] + [kind for kind in KINDS if isinstance(kind(), (KeyboardInterrupt, StopIteration))]
IN_FULL = ("the model", "a moment", "a validation", "a snapshot's copy")
CASES = [(place, kind) for place in PLACES for kind in (KINDS if place in IN_FULL else FEW)]
SOMEWHERE = [place for place, (_, _, state) in PLACES.items() if state]


def named(value: Any) -> str:
    return value if isinstance(value, str) else type(value()).__name__


def strike(trainer: Any, place: str, error: BaseException) -> None:
    """Have an error strike in a place."""
    make, call, _ = PLACES[place]
    make(trainer, Strike(error, call))


@pytest.mark.parametrize(("place", "kind"), [c for c in CASES if c[0] != "a snapshot's writing"], ids=named)
def test_an_error_is_raised_as_it_is_recorded_and_heard_once(
    run_dir: Path, place: str, kind: Callable[[], BaseException]
) -> None:
    """R11, R25, R34, R59, B23: of any kind, in the user's code or in ours."""
    error, state = kind(), PLACES[place][2]
    trainer = build(run_dir)
    strike(trainer, place, error)
    heard: list[Any] = []
    trainer.on(Events.on_exception, lambda trainer, exception: heard.append(exception))
    trainer.on(Events.on_train_end, lambda trainer: heard.append("end"))
    with pytest.raises(type(error)) as caught:
        trainer.run()
    assert caught.value is error
    assert trainer.exception is error
    if not state:  # nothing had begun
        assert heard == []
        return
    last = Journal(run_dir).last
    assert last is not None
    assert (last.event, last.dest, last.data["kind"]) == ("Failed", "exception", type(error).__name__)
    assert state in ("any", last.source)
    assert heard == ([error] if state == "sanity_check" else [error, "end"])
    assert trainer.trainer_state.state == "exception"
    if not isinstance(error, (Refusing, Noted)):
        assert f"in state '{last.source}'" in error.__notes__[0]  # type: ignore[attr-defined]
        assert f"after transition {last.seq - 1}" in error.__notes__[0]  # type: ignore[attr-defined]


@pytest.mark.parametrize("place", SOMEWHERE)
def test_after_an_error_the_run_is_resumed_exactly_and_nothing_is_left_open(run_dir: Path, place: str) -> None:
    """R25, R59."""
    straight, again = build(run_dir.parent / "straight"), build(run_dir)
    for unharmed in (straight, again):
        PLACES[place][0](unharmed, Strike(ValueError(), 0))
    straight.run()
    files, threads = open_files(), threading.active_count()
    trainer = build(run_dir)
    strike(trainer, place, ValueError("x"))
    with pytest.raises((ValueError, SnapshotWriteFault)) as caught:
        trainer.run()
    assert (open_files(), threading.active_count()) == (files, threads), caught
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* was taken when an error had struck")
        assert again.run(resume_from="auto").state == "done"
    if all(s["exact"] for s in sides(run_dir, "resumed")):
        assert again.journal.chain == straight.journal.chain
        assert again.driver.weight == straight.driver.weight
        assert again.listeners.state_dict(again) == straight.listeners.state_dict(straight)
        assert sides(run_dir, "diverged") == []
    else:  # there was no exact one yet
        assert trainer.trainer_state.global_forward_batches < 2


def open_files() -> list[str]:
    """What this process has open, beside the directory that is read for it."""
    paths = [Path(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    return sorted(os.readlink(path) for path in paths if path.is_symlink())


@pytest.mark.parametrize("place", PLACES)
def test_the_same_trainer_can_be_run_again_after_an_error(run_dir: Path, place: str) -> None:
    """R59."""
    trainer = build(run_dir)
    strike(trainer, place, ValueError("x"))
    with pytest.raises((ValueError, SnapshotWriteFault)):
        trainer.run()
    end = trainer.run()
    assert (end.state, end.cur_epoch_idx, end.global_forward_batches) == ("done", 3, 9)
    assert trainer.exception is None


# -- a second error ----------------------------------------------------------------------------------------


def test_everyone_hears_of_an_error_once_although_one_of_them_fails(run_dir: Path) -> None:
    """R34, R59: observers don't swallow it, and don't keep it from each other; theirs are attached."""
    first, later = ValueError("the step"), [KeyError("one"), SystemExit(2), OSError("the end")]
    trainer = build(run_dir, Capturing(on={"train_step": Strike(first, 2)}))
    heard: list[str] = []

    def listen(name: str, error: BaseException | None = None) -> Callable[..., None]:
        def hear(*_: Any) -> None:
            heard.append(name)
            if error is not None:
                raise error

        return hear

    def reraise(trainer: Any, exception: BaseException) -> None:
        raise exception

    trainer.on(Events.on_exception, listen("first", later[0]))
    trainer.on(Events.on_exception, reraise)
    trainer.on(Events.on_exception, listen("second", later[1]))
    at_the_end = trainer.on(Events.on_train_end, listen("end", later[2]))
    trainer.on("exception", listen("state"))
    trainer.on("Failed", listen("event"))
    with pytest.raises(ValueError, match="the step") as caught:
        trainer.run()
    assert caught.value is first
    assert heard == ["first", "second", "end", "state", "event"]
    assert first.later == later  # type: ignore[attr-defined]
    assert [n.rsplit(", ", 1)[1] for n in first.__notes__[1:]] == [  # type: ignore[attr-defined]
        "KeyError: 'one'",
        "SystemExit: 2",
        "OSError: the end",
    ]
    at_the_end.remove()
    assert trainer.run().state == "done"


def test_an_error_of_the_copy_of_an_emergency_snapshot_or_of_its_writing_hides_nothing(run_dir: Path) -> None:
    """R59: nor does it keep the failure from the journal, and from those who listen."""
    for method_name, kind in (("capture", MemoryError), ("save", SnapshotWriteFault)):
        first, heard = ValueError("the step"), []
        at = run_dir / method_name
        trainer = build(at, Capturing(on={"train_step": Strike(first, 2), method_name: Strike(MemoryError(), 1)}))
        trainer.on(Events.on_exception, lambda trainer, exception, heard=heard: heard.append(exception))
        with pytest.raises(ValueError, match="the step") as caught:
            trainer.run()
        assert caught.value is first
        assert [type(error) for error in first.later] == [kind]  # type: ignore[attr-defined]
        assert heard == [first]
        assert transitions(at)[-1] == "step --Failed--> exception"


def test_a_callback_whose_state_can_never_be_told_fails_once_and_is_recorded(run_dir: Path) -> None:
    """R59: each try has an error of its own; the first is raised."""
    trainer = build(run_dir)
    made: list[BaseException] = []

    def fail() -> None:
        made.append(RuntimeError(f"no state {len(made)}"))
        raise made[-1]

    trainer.on(Events.on_train_batch_end(once=1), lambda t: callbacks_state(t, fail))  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="no state 0") as caught:
        trainer.run()
    assert [caught.value, *caught.value.later] == made  # type: ignore[attr-defined]
    last = Journal(run_dir).last
    assert last is not None
    assert (last.event, last.data["error"]) == ("Failed", "no state 0")


def test_an_error_when_the_run_is_done_is_raised_and_the_run_stays_done(run_dir: Path) -> None:
    """R59: a listener of the end, or what is cleaned up after it."""
    first, second = ValueError("the end"), OSError("the clean-up")

    class Unclosing(Capturing):
        def close(self) -> None:
            raise second

    trainer = build(run_dir, Unclosing())
    trainer.on(Events.on_train_end, Strike(first, 1))
    with pytest.raises(ValueError, match="the end") as caught:
        trainer.run()
    assert caught.value is first
    assert first.later == [second]  # type: ignore[attr-defined]
    assert trainer.trainer_state.state == "done"
    assert transitions(run_dir)[-1] == "epoch_end --EpochEnded--> done"


def test_an_error_that_strikes_between_a_record_and_the_state_leaves_both_together(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R59: Ctrl-C and the death of a worker strike anywhere."""
    trainer = build(run_dir)
    append = JournalWriter.append

    def struck(writer: JournalWriter, source: str, event: Any, state: Any) -> None:
        append(writer, source, event, state)
        if state.seq == 20:
            raise KeyboardInterrupt

    monkeypatch.setattr(JournalWriter, "append", struck)
    with pytest.raises(KeyboardInterrupt) as caught:
        trainer.run()
    assert not hasattr(caught.value, "later")
    assert [record.seq for record in Journal(run_dir)] == list(range(1, 22))
    assert trainer.trainer_state.seq == 21
    monkeypatch.undo()
    straight, again = build(run_dir.parent / "straight"), build(run_dir)
    straight.run()
    again.run(resume_from="auto")
    assert again.journal.chain == straight.journal.chain


def test_an_error_that_strikes_while_the_last_snapshot_is_written_does_not_tear_it(run_dir: Path) -> None:
    """R59: that a worker died is told by a signal, which may strike while the engine waits."""
    trainer = build(run_dir, Capturing(on={"save": lambda driver: release.wait()}), snapshot_every=None)
    release = threading.Event()
    error = RuntimeError("a worker died")

    def died(number: int, frame: Any) -> None:
        release.set()
        raise error

    def soon() -> None:  # the main thread waits for the snapshot by then, or will find the signal when it comes to it
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR2)  # type: ignore[arg-type]

    before = signal.signal(signal.SIGUSR2, died)
    try:
        trainer.on("Stopped", lambda trainer: threading.Timer(0.05, soon).start())
        trainer.on(Events.on_train_batch_end(once=2), lambda trainer: trainer.stop("enough"))
        with pytest.raises(RuntimeError, match="a worker died") as caught:
            trainer.run()
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert caught.value is error
    assert [s["at"] for s in sides(run_dir, "saved")] == [trainer.trainer_state.seq - 1]
