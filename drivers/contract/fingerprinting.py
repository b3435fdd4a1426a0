"""What is promised of fingerprints, where a driver takes any: equal bits have equal ones, and no trace is left."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tachograph.drivers.driver import NO_BATCH, Driver
from tachograph.drivers.extras import fingerprints_file

from .course import Course
from .subject import Subject, expect, overrides

_MOVED = ("parameters", "optimizers")


class FingerprintingContract(Subject):
    """Tests of `fingerprints`, `fingerprint_of` and the file of a snapshot that holds them."""

    def test_fingerprints_are_equal_for_equal_states(self) -> None:
        one, other = (self._of_a_run(self.course(), self.length()) for _ in range(2))
        for found, again in zip(one, other, strict=True):
            expect(found == again, f"two equal runs have the fingerprints {found} and {again}")
            expect(_are_digits(found), f"fingerprints() must return 16 hex digits or None for each part, not {found}")

    def test_fingerprints_tell_apart_what_an_update_moves(self) -> None:
        if not overrides(self.ready(), "fingerprints"):
            return
        course, seen = self.course(window=1), []
        for _ in range(2):
            before, updated = course.driver.fingerprints(_MOVED), False
            while not updated:  # one may be skipped
                course.go(1)
                updated = bool(course.rows[-1].updated)
            after = course.driver.fingerprints(_MOVED)
            seen += [part for part in _MOVED if before.get(part) == after.get(part)]
        expect(not seen, f"an update must change the fingerprints of {', '.join(_MOVED)}, and not {seen}")

    def test_a_fingerprint_of_gradients_follows_the_gradients(self) -> None:
        if not overrides(self.ready(), "fingerprints"):
            return
        course = self.course().fetch()
        driver = course.driver
        cleared = driver.fingerprints(["gradients"])
        driver.backward(self.loss_of(driver.train_step(course.batch)), 1)
        made = driver.fingerprints(["gradients"])
        expect(list(made) == ["gradients"], f"fingerprints(['gradients']) must tell of these alone, not {list(made)}")
        expect(made != cleared, "a backward pass must change the fingerprint of the gradients")
        driver.zero_grad()
        expect(driver.fingerprints(["gradients"]) == cleared, "cleared gradients must have one fingerprint")

    def test_fingerprints_leave_no_trace(self) -> None:
        straight, course = self.straight(self.length() + 2), self.course()
        for _ in straight.rows:
            course.fetch()
            course.driver.fingerprint_of(course.batch)
            course.go(1)
            course.driver.fingerprints()
        differs = course.differs(straight)
        expect(not differs, f"fingerprints must leave training as it is: {differs}")

    def test_fingerprints_come_back_with_a_snapshot(self) -> None:
        course = self.course().go(3)
        found = course.driver.fingerprints()
        resumed = self.resumed(*self.snapshot(course)).driver.fingerprints()
        expect(found == resumed, f"a run that goes on from a snapshot has the fingerprints {resumed}, not {found}")

    def test_a_batch_is_known_by_its_fingerprint(self) -> None:
        one, other = self._of_an_epoch(self.ready()), self._of_an_epoch(self.ready())
        expect(one == other, "fingerprint_of must be equal for equal batches")
        if overrides(self.ready(), "fingerprint_of"):
            expect(_are_digits(dict(enumerate(one))), f"fingerprint_of must return 16 hex digits, not {one}")
            expect(len(set(one)) > 1, f"fingerprint_of must tell batches apart, and not be {one}")

    def test_a_snapshot_may_hold_fingerprints_of_what_is_in_it(self) -> None:
        told = [self._in_snapshot(self.course().go(done)) for done in (3, 3, 4)]
        if not all(told):
            return
        expect(told[0] == told[1], "the fingerprints of equal snapshots must be equal")
        expect(told[0]["generators"] != told[2]["generators"], "those of generators that have drawn must be others")
        for part in ("model", "optimizers", "gradients", "generators"):
            expect(_are_digits(told[0][part]), f"'{part}' must map names to 16 hex digits, and is {told[0][part]}")

    @staticmethod
    def _of_a_run(course: Course, batches: int) -> list[dict[str, str | None]]:
        return [course.go(1).driver.fingerprints() for _ in range(batches)]

    def _in_snapshot(self, course: Course) -> Any:
        """What the file of this rank says; None if there is none."""
        folder = self.snapshot(course)[0]
        path = Path(folder) / fingerprints_file(course.driver.ranks.rank)
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    @staticmethod
    def _of_an_epoch(driver: Driver) -> list[str | None]:
        driver.open_epoch(0, 0, 0)
        found = []
        while (batch := driver.next_batch()) is not NO_BATCH:
            found.append(driver.fingerprint_of(batch))
        return found


def _are_digits(found: Any) -> bool:
    """Say whether all are 16 hex digits or None."""
    return all(one is None or (len(one) == 16 and set(one) <= set("0123456789abcdef")) for one in found.values())


__all__ = ["FingerprintingContract"]
