"""What is promised of building a driver and of its batches."""

from __future__ import annotations

import json
from typing import Any

from tachograph.drivers.driver import NO_BATCH, Driver
from tachograph.states.errors import CallerError

from .subject import Subject, expect, overrides, refused


class LoadingContract(Subject):
    """Tests of `set_optimizers`, `set_dataloader`, `setup`, `open_epoch`, `next_batch` and what describes a driver."""

    def test_optimizers_that_are_none_are_refused_and_change_nothing(self) -> None:
        straight, driver = self.straight(4), self.ready()
        with refused(CallerError, "set_optimizers(object())"):
            driver.set_optimizers(object())
        self._goes_on(driver, straight, "set_optimizers refused an object")

    def test_a_loader_that_is_none_is_refused_and_changes_nothing(self) -> None:
        straight, driver = self.straight(4), self.ready()
        for given in (object(), []):
            with refused(CallerError, f"set_dataloader({given!r})"):
                driver.set_dataloader(given)
        self._goes_on(driver, straight, "set_dataloader refused a loader")

    def _goes_on(self, driver: Driver, straight: Any, after: str) -> None:
        differs = self.course(driver).go(4).differs(straight)
        expect(not differs, f"after {after}, the driver must train as before: {differs}")

    def test_what_describes_a_driver_is_plain_and_equal_for_equal_ones(self) -> None:
        loaders = [self.evaluation_loader() for _ in range(2)]
        one, other = self.ready(), self.ready()
        for name in ("fingerprint", "hyperparameters", "environment"):
            first, second = getattr(one, name)(), getattr(other, name)()
            expect(isinstance(first, dict) and first == second, f"{name}() must be equal for drivers built alike")
            expect(_is_plain(first), f"{name}() must be plain data, as JSON takes it")
        described = one.describe(loaders[0])
        expect(isinstance(described, str), "describe() must return a sentence")
        expect(described == other.describe(loaders[1]), "describe() must be equal for loaders built alike")
        expect(type(one.initial_seed()) is int and one.initial_seed() >= 0, "initial_seed() must be a number >= 0")

    def test_the_loader_has_enough_batches_for_these_tests(self) -> None:
        expect(self.length() >= 3, "make() must give a loader of 3 batches at least")

    def test_an_epoch_stays_at_its_end(self) -> None:
        driver = self.ready()
        self._read(driver, 0)
        expect(driver.next_batch() is NO_BATCH, "next_batch must go on returning NO_BATCH at an epoch's end")
        expect(len(self._read(driver, 1)) > 0, "open_epoch must begin the next epoch after the end of one")

    def test_the_number_of_batches_is_what_was_said(self) -> None:
        driver, n = self.ready(), self.length()
        expect(driver.length() in (None, n), f"length() says {driver.length()}, and an epoch has {n} batches")
        for done in (0, 1, n):
            said = self.ready().open_epoch(0, done, None)
            expect(said in (None, n), f"open_epoch(0, {done}) says {said}, and the epoch has {n} batches")

    def test_the_order_of_an_epoch_depends_on_the_seed_and_the_epoch_only(self) -> None:
        driver = self.ready()
        first, second = self._read(driver, 0), self._read(driver, 1)
        expect(self._read(self.ready(), 0) == first, "epoch 0 must be the same for drivers built alike")
        expect(self._read(self.ready(), 1) == second, "epoch 1 must be the same whether epoch 0 was read or not")

    def test_an_epoch_is_entered_behind_any_batch(self) -> None:
        whole = self._read(self.ready(), 1)
        samples = 0
        for done in range(len(whole) + 1):
            for given in (samples, None):
                rest = self._read(self.ready(), 1, done, given)
                said = f"open_epoch(1, {done}, {given})"
                expect(rest == whole[done:], f"{said} gives {rest}, where the whole epoch went on with {whole[done:]}")
            samples += whole[done][1] if done < len(whole) else 0

    def test_no_more_batches_are_used_than_was_said(self) -> None:
        whole, driver = self._read(self.ready(), 0), self.ready(most=2)
        expect(driver.length() in (None, 2), f"length() says {driver.length()} of an epoch that was cut after 2")
        expect(self._read(driver, 0) == whole[:2], "set_dataloader(loader, 2) must leave 2 batches of an epoch")
        said = self.ready(most=2).open_epoch(0, 3, None)
        expect(said in (None, 3), f"open_epoch counts the batches that were consumed too, 3, and says {said}")
        expect(self._read(self.ready(most=2), 0, 3) == [], "behind more batches than are used, an epoch is at its end")

    def test_ids_and_samples_are_those_of_the_batch(self) -> None:
        driver = self.ready()
        driver.open_epoch(0, 0, 0)
        while (batch := driver.next_batch()) is not NO_BATCH:
            ids, told = driver.batch_ids, self.ids_in(batch)
            expect(driver.batch_samples > 0, "batch_samples must be > 0 for every batch")
            if ids is not None:
                (over_all,) = driver.ranks.sums([len(ids)])
                expect(over_all == driver.batch_samples, "batch_samples must count batch_ids, over all ranks")
            if told is not None:
                expect(list(ids or ()) == told, f"batch_ids is {ids}, and the batch holds {told}")

    def test_the_digest_of_ids_is_theirs(self) -> None:
        driver, found = self.ready(), dict[int, list[Any]]()
        driver.open_epoch(0, 0, 0)
        while driver.next_batch() is not NO_BATCH:
            ids, digest = driver.batch_ids, driver.ids_digest()
            expect(0 <= digest < 1 << 32, "ids_digest() must be a number of 32 bits")
            expect(ids is not None or digest == 0, "ids_digest() must be 0 where ids aren't known")
            if ids is not None and overrides(driver, "ids_digest"):
                other = found.setdefault(digest, list(ids))
                expect(other == list(ids), f"ids_digest() is {digest} for {other} and for {list(ids)}")

    def test_the_input_mapping_is_given_each_batch_once(self) -> None:
        driver, mapped = self.ready(), []

        def mapping(batch: Any) -> Any:
            mapped.append(1)
            return batch

        driver.input_mapping = mapping
        n = len(self._read(driver, 0))
        expect(len(mapped) == n, f"input_mapping was called {len(mapped)} times for {n} batches")

    def test_it_can_be_set_up_again_after_it_was_closed(self) -> None:
        n = self.length()
        straight, course = self.straight(n), self.course().go(1)
        course.driver.close()
        course.driver.close()
        course.driver.setup(self.seed, True)
        course.driver.open_epoch(0, 1, course.place.samples)
        differs = course.go(n - 1).differs(straight)
        expect(not differs, f"closed twice and set up again, a driver must go on: {differs}")

    @staticmethod
    def _read(driver: Driver, epoch: int, done: int = 0, samples: int | None = None) -> list[tuple[Any, int, int]]:
        """Read an epoch from a position on: (ids, samples, digest) of each batch."""
        driver.open_epoch(epoch, done, samples if done else 0)
        read = []
        while driver.next_batch() is not NO_BATCH:
            ids = driver.batch_ids
            read.append((None if ids is None else list(ids), driver.batch_samples, driver.ids_digest()))
        return read


def _is_plain(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value)) is not None)
    except (TypeError, ValueError):
        return False


__all__ = ["LoadingContract"]
