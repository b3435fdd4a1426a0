"""What becomes of an error, wherever it strikes and whatever it is."""

from __future__ import annotations

import ast
import contextlib
import functools
import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler, default_collate, get_worker_info

from tachograph.drivers import StubDriver
from tachograph.engine import Callback, Evaluator, Events, Journal, Trainer
from tachograph.engine.journal import JournalWriter
from tachograph.engine.snapshots import SnapshotWriteFault
from tachograph.states import Stepped
from tests.toys import Indexed, Regression, Sum, sides, stub, transitions


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
    """A2.R11, R25, R34, R59, B23: of any kind, in the user's code or in ours."""
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
        (note,) = [note for note in error.__notes__ if note.startswith("in state")]  # type: ignore[attr-defined]
        assert f"in state '{last.source}'" in note
        assert f"after transition {last.seq - 1}" in note


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


# -- data --------------------------------------------------------------------------------------------------


class Cruel(Indexed):
    """Samples of which one can't be read.

    Args:
        index: which; None: all can.
        strike: what happens where it is read.
    """

    def __init__(self, index: int | None = None, strike: Callable[[], None] = lambda: None) -> None:
        super().__init__(12)
        self.index, self.strike = index, strike

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.index:
            self.strike()
        return super().__getitem__(index)


class Streamed(IterableDataset[dict[str, Any]]):
    """The same samples in a row."""

    def __init__(self, data: Cruel) -> None:
        self.data = data

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return (self.data[i] for i in range(first, len(self.data), step))


class Collate:
    """Puts samples together, and fails where one has an index that it doesn't like."""

    def __init__(self, index: int | None, strike: Callable[[], None]) -> None:
        self.index, self.strike = index, strike

    def __call__(self, samples: Any) -> Any:
        if self.index in [int(sample["id"]) for sample in samples]:
            self.strike()
        return default_collate(samples)


class Raises:
    """Raises an error, also in another process."""

    def __init__(self, kind: type[Exception]) -> None:
        self.kind = kind

    def __call__(self) -> None:
        raise self.kind("unreadable")


def loaders(place: str, workers: int, strike: Callable[[], None], index: int | None, **options: Any) -> dict[str, Any]:
    """A training loader of shuffled pairs, and a validation loader of pairs in a row; one of them is cruel."""
    where, _, how = place.partition(": ")
    made = {}
    for name in ("train", "validate"):
        here = index if name == where else None
        data: Any = Cruel(here if how in ("dataset", "stream") else None, strike)
        options = {"batch_size": 2, "num_workers": workers, **options}
        if how.startswith("stream"):
            data = Streamed(data)
        elif name == "train":
            options["shuffle"] = True
        collate = Collate(here if how.endswith("collate") else None, strike)
        made[name] = DataLoader(data, collate_fn=collate, **options)
        options.pop("shuffle", None)
    return made


def torch_trainer(run_dir: Path | None, loaders: dict[str, Any], **settings: Any) -> Trainer:
    torch.manual_seed(1)
    model = Regression()
    settings = {"n_epochs": 1, "seed": 5, "snapshot_every": 2, "progress_bar": None, **settings}
    return Trainer(
        model,
        "torch",
        loaders["train"],
        torch.optim.Adam(model.parameters()),
        validate_dataloaders={"small": loaders["validate"]},
        metrics={"seen": Seen()},
        run_dir=run_dir,
        **settings,
    )


class Seen:
    """A metric: how many samples were seen."""

    def reset(self) -> None:
        self.n = 0

    def update(self, predicted: Any) -> None:
        self.n += len(predicted)

    def compute(self) -> int:
        return self.n


