"""What is promised of the methods that a driver may leave out: those it brings are held to their word."""

from __future__ import annotations

import io
from typing import Any

from tachograph.drivers.driver import NO_BATCH, Driver
from tachograph.drivers.errors import RestoreFault

from .course import same_weights
from .subject import Subject, expect, overrides, refused


class OffersContract(Subject):
    """Tests of weights, models in files, averages, clipping, trials and overfitting, where a driver has them."""

    def test_weights_are_copied_and_put_back(self) -> None:
        course = self.course().go(1)
        driver = course.driver
        if not overrides(driver, "weights"):
            return
        held = driver.weights()
        expect(driver.has_weights(held), "has_weights must know the weights that weights() returned")
        expect(
            not self.straight(3).driver.has_weights(held), "has_weights must be False for the weights of another moment"
        )
        course.go(self.length())
        expect(not driver.has_weights(held), "weights() must be a copy, which training doesn't move")
        driver.put_weights(held)
        expect(driver.has_weights(held), "put_weights must put in place what weights() returned")
        expect(same_weights(self.straight(1).driver, driver), "put_weights must put in place all of the weights")

    def test_a_model_is_written_and_loaded(self) -> None:
        driver = self.straight(2).driver
        if not overrides(driver, "save_model"):
            return
        ranks, folder = driver.ranks, self.folder(driver.ranks)
        driver.save_model(folder / "model")
        written = io.BytesIO()
        driver.save_model(written)
        read, weights = ranks.share((written.getvalue(), driver.weights()))  # rank 0 writes, and all may read
        for source in (folder / "model", io.BytesIO(read)):
            other = self.ready()
            other.load_model(source)
            expect(other.has_weights(weights), "load_model must load what save_model wrote, into a file or a path")
        other = self.ready()
        if ranks.first:
            (folder / "foreign").write_bytes(b"no model")
        ranks.barrier()
        with refused(RestoreFault, "load_model of a file that holds no model"):
            other.load_model(folder / "foreign")
        expect(same_weights(self.ready(), other), "a refusal of load_model must change nothing")

    def test_an_average_is_kept_and_put_in_place_for_a_while(self) -> None:
        course = self.course().go(1)
        driver = course.driver
        if not overrides(driver, "averages"):
            return
        averages, first = driver.averages(buffers=True), driver.ranks.share(driver.weights())
        averages.add(0.5)
        folder = self.saved(driver, self._captured_and_moved_on(course, averages))
        extra, _ = self.ready().read(folder)
        trained = driver.weights()
        averages.load(extra["average"])
        with averages.applied():
            expect(averages.are_applied, "are_applied must be True while an average is applied")
            expect(
                driver.has_weights(first), "the first average is the weights themselves; a capture must have copied it"
            )
        expect(driver.has_weights(trained), "applied() must put back the weights that are trained")

    @staticmethod
    def _captured_and_moved_on(course: Any, averages: Any) -> Any:
        capture = course.driver.capture({"average": averages.state()})
        course.go(2)
        averages.add(0.5)
        return capture

    def test_gradients_are_clipped_to_a_norm(self) -> None:
        driver = self._with_gradients()
        if not overrides(driver, "clip_gradients_by_norm"):
            return
        before = float(driver.gradient_norm())
        was = float(driver.clip_gradients_by_norm(before / 2))
        expect(was == before, f"clip_gradients_by_norm must return the norm from before it: {before}, not {was}")
        after = float(driver.gradient_norm())
        expect(0 < after <= before / 2 * (1 + 1e-5), f"clipped at {before / 2}, the norm is {after}")

    def test_gradients_are_clipped_by_value(self) -> None:
        driver = self._with_gradients()
        if overrides(driver, "clip_gradients_by_value"):
            driver.clip_gradients_by_value(0.0)
            norm = float(driver.gradient_norm())
            expect(norm == 0, f"with every value cut off at 0, the norm is {norm}")

    def _with_gradients(self) -> Driver:
        course = self.course().fetch()
        driver = course.driver
        driver.backward(self.loss_of(driver.train_step(course.batch)), 1)
        driver.unscale()
        return driver

    def test_a_trial_leaves_no_trace(self) -> None:
        straight, loader = self.straight(self.length()), self.make()[1]
        driver = self.ready()
        if not overrides(driver, "untouched"):
            return
        with driver.untouched():
            for batch, _ in zip(driver.trial_batches(loader, self.seed), range(self.length() + 1), strict=False):
                driver.backward(self.loss_of(driver.train_step(batch)), 1)
                driver.optimizer_step()
                driver.zero_grad()
        differs = self.course(driver).go(self.length()).differs(straight)
        expect(not differs, f"untouched() must put back all that training moves: {differs}")

    def test_a_learning_rate_is_set(self) -> None:
        driver = self.ready()
        if overrides(driver, "set_learning_rate"):
            driver.set_learning_rate(0.125)
            rates = driver.learning_rates()
            expect(
                bool(rates) and set(rates) == {0.125}, f"after set_learning_rate(0.125) the learning rates are {rates}"
            )

    def test_overfitting_reads_the_same_batches_in_every_epoch(self) -> None:
        driver = self.built()
        if not overrides(driver, "overfit"):
            return
        driver.overfit(2)
        driver.setup(self.seed, True)
        epochs = [self._read(driver, epoch) for epoch in range(2)]
        expect(len(epochs[0]) == 2, f"overfit(2) leaves {len(epochs[0])} batches of an epoch")
        expect(epochs[0] == epochs[1], "overfit must use the batches of the first epoch in every epoch")

    @staticmethod
    def _read(driver: Driver, epoch: int) -> list[Any]:
        driver.open_epoch(epoch, 0, 0)
        read = []
        while driver.next_batch() is not NO_BATCH:
            read.append(list(driver.batch_ids or ()))
        return read


__all__ = ["OffersContract"]
