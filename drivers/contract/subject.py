"""What a contract is held against, and what its tests are made of: drivers built anew, folders, sentences.

This package imports no torch: batches, outputs and captures pass through it unopened, as through an engine.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from tachograph.drivers.driver import NO_BATCH, Driver
from tachograph.drivers.ranks import ALONE, Ranks

from .course import Course, Place


def expect(holds: bool, sentence: str) -> None:
    """Raise `AssertionError` with a sentence on what is promised, unless it holds."""
    if not holds:
        raise AssertionError(sentence)


@contextmanager
def refused(kind: type[BaseException], what: str) -> Iterator[None]:
    """Expect the body to raise an error of a kind.

    Args:
        kind: of the error.
        what: the body does, for the sentence when it raises nothing.
    """
    try:
        yield
    except kind:
        return
    raise AssertionError(f"{what} must raise {kind.__name__}")


class Subject:
    """A driver with a small training for it; subclass a contract and override `make`.

    Attributes:
        seed: of the trainings.
    """

    seed: int = 7
    _ranks: Ranks = ALONE
    _stack: ExitStack | None = None

    def make(self) -> tuple[Driver, Any, Any]:
        """Build everything anew, as a script does after a crash, and equal each time.

        Returns:
            The driver, with its model; a training loader of 3 batches at least; and what `set_optimizers` takes. The
            model's loss depends on its weights and on random draws (dropout, say), so that one bit that is lost shows.
        """
        raise NotImplementedError(f"{type(self).__name__} must override make()")

    def evaluation_loader(self) -> Any:
        """Build a loader for evaluations, whose batches are the same each time; by default, the training loader."""
        return self.make()[1]

    def loss_of(self, outputs: Any) -> Any:
        """Return the loss in what `train_step` returned."""
        return outputs["loss"] if isinstance(outputs, Mapping) else outputs.loss

    def ids_in(self, batch: Any) -> list[Any] | None:
        """Return the ids of a training batch's samples, as the batch itself tells them; None: it doesn't."""
        return None

    def failures(self, most: int = -1) -> dict[str, BaseException]:
        """Run every test without pytest, each on an object of its own; all ranks call it.

        One rank's failure ends the others too, since they would wait for it.

        Args:
            most: leave off after so many failures; -1 goes through all.

        Returns:
            The tests that failed, and of what.
        """
        failed: dict[str, BaseException] = {}
        for name in [name for name in dir(self) if name.startswith("test_")]:
            one = type(self)()
            try:
                one.run(name)
            except Exception as error:
                failed[name] = error
                most = 1 if one._ranks.world_size > 1 else most
            if len(failed) == most:
                break
        return failed

    def run(self, name: str) -> None:
        """Run a test, and clear up after it; the other ranks learn of it if it fails."""
        try:
            getattr(self, name)()
        except Exception as error:
            self._ranks.note_failure(error, f"in {name}")
            raise
        finally:
            self.teardown_method()

    # -- what the tests use --------------------------------------------------------------------------------

    @property
    def stack(self) -> ExitStack:
        """Closed when a test ends."""
        if self._stack is None:
            self._stack = ExitStack()
        return self._stack

    def teardown_method(self) -> None:
        """Close the drivers of a test, and remove its folders; pytest calls it after each."""
        stack, self._stack = self._stack, None
        if stack is not None:
            stack.close()

    def built(self, most: int = -1) -> Driver:
        """A driver with its loader and its optimizers, not set up yet."""
        driver, loader, optimizers = self.make()
        self._ranks = driver.ranks
        self.stack.callback(driver.close)
        driver.set_optimizers(optimizers)
        driver.set_dataloader(loader, most)
        return driver

    def ready(self, most: int = -1) -> Driver:
        """A driver at the beginning of a run; all of them are equal."""
        driver = self.built(most)
        driver.setup(self.seed, True)
        driver.seed_generators(self.seed)
        driver.zero_grad()
        driver.train_mode()
        return driver

    def course(self, driver: Driver | None = None, window: int = 2) -> Course:
        """A run at its beginning."""
        return Course(self.ready() if driver is None else driver, self.loss_of, window)

    def straight(self, batches: int, window: int = 2) -> Course:
        """A run that nothing happens to, after so many batches."""
        return self.course(window=window).go(batches)

    def length(self) -> int:
        """How many batches an epoch has, found by reading one."""
        driver = self.ready()
        driver.open_epoch(0, 0, 0)
        n = 0
        while driver.next_batch() is not NO_BATCH:
            n += 1
        return n

    def folder(self, ranks: Ranks) -> Path:
        """An empty folder, the same on all ranks."""
        path = self.stack.enter_context(tempfile.TemporaryDirectory()) if ranks.first else ""
        self.stack.callback(ranks.barrier)  # it is removed when nobody reads there any more
        return Path(ranks.share(path))

    def saved(self, driver: Driver, capture: Any) -> Path:
        """A folder that a capture was written into, by another thread."""
        folder = self.folder(driver.ranks)
        errors: list[BaseException] = []

        def save() -> None:
            try:
                driver.save(capture, folder)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=save)
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        driver.ranks.barrier()
        return folder

    def snapshot(self, course: Course) -> tuple[Path, Place]:
        """Capture a run where it stands, and write it."""
        return self.saved(course.driver, course.driver.capture({}, course.batch)), course.place

    def resumed(self, folder: Path, place: Place, window: int = 2) -> Course:
        """A run of objects built anew that goes on from a snapshot, in a process that drew other numbers before."""
        driver = self.built()
        driver.seed_generators(self.seed + 1)
        driver.setup(self.seed, True)
        _, held = driver.read(folder)
        batch = driver.restore(held)
        course = Course(driver, self.loss_of, window, place).enter(batch)
        expect(driver.restore_generators() == "", "restore_generators returns '' when no generator was passed over")
        return course

    def evaluated(self, driver: Driver, loader: Any, most: int = -1) -> list[Any]:
        """Evaluate as an engine does, on so many batches; the outputs as plain data."""
        outputs: list[Any] = []
        turns = self._turns(driver, loader, most)
        driver.evaluates = True
        try:
            with driver.forked(), driver.evaluating(driver.model):
                evaluate = driver.evaluate_fn(driver.model, "validate")
                with closing(driver.evaluation_batches(loader)) as batches:
                    for raw in batches:
                        if len(outputs) == most:
                            break
                        outputs.append(driver.plain(driver.to_host(evaluate(driver.to_device(raw)))))
                for _ in range(turns - len(outputs)):
                    evaluate(driver.to_device(raw))  # other ranks wait for it
        finally:
            driver.evaluates = False
        return outputs

    @staticmethod
    def _turns(driver: Driver, loader: Any, most: int) -> int:
        """How often each rank calls the model in an evaluation, where that must be equally often; else 0."""
        rounds = driver.share_of(loader).rounds if driver.keeps_step else None
        return 0 if rounds is None else rounds if most < 0 else min(rounds, most)


def overrides(driver: Driver, name: str) -> bool:
    """Say whether a driver brings an optional method of its own."""
    return getattr(type(driver), name) is not getattr(Driver, name)


__all__ = ["Subject", "expect", "overrides", "refused"]