INDEXED = ["train: dataset", "train: collate", "validate: dataset", "validate: collate"]
STREAMED = ["train: stream", "train: stream collate", "validate: stream", "validate: stream collate"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("place", [*INDEXED, *STREAMED])
def test_data_that_cannot_be_read_end_the_run_with_their_own_error_and_its_samples(
    run_dir: Path, place: str, workers: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """L9, B30, R59: those of this batch; no worker is left, though the error is still at hand; a resume is exact."""
    trainer = torch_trainer(run_dir, loaders(place, workers, Raises(LookupError), 9))
    with pytest.raises(LookupError, match="unreadable") as caught:
        trainer.run()
    assert multiprocessing.active_children() == []
    assert trainer.exception is caught.value
    last = Journal(run_dir).last
    assert last is not None
    assert (last.event, last.data["kind"]) == ("Failed", "LookupError")
    assert last.source == ("fetch" if place.startswith("train") else "validate")
    notes = " ".join(caught.value.__notes__)  # type: ignore[attr-defined]
    assert ("evaluation loader 'small'" in notes) == place.startswith("validate")
    if place in INDEXED:
        assert 9 in ast.literal_eval(last.data["ids"])
        assert f"holds the samples {last.data['ids']}" in notes
    else:
        assert last.data["ids"] == ""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* (has no index|was taken when an error had struck)")
        again = torch_trainer(run_dir, loaders(place, workers, int, None))
        again.run(resume_from="auto")
    assert (again.journal.chain, weights(again)) == straight(  # type: ignore[union-attr]
        Path(tmp_path_factory.getbasetemp()), place.split(" ")[0], "stream" in place, workers
    )
    assert multiprocessing.active_children() == []


def weights(trainer: Trainer) -> list[list[float]]:
    return [parameter.flatten().tolist() for parameter in trainer.driver.model.parameters()]  # type: ignore[union-attr]


@functools.cache
def straight(at: Path, where: str, streamed: bool, workers: int) -> tuple[str, list[list[float]]]:
    """The end of a run that no error struck."""
    place = f"{where} {'stream' if streamed else 'dataset'}"
    trainer = torch_trainer(at / place / str(workers), loaders(place, workers, int, None))
    trainer.run()
    return trainer.journal.chain, weights(trainer)  # type: ignore[union-attr]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("place", [*INDEXED, *STREAMED])
def test_a_stop_iteration_in_reading_data_is_an_error_and_not_their_end(place: str, workers: int) -> None:
    """N1, B23: not of an epoch's, and not of a validation's, whose results would be of a part."""
    trainer = torch_trainer(None, loaders(place, workers, Raises(StopIteration), 9))
    with pytest.raises(RuntimeError, match="StopIteration") as caught:
        trainer.run()
    assert trainer.trainer_state.state == "exception"
    if place in INDEXED:
        notes = " ".join(caught.value.__notes__)  # type: ignore[attr-defined]
        assert "9" in notes.partition("the samples [")[2].partition("]")[0]
    assert multiprocessing.active_children() == []


def test_the_batch_before_is_not_blamed_for_an_error_of_a_sampler_or_of_the_next_fetch(run_dir: Path) -> None:
    """B30."""

    class Order(Sampler[int]):
        def __len__(self) -> int:
            return 12

        def __iter__(self) -> Iterator[int]:
            yield from (0, 1, 2, 3)
            raise LookupError("no order")

    cruel = loaders("train: dataset", 0, int, None)
    cruel["train"] = DataLoader(Cruel(), batch_size=2, sampler=Order())
    trainer = torch_trainer(run_dir / "torch", cruel)
    with pytest.raises(LookupError, match="no order") as caught:
        trainer.run()
    assert "samples" not in caught.value.__notes__[0]  # type: ignore[attr-defined]
    error = LookupError("no batch")
    trainer = build(run_dir / "stub", Capturing(on={"next_batch": Strike(error, 2)}))
    with pytest.raises(LookupError, match="no batch"):
        trainer.run()
    assert error.__notes__[0].endswith("the batch holds the samples [1]")  # type: ignore[attr-defined]
    error.__notes__ = []  # type: ignore[attr-defined]
    trainer.on(Events.on_validate_begin(once=1), Strike(error, 1))
    with pytest.raises(LookupError, match="no batch"):
        trainer.run()
    assert "samples" not in error.__notes__[0]  # type: ignore[attr-defined]


class Dies:
    """Ends a worker without a word."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __call__(self) -> None:
        if self.how == "exit":
            os._exit(3)
        os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("how", ["exit", "kill"])
@pytest.mark.parametrize("place", ["train: dataset", "validate: dataset"])
def test_a_worker_that_dies_ends_the_run_and_what_it_was_at_work_on_is_named(
    run_dir: Path, place: str, how: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """L9, B30, R59: though the batch that is waited for is another worker's, which hangs."""
    monkeypatch.setattr("torch.utils.data._utils.MP_STATUS_CHECK_INTERVAL", 0.1)
    os.mkfifo(tmp_path / "never")
    cruel = loaders(place, 2, Dies(how), 2)
    where = place.partition(":")[0]
    cruel[where] = DataLoader(Waiting(tmp_path / "never", Dies(how)), batch_size=2, num_workers=2)
    trainer = torch_trainer(run_dir, cruel)
    with pytest.raises(RuntimeError, match=r"DataLoader worker .*(exited unexpectedly|killed by signal)") as caught:
        trainer.run(num_eval_sanity_batch=0)
    last = Journal(run_dir).last
    assert last is not None
    assert (last.source, last.data["ids"]) == ("fetch" if where == "train" else "validate", "[2, 3]")
    assert caught.value is trainer.exception
    assert multiprocessing.active_children() == []


class Waiting(Cruel):
    """The first sample is waited for in vain, and at the third a worker dies."""

    def __init__(self, never: Path, strike: Callable[[], None]) -> None:
        super().__init__(2, strike)
        self.never = never

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 0:
            self.never.read_bytes()
        return super().__getitem__(index)


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}])
@pytest.mark.parametrize("place", ["a metric", "a signal", "the end", "a part"])
def test_no_worker_of_a_validation_outlives_the_run(place: str, options: dict[str, Any]) -> None:
    """R59: however it ended."""
    made = loaders("", 2, int, None, **options)
    trainer = torch_trainer(None, made, validate_every=2)
    alive: list[int] = []
    trainer.on(Events.on_validate_batch_end, lambda trainer: alive.append(len(multiprocessing.active_children())))
    if place == "a metric":
        trainer.on(Events.on_validate_batch_end, Strike(ValueError("x"), 4))
    if place == "a signal":
        told = Strike(SystemExit(0), 4)  # its count isn't a filter's, which would forget the half validation

        def tell(trainer: Any) -> None:
            with contextlib.suppress(SystemExit):
                told()
                return
            trainer.interrupt(signal.SIGTERM)

        trainer.on(Events.on_validate_batch_end, tell)
    with contextlib.suppress(ValueError, SystemExit):
        trainer.run(num_eval_batch_per_dl=2 if place == "a part" else -1)
    assert max(alive) >= 2
    assert multiprocessing.active_children() == []
    assert (trainer.trainer_state.state == "done") == (place != "a metric")
    assert trainer.run().state == "done"
    assert multiprocessing.active_children() == []


