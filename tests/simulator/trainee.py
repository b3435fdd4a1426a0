"""The trainer of a simulation: `StubDriver`, and listeners of every kind that must come out of it the same."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from tachograph.drivers import StubDriver
from tachograph.engine import Callback, EarlyStopping, Events, Trainer
from tachograph.engine.journal import write_file

from .disk import Disk
from .plan import Life, Settings
from .world import world_of

_WORK = (
    "setup",
    "open_epoch",
    "next_batch",
    "train_step",
    "backward",
    "scale_gradients",
    "optimizer_step",
    "zero_grad",
    "evaluate_step",
)
Heard = tuple[int, str]
"""(transition, moment)"""


class Driver(StubDriver):
    """The stub, on the simulated disk; saving and restoring are moments of its own."""

    def __init__(self, disk: Disk, pass_by: Callable[[str], None], **script: Any) -> None:
        super().__init__(on={name: lambda driver, name=name: pass_by(name) for name in _WORK}, **script)
        self._disk = disk
        self._pass_by = pass_by

    def save(self, capture: Any, directory: Path) -> dict[str, tuple[int, str]]:
        self._pass_by("save")
        write_file(self._disk, directory / "rank-0.json", capture)
        return {"rank-0.json": (len(capture), hashlib.blake2b(capture, digest_size=16).hexdigest())}

    def capture(self, *args: Any) -> Any:
        self._pass_by("capture")
        return super().capture(*args)

    def restore(self, *args: Any, **how: Any) -> Any:
        self._pass_by("restore")
        return super().restore(*args, **how)


class Score:
    """A metric that depends on the weight and on every batch."""

    def __init__(self) -> None:
        self.total = 0

    def update(self, value: int, weight: int) -> None:
        self.total = (self.total * 3 + value + weight) % 101

    def compute(self) -> int:
        return self.total

    def reset(self) -> None:
        self.total = 0


class Listener(Callback):
    """Hears what hangs on transitions of several kinds."""

    def hear(self, trainer: Any, moment: str) -> None:
        """Hear one of them."""

    def on_train_begin(self, trainer: Any) -> None:
        self.hear(trainer, "begin")

    def on_train_batch_end(self, trainer: Any) -> None:
        self.hear(trainer, "batch")

    def on_validate_end(self, trainer: Any, results: dict[str, Any]) -> None:
        self.hear(trainer, "validation")

    def on_train_epoch_end(self, trainer: Any) -> None:
        self.hear(trainer, "epoch")

    def on_train_end(self, trainer: Any) -> None:
        self.hear(trainer, "end")


class Diary(Listener):
    """Remembers all that it heard, as it was when it was restored."""

    def __init__(self, life: list[Heard], pass_by: Callable[[str], None]) -> None:
        self.pages: list[list[Any]] = []
        self.life = life
        self.pass_by = pass_by

    def hear(self, trainer: Any, moment: str) -> None:
        self.pass_by("first listener")
        self.life.append((trainer.trainer_state.seq, moment))
        self.pages.append([trainer.trainer_state.seq, moment])

    def on_validate_batch_end(self, trainer: Any) -> None:
        self.pages.append([trainer.trainer_state.seq, "an evaluation batch"])

    def state_dict(self) -> dict[str, Any]:
        return {"pages": self.pages}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.pages = [list(page) for page in state["pages"]]


class Wire(Listener):
    """Tells the outside world what happens."""

    outside_effects = True

    def __init__(self, told: list[Heard]) -> None:
        self.told = told

    def hear(self, trainer: Any, moment: str) -> None:
        self.told.append((trainer.trainer_state.seq, moment))


class Process:
    """One process that trains: fresh objects, on the disk that the one before left.

    Args:
        settings: what it trains.
        life: what befalls it.
        disk: the disk.
        rng: decides when background work is done.
        pass_by: called at every moment with (process, its name), and may strike there.

    Attributes:
        moments: how many moments were passed.
        told: what the outside world heard of it.
        heard: what the diary heard in this life.
        positions: (transition, chain) as its first listener found them.
        notices: what it had to say.
    """

    def __init__(
        self, settings: Settings, life: Life, disk: Disk, rng: Random, pass_by: Callable[[Process, str], None]
    ) -> None:
        self.settings = settings
        self.disk = disk
        self.moments = 0
        self.told: list[Heard] = []
        self.heard: list[Heard] = []
        self.notices: list[str] = []
        self._pass_by = pass_by
        world, self.beside = world_of(disk, rng, settings.eagerness, settings.segment)
        self.driver = Driver(disk, self.pass_by, known_length=settings.known, skip=settings.skip)
        evaluated = bool(settings.evaluation)
        self.trainer = Trainer(
            None,
            self.driver,
            list(range(3, 3 + settings.batches)),
            None,
            n_epochs=life.n_epochs,
            n_batches=settings.n_batches,
            max_time=life.max_time,
            accumulation_steps=settings.accumulation,
            accumulation_tail=settings.tail,
            metrics={"m": Score()} if evaluated else None,
            validate_dataloaders=list(range(settings.evaluation)) if evaluated else None,
            validate_every=settings.validate_every,
            snapshot_every=life.snapshot_every,
            keep_snapshots=settings.keep,
            on_snapshot_fault=settings.on_fault,
            callbacks=self._callbacks(),
            monitor="m",
            run_dir=disk.root / "run",
            seed=settings.seed,
            progress_bar=None,
        )
        self.trainer.world = world
        self._listen()

    def _callbacks(self) -> list[Callback]:
        stopping = [] if self.settings.patience is None else [EarlyStopping(patience=self.settings.patience)]
        return [Diary(self.heard, self.pass_by), Wire(self.told), *stopping]

    def _listen(self) -> None:
        trainer = self.trainer
        trainer.on("step -> fetch", self._ask)
        trainer.on(Events.on_train_batch_end(every=3), self._count_third)
        trainer.on(Events.on_train_batch_end(once=[2, 5]), self._note_weight)
        trainer.on(Events.on_before_optimizer_step(every=2), self._count_update)
        trainer.on("on_notice", lambda trainer, text: self.notices.append(text))

    # -- listeners -----------------------------------------------------------------------------------------

    def _ask(self, trainer: Any) -> None:
        self.pass_by("last listener")
        done = trainer.global_forward_batches
        if done in self.settings.snapshots_at:
            trainer.request_snapshot()
        if done == self.settings.cut_at:
            trainer.end_epoch("enough of it")
        if done == self.settings.stop_at:
            trainer.stop("enough")

    def _count_third(self, trainer: Any) -> None:
        trainer.state["thirds"] = trainer.state.get("thirds", 0) + 1

    def _note_weight(self, trainer: Any) -> None:
        trainer.state["weights"] = [*trainer.state.get("weights", []), self.driver.weight]

    def _count_update(self, trainer: Any, optimizers: Any) -> None:
        trainer.state["updates"] = trainer.state.get("updates", 0) + 1

    # -- what a simulation asks ----------------------------------------------------------------------------

    def pass_by(self, moment: str) -> None:
        """Pass a moment: other threads have a turn, and something may strike."""
        if not self.disk.beside and not self.disk.dead:
            self.moments += 1
            self.beside.pass_by()
        self._pass_by(self, moment)

    def run(self, source: Any = "auto") -> Any:
        """Go on with the run, or begin it; without a source, go on with what this process has run."""
        return self.trainer.run(
            num_train_batch_per_epoch=self.settings.used,
            num_eval_sanity_batch=self.settings.sanity,
            resume_from=source,
            catch_KeyboardInterrupt=False,
        )

    def run_again(self) -> Any:
        """Go on where this process has ended."""
        self.trainer.n_epochs, self.trainer.max_time = self.settings.n_epochs, None
        return self.run(None)

    def end(self) -> dict[str, Any]:
        """Return all that must be equal to the straight run's: model, generators, counters, every listener's memory."""
        trainer, driver = self.trainer, self.driver
        memory = trainer.listeners.state_dict(trainer)
        diary = memory["callbacks"]["Diary"]
        diary["pages"] = [page for page in diary["pages"] if page[1] != "end"]  # one that goes on heard it twice
        return {
            "state": trainer.trainer_state,
            "weight": driver.weight,
            "gradient": driver.gradient,
            "generator": driver.generator,
            "user": dict(trainer.state),
            **{f"{kind} {key}": held for kind in memory for key, held in memory[kind].items()},
        }
