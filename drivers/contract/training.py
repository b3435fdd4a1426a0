"""What is promised of a training step: gradients, updates, losses, generators."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tachograph.drivers.driver import Driver

from .course import Course, same_weights
from .subject import Subject, expect, overrides

_PASSES = 4
Act = Callable[[Driver, Any], None]
"""Something done to a driver and the loss of a batch."""


def back(divisor: int) -> Act:
    """A backward pass."""
    return lambda driver, loss: driver.backward(loss, divisor)


def scaled(factor: float) -> Act:
    """All gradients times a factor."""
    return lambda driver, loss: driver.scale_gradients(factor)


def cleared(driver: Driver, loss: Any) -> None:
    """Gradients are dropped."""
    driver.zero_grad()


def left_out(driver: Driver, loss: Any) -> None:
    """An update that somebody has looked at isn't taken."""
    driver.unscale()
    driver.leave_out_step()
    driver.zero_grad()


class TrainingContract(Subject):
    """Tests of `train_step`, `backward`, `optimizer_step`, `measure`, the generators and what is between them."""

    def test_equal_runs_are_equal(self) -> None:
        n = self.length() + 2
        for window in (1, 2, 3):
            differs = self.straight(n, window).differs(self.straight(n, window))
            expect(not differs, f"two runs built alike must be equal, with windows of {window}: {differs}")

    def test_the_model_draws_so_that_these_tests_can_fail(self) -> None:
        course = self.course()
        course.fetch()
        one, two = self._loss(course), self._loss(course)
        expect(repr(one) != repr(two), "make() must give a model that draws at random: its loss must differ each time")

    def test_seeded_alike_it_draws_alike(self) -> None:
        course = self.course()
        course.fetch()
        first = self._loss(course)
        course.driver.seed_generators(self.seed + 1)
        other = self._loss(course)
        course.driver.seed_generators(self.seed)
        again = self._loss(course)
        expect(repr(first) == repr(again), "seed_generators must bring back every generator that training draws from")
        expect(repr(first) != repr(other), "seed_generators must give other draws for another seed")

    def test_the_digest_of_generators_moves_with_draws(self) -> None:
        course = self.course().fetch()
        driver, before = course.driver, course.driver.rng_digest()
        with driver.forked():
            self._loss(course)
            moved = driver.rng_digest()
        if overrides(driver, "rng_digest"):
            expect(moved != before, "rng_digest() must move with a draw")
        expect(driver.rng_digest() == before, "forked() must put back the generators")

    def test_draws_in_a_fork_leave_no_trace_whatever_is_raised_in_it(self) -> None:
        course = self.course().fetch()
        first = self._loss(self.course().fetch())
        course = self.course().fetch()
        try:
            with course.driver.forked():
                self._loss(course)
                raise KeyError("out of the fork")
        except KeyError:
            pass
        expect(repr(self._loss(course)) == repr(first), "forked() must put back the generators after an error too")

    # -- gradients -----------------------------------------------------------------------------------------

    def test_gradients_are_added_and_divided_as_was_said(self) -> None:
        alike: Sequence[tuple[str, list[Act], list[Act]]] = (
            ("backward(loss, 2) and scale_gradients(2) are backward(loss, 1)", [back(2), scaled(2.0)], [back(1)]),
            ("backward(loss, 4) and scale_gradients(2) are backward(loss, 2)", [back(4), scaled(2.0)], [back(2)]),
            ("zero_grad() clears all gradients", [back(2), cleared, back(1)], [back(1)]),
            ("zero_grad() clears scaled gradients", [back(1), scaled(2.0), cleared, back(1)], [back(1)]),
        )
        for sentence, one, other in alike:
            expect(self._alike(one, other), f"promised: {sentence}")

    def test_gradients_differ_where_they_should(self) -> None:
        different: Sequence[tuple[str, list[Act], list[Act]]] = (
            ("backward adds to the gradients there are", [back(1), back(1)], [back(1)]),
            ("the divisor counts", [back(4)], [back(1)]),
            ("scale_gradients counts", [back(1), scaled(0.25)], [back(1)]),
        )
        for sentence, one, other in different:
            expect(not self._alike(one, other), f"promised: {sentence}; the updates are the same")

    def test_an_update_that_is_left_out_leaves_no_trace(self) -> None:
        alike = self._alike([back(2), left_out, back(1)], [back(2), cleared, back(1)])
        expect(alike, "unscale() and leave_out_step() must leave the next update as it would have been")

    def test_looking_at_gradients_changes_no_update(self) -> None:
        looked: list[Act] = [back(1), lambda driver, loss: driver.unscale(), _look]
        expect(self._alike(looked, [back(1)]), "unscale() before an update must leave it as it is")

    def test_an_update_moves_the_weights_if_and_only_if_it_is_taken(self) -> None:
        course, moves = self.course(), []
        driver = course.driver
        for _ in range(self.length()):
            driver.backward(self._raw_loss(course.fetch()), 1)
            before = driver.weights() if overrides(driver, "weights") else None
            taken = driver.optimizer_step()
            driver.zero_grad()
            expect(type(taken) is bool, "optimizer_step must return True or False")
            moved = taken if before is None else not driver.has_weights(before)
            expect(taken or not moved, "optimizer_step returned False, and has moved the weights")
            expect(moved or not taken, "optimizer_step returned True, and has moved no weight")
            moves.append(moved)
        expect(any(moves), "optimizer_step must move the weights at least once in an epoch")

    def test_gradients_that_were_kept_back_are_exchanged_later(self) -> None:
        def kept_back(driver: Driver, batch: Any) -> None:
            with driver.no_sync():
                driver.backward(self.loss_of(driver.train_step(batch)), 1)
            driver.exchange_gradients()

        def at_once(driver: Driver, batch: Any) -> None:
            driver.backward(self.loss_of(driver.train_step(batch)), 1)

        drivers, losses = [], []
        for act in (kept_back, at_once):
            course = self.course().fetch()
            act(course.driver, course.batch)
            course.driver.optimizer_step()
            drivers.append(course.driver)
            losses.append(repr(self._loss(course)))
        expect(
            losses[0] == losses[1] and same_weights(*drivers),
            "no_sync() and exchange_gradients() must make the update of a plain backward pass",
        )

    # -- what is measured ----------------------------------------------------------------------------------

    def test_every_loss_is_handed_out_once(self) -> None:
        course, losses = self.course(), {}
        for seq in range(1, self.length() + 1):
            course.fetch()
            losses[seq] = float(course.driver.plain(self._loss_kept(course)))
            course.step()
        course.late()
        expect(course.driver.measured_late() == [], "measured_late must hand out each loss once")
        expect(
            sorted(course.losses) == sorted(losses), f"of the steps {list(losses)}, {list(course.losses)} had a loss"
        )
        kinds = {type(loss) for loss in course.losses.values()}
        expect(kinds == {float}, f"losses must be handed out as floats, not as {sorted(k.__name__ for k in kinds)}")
        for seq, loss in losses.items():
            held = course.losses[seq]
            expect(repr(held) == repr(loss), f"measure: the loss of step {seq} is {loss}, and {held} was handed out")

    def test_a_step_without_a_loss_has_none(self) -> None:
        driver = self.ready()
        now, late = driver.measure(None, 1)
        expect(now is None, "measure(None, seq) must return no loss")
        handed_out = [*([late] if late else []), *driver.measured_late()]
        expect(all(loss is None for _, loss in handed_out), "a loss of None must be handed out as None")

    def test_a_loss_that_is_not_finite_is_seen(self) -> None:
        course = self.course().fetch()
        driver, loss = course.driver, self._raw_loss(course)
        finite = math.isfinite(float(driver.plain(loss)))
        expect(driver.is_finite(loss) == finite, f"is_finite must be {finite} for {loss}")
        for number in (math.nan, math.inf, -math.inf):
            expect(not driver.is_finite(number), f"is_finite must be False for {number}")
            expect(not driver.is_finite(loss * number), f"is_finite must be False for {loss} times {number}")

    def test_learning_rates_are_floats(self) -> None:
        rates = self.ready().learning_rates()
        expect(isinstance(rates, list) and all(type(rate) is float for rate in rates), "learning_rates must be floats")

    # -- how -----------------------------------------------------------------------------------------------

    def _raw_loss(self, course: Course) -> Any:
        return self.loss_of(course.driver.train_step(course.batch))

    def _loss(self, course: Course) -> float:
        """The loss of the batch in hand, without a backward pass."""
        return float(course.driver.plain(self._raw_loss(course)))

    def _loss_kept(self, course: Course) -> Any:
        """The loss that the step to come will have."""
        with course.driver.forked():
            return self._raw_loss(course)

    def _alike(self, one: list[Act], other: list[Act]) -> bool:
        """Say whether an update is the same after either of two."""
        (driver, loss), (second, its) = self._updated(one), self._updated(other)
        return repr(loss) == repr(its) and same_weights(driver, second)

    def _updated(self, acts: list[Act]) -> tuple[Driver, float]:
        """A driver after an update, and the loss of the same batch then.

        Every pass goes through the model anew, on the same batch and draws.
        """
        course = self.course().fetch()
        driver = course.driver
        for act in [*acts, *[_pass] * (_PASSES - len(acts))]:  # a pass may move more than gradients
            driver.seed_generators(self.seed)
            act(driver, self._raw_loss(course))
        driver.optimizer_step()
        driver.seed_generators(self.seed)
        return driver, self._loss(course)


def _pass(driver: Driver, loss: Any) -> None:
    """Nothing: the forward pass was all."""


def _look(driver: Driver, loss: Any) -> None:
    driver.gradient_norm()
    driver.gradients_are_finite()


__all__ = ["TrainingContract"]
