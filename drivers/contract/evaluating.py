"""What is promised of evaluation: it scores what it is given, and training doesn't notice it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any

from tachograph.drivers.lengths import length_of

from .course import Course, same_weights
from .subject import Subject, expect, overrides


class EvaluatingContract(Subject):
    """Tests of `evaluating`, `evaluate_fn`, `evaluation_batches` and what is done with outputs."""

    def test_an_evaluation_leaves_no_trace_in_training(self) -> None:
        straight = self.straight(self.length() + 2)
        for done in (0, 1, 2, self.length()):
            loader, course = self.evaluation_loader(), self.course().go(done)
            self.evaluated(course.driver, loader)
            self._expect_no_trace(course, straight, f"an evaluation after {done} batches")

    def test_an_evaluation_with_a_batch_in_hand_leaves_no_trace(self) -> None:
        straight, loader = self.straight(self.length() + 2), self.evaluation_loader()
        course = self.course().go(1).fetch()
        driver = course.driver
        ids, samples = driver.batch_ids, driver.batch_samples
        self.evaluated(driver, loader)
        expect(driver.batch_ids == ids, "an evaluation must leave batch_ids as they are")
        expect(driver.batch_samples == samples, "an evaluation must leave batch_samples as it is")
        self._expect_no_trace(course, straight, "an evaluation with a batch in hand")

    def test_an_evaluation_that_an_error_ends_leaves_no_trace(self) -> None:
        straight, loader = self.straight(self.length() + 2), self.evaluation_loader()
        course = self.course().go(1)
        driver = course.driver
        try:
            with (
                driver.forked(),
                driver.evaluating(driver.model),
                closing(driver.evaluation_batches(loader)) as batches,
            ):
                evaluate = driver.evaluate_fn(driver.model, "validate")
                for raw in batches:
                    evaluate(driver.to_device(raw))
                    raise KeyError("in the midst of it")
        except KeyError:
            pass
        self._expect_no_trace(course, straight, "an evaluation that an error ended")

    def test_the_model_is_in_evaluation_mode(self) -> None:
        one, other = self._twice(eval_mode=True)
        expect(one == other, "in evaluation mode, a batch must have the same outputs each time")

    def test_a_model_may_be_left_in_its_own_mode(self) -> None:
        loader, fresh, driver = self.evaluation_loader(), self.ready(), self.ready()
        if not overrides(driver, "evaluating"):
            return  # there are no modes
        one, other = self._twice(eval_mode=False)
        expect(one != other, "with eval_mode=False the model must stay in training mode, and draw")
        with driver.forked(), driver.evaluating(driver.model, False):
            evaluate = driver.evaluate_fn(driver.model, "validate")
            with closing(driver.evaluation_batches(loader)) as batches:
                evaluate(driver.to_device(next(batches)))
        expect(same_weights(fresh, driver), "evaluating(model, False) must put back what a model keeps for itself")

    def test_outputs_do_not_depend_on_when_they_are_made(self) -> None:
        loader, driver = self.evaluation_loader(), self.ready()
        first = self.evaluated(driver, loader)
        (batches,) = driver.ranks.sums([len(first)])
        length = length_of(loader)
        expect(length in (None, batches), f"of {length} batches, evaluation_batches gave {batches}, over all ranks")
        expect(self.evaluated(driver, loader) == first, "every evaluation must give the same outputs")
        expect(self.evaluated(driver, loader, 1) == first[:1], "an evaluation may be closed after any batch")
        expect(self.evaluated(driver, loader) == first, "an evaluation must begin anew after one that was closed")
        driver.release(loader)
        expect(self.evaluated(driver, loader) == first, "a loader that was released can be evaluated on again")

    def test_outputs_depend_on_the_weights(self) -> None:
        loader, course = self.evaluation_loader(), self.course()
        before = self.evaluated(course.driver, loader)
        course.go(self.length())
        expect(self.evaluated(course.driver, loader) != before, "evaluate_fn must use the weights that are trained")

    def test_samples_are_counted(self) -> None:
        loader, driver = self.evaluation_loader(), self.ready()
        with driver.forked(), driver.evaluating(driver.model), closing(driver.evaluation_batches(loader)) as batches:
            for raw in batches:
                ids, samples = driver.evaluation_ids, driver.samples_of(driver.to_device(raw), True)
                expect(samples > 0, "samples_of must be > 0 for every batch")
                expect(ids is None or len(ids) == samples, "samples_of must count evaluation_ids")

    def test_numbers_are_their_own_mean(self) -> None:
        driver = self.ready()
        expect(driver.mean_of(3) == 3, "mean_of(3) must be 3")
        expect(driver.mean_of("three") is None, "mean_of must be None for what is no number")
        expect(driver.plain({"a": [1, 2.5]}) == {"a": [1, 2.5]}, "plain must leave plain data as it is")

    # -- how -----------------------------------------------------------------------------------------------

    def _expect_no_trace(self, course: Course, straight: Course, after: str) -> None:
        differs = course.go(len(straight.rows) - len(course.rows)).differs(straight)
        expect(not differs, f"{after} must leave no trace: {differs}")

    def _twice(self, eval_mode: bool) -> list[Any]:
        """Outputs of one batch, made twice in one evaluation, without what they were made of."""
        made: list[Any] = []
        loader, driver = self.evaluation_loader(), self.ready()
        with driver.forked(), driver.evaluating(driver.model, eval_mode):
            evaluate: Callable[[Any], Any] = driver.evaluate_fn(driver.model, "validate")
            with closing(driver.evaluation_batches(loader)) as batches:
                batch = driver.to_device(next(batches))
                for _ in range(2):
                    made.append(driver.plain(driver.to_host(evaluate(batch))))
        return made


__all__ = ["EvaluatingContract"]