@pytest.mark.parametrize("workers", [0, 2])
def test_an_evaluator_on_its_own_names_the_samples_of_an_error_and_can_be_run_again(workers: int) -> None:
    """L9, R59."""
    model, once = Regression(), Strike(ValueError("x"), 3)
    loader = loaders("", workers, int, None)["validate"]
    evaluator = Evaluator(model, {"a": loader}, {"seen": Seen()}, verbose=0)
    evaluator.before_batch = once
    with pytest.raises(ValueError, match="x") as caught:
        evaluator.run_until(lambda: False)
    notes = caught.value.__notes__  # type: ignore[attr-defined]
    assert notes == ["in batch 2 of the evaluation loader 'a', which holds the samples [4, 5]"]
    assert multiprocessing.active_children() == []
    assert evaluator.run_until(lambda: False) == {"seen#a": 12}


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, GeneratorExit])
@pytest.mark.parametrize("place", INDEXED)
def test_what_user_code_raises_to_end_the_program_is_not_wrapped(place: str, kind: Any) -> None:
    """R25."""
    trainer = torch_trainer(None, loaders(place, 0, Raises(kind), 9))
    with pytest.raises(kind, match="unreadable") as caught:
        trainer.run()
    assert trainer.exception is caught.value
    assert trainer.trainer_state.state == "exception"


def test_a_worker_that_is_killed_while_the_model_is_at_work_ends_the_run(run_dir: Path, tmp_path: Path) -> None:
    """R59: torch tells it by a signal, at any moment."""
    made = loaders("", 2, int, None)
    trainer = torch_trainer(run_dir, made)

    def kill(trainer: Any, batch: Any, ids: Any) -> None:
        if trainer.global_forward_batches == 3:
            for child in multiprocessing.active_children():
                child.kill()
                os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)

    trainer.on(Events.on_train_batch_begin, kill)
    with pytest.raises(RuntimeError, match=r"is killed by signal: Killed|exited unexpectedly"):
        trainer.run(num_eval_sanity_batch=0)
    assert multiprocessing.active_children() == []
    assert transitions(run_dir)[-1].endswith("--Failed--> exception")
    again = torch_trainer(run_dir, loaders("", 2, int, None))
    again.run(num_eval_sanity_batch=0, resume_from="auto")
    unharmed = torch_trainer(tmp_path / "straight", loaders("", 2, int, None))
    unharmed.run(num_eval_sanity_batch=0)
    assert again.journal.chain == unharmed.journal.chain  # type: ignore[union-attr]
    assert weights(again) == weights(unharmed)


def test_an_error_is_logged_with_the_samples_of_its_batch_and_ctrl_c_is_not(caplog: pytest.LogCaptureFixture) -> None:
    """L9."""
    for error in (ValueError("x"), KeyboardInterrupt()):
        with pytest.raises(type(error)):
            build(None, Capturing(on={"train_step": Strike(error, 2)})).run()
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.getMessage() == (
        "ValueError in state 'step', epoch 0, batch 1, after transition 6; the batch holds the samples [1]"
    )


def test_of_a_large_batch_a_few_samples_are_said_and_the_journal_keeps_them_all(
    run_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """L9: a log line is for a person."""
    trainer = torch_trainer(run_dir, loaders("", 0, int, None), batch_step_fn=lambda trainer, batch: 1 / 0)
    trainer.train_dataloader = DataLoader(Indexed(64), batch_size=64)
    with pytest.raises(ZeroDivisionError) as caught:
        trainer.run(num_eval_sanity_batch=0)
    few = "the batch holds the samples [0, 1, 2, 3, 4, 5, 6, 7] and 56 more"
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert record.getMessage().endswith(few)
    assert caught.value.__notes__[0].endswith(few)  # type: ignore[attr-defined]
    last = Journal(run_dir).last
    assert last is not None
    assert last.data["ids"] == repr(list(range(64)))
