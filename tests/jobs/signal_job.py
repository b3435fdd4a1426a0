"""A short run without torch that stands still in one place, so that a signal strikes it just there.

    python signal_job.py RUN_DIR PLACE [SETTINGS]

It prints "here" when it has come to the place, and waits there for a byte on standard input, as often as it is told to.
SETTINGS is a JSON object of `main`'s arguments, and of the trainer's.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tachograph.drivers import StubDriver
from tachograph.engine import Callback, Events, Trainer
from tachograph.engine.callbacks.callback import MOMENTS

METHODS = {
    "the start": ("setup", 1),
    "the sanity check": ("evaluate_step", 1),
    "a fetch": ("next_batch", 5),
    "a step": ("train_step", 5),
    "a validation": ("evaluate_step", 5),  # two are the sanity check's; it has four batches
    "the end of a validation": ("compute", 2),
    "a snapshot": ("save", 1),
    "the reading of a snapshot": ("read", 1),
    "the clean-up": ("close", 1),
}
"""Places inside the work of a state or of the engine: which method is slow, and at which of its calls."""
POINTS = {
    "a listener": ("on_train_batch_end", 4),
    "a listener inside a step": ("on_after_backward", 4),
    "a listener inside a validation": ("on_validate_batch_end", 5),
    "an epoch's end": ("on_train_epoch_end", 2),
    "the last transition": ("on_train_end", 1),
}
"""Places inside a listener."""


class Place:
    """Stands still at its call number `at`.

    Args:
        at: which call; 0: none.
        twice: stand there a second time, once the trainer has been told of the first signal.

    Attributes:
        trainer: whose place it is.
    """

    trainer: Trainer

    def __init__(self, at: int, twice: bool) -> None:
        self._left = at
        self._twice = twice

    def __call__(self, *_: Any) -> None:
        self._left -= 1
        if self._left == 0:
            self._stand()
            if self._twice:
                while not self.trainer.interrupted():  # a signal is told to the main thread, which may not be this one
                    time.sleep(0.001)
                self._stand()

    def _stand(self) -> None:
        print("here", flush=True)
        os.read(0, 1)


class Sum:
    """A metric."""

    def __init__(self, called: Callable[..., None] = lambda: None) -> None:
        self.called = called
        self.reset()

    def update(self, value: int) -> None:
        self.total += value

    def compute(self) -> int:
        self.called()
        return self.total

    def reset(self) -> None:
        self.total = 0


class Tally(Callback):
    """Counts the batches of validations, on and on."""

    def __init__(self) -> None:
        self.seen = 0

    def on_validate_batch_end(self, trainer: Any) -> None:
        self.seen += 1
        trainer.state["seen"] = trainer.state.get("seen", 0) + 1

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


class Slow(StubDriver):
    """A driver that is slow where it saves, reads or closes, too."""

    def __init__(self, on: dict[str, Callable[..., None]]) -> None:
        super().__init__(on=on)

    def save(self, capture: Any, directory: Path) -> Any:
        self._called("save")
        return super().save(capture, directory)

    def read(self, directory: Path, **how: Any) -> Any:
        self._called("read")
        return super().read(directory, **how)

    def close(self) -> None:
        self._called("close")


def count(trainer: Any) -> None:
    """Hear every third batch of the validations, on and on."""
    trainer.state["thirds"] = trainer.state.get("thirds", 0) + 1


def build(run_dir: Any, place: str = "", twice: bool = False, **settings: Any) -> Trainer:
    """Build the run: three epochs of three batches, a validation of four every two batches."""
    method, at = METHODS.get(place, ("", 0))
    point, at = POINTS.get(place, (place, at or 1))  # or the name of a state: where it is entered first
    slow = Place(at, twice)
    settings = {"snapshot_every": 2 if place == "a snapshot" else None, **settings}
    slow.trainer = trainer = Trainer(
        None,
        Slow({method: slow}),
        [3, 1, 4],
        None,
        n_epochs=3,
        accumulation_steps=2,
        metrics={"m": Sum(slow if method == "compute" else lambda: None)},
        validate_dataloaders=[5, 6, 7, 8],
        validate_every=2,
        callbacks=Tally(),
        run_dir=run_dir,
        seed=11,
        progress_bar=None,
        **settings,
    )
    trainer.on(Events.on_validate_batch_end(every=3), count)
    if point in trainer.machine.names or point in MOMENTS:
        trainer.on(point, slow, priority=-1)
    return trainer


def main(
    run_dir: str,
    place: str,
    *,
    twice: bool = False,
    thread: bool = False,
    own: bool = False,
    catch: Any = None,
    environ: Mapping[str, str] = MappingProxyType({}),
    **settings: Any,
) -> None:
    """Run it, and say what the script sees then.

    Args:
        run_dir: where.
        place: where it stands still.
        twice: stand there once more when it has been told of the first signal.
        thread: run outside the main thread.
        own: have a SIGTERM handler of one's own, which asks the trainer to end as SIGTERM does.
        catch: `catch_KeyboardInterrupt`.
        environ: added to the environment.
        settings: of the trainer.
    """
    os.environ.update(environ)
    trainer = build(run_dir, place, twice, **settings)
    if own:
        signal.signal(signal.SIGTERM, lambda number, frame: trainer.interrupt(number))

    def run() -> None:
        state = trainer.run(resume_from="auto", catch_KeyboardInterrupt=catch)
        print(f"the script goes on: {state.state} {type(trainer.exception).__name__}")

    if not thread:
        return run()
    beside = threading.Thread(target=run)
    beside.start()
    return beside.join()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], **json.loads(sys.argv[3] if len(sys.argv) > 3 else "{}"))
