"""What is promised of snapshots: everything is in them, they are copies, and what doesn't fit is refused."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from tachograph.drivers.driver import NO_BATCH
from tachograph.drivers.errors import RestoreFault

from .course import Course, same_weights
from .subject import Subject, expect


class SnapshotsContract(Subject):
    """Tests of `capture`, `save`, `read`, `restore` and `restore_generators`."""

    def test_a_run_goes_on_from_a_snapshot_with_the_same_bits(self) -> None:
        n = self.length()
        total = n + 3
        for window, places in ((2, range(total)), (1, (1, n)), (n + 1, (n - 1, n))):
            straight = self.straight(total, window)
            for done in places:
                for in_hand in (False, True):
                    course = self.course(window=window).go(done)
                    self._expect_goes_on(course.fetch() if in_hand else course, straight)

    def _expect_goes_on(self, course: Course, straight: Course) -> None:
        folder, place = self.snapshot(course)
        resumed = self.resumed(folder, place, course.window)
        differs = resumed.go(len(straight.rows) - place.seq).differs(straight)
        hand = ", one in hand" if place.in_hand else ""
        where = f"after {place.seq} batches{hand}, {place.accumulated} of {course.window} in the open window"
        expect(not differs, f"a run that goes on from a snapshot ({where}) must be the straight one: {differs}")

    def test_a_snapshot_of_a_run_that_went_on_is_as_good(self) -> None:
        straight = self.straight(self.length() + 3)
        first = self.course().go(1).fetch()
        second = self.resumed(*self.snapshot(first)).go(1)
        folder, place = self.snapshot(second)
        differs = self.resumed(folder, place).go(len(straight.rows) - place.seq).differs(straight)
        expect(not differs, f"a run may be gone on with twice: {differs}")

    def test_a_capture_is_a_copy(self) -> None:
        straight = self.straight(self.length() + 3)
        course = self.course().go(1).fetch()
        place, capture = course.place, course.driver.capture({}, course.batch)
        differs = course.go(len(straight.rows) - 1).differs(straight)
        expect(not differs, f"capture must leave training as it is: {differs}")
        resumed = self.resumed(self.saved(course.driver, capture), place)
        differs = resumed.go(len(straight.rows) - 1).differs(straight)
        expect(not differs, f"what training does after a capture must not be in it: {differs}")

    def test_each_capture_is_of_its_own_moment(self) -> None:
        straight, course, kept = self.straight(self.length() + 3), self.course(), []
        for _ in range(3):
            kept.append(self.snapshot(course.go(1)))
        for folder, place in kept:
            differs = self.resumed(folder, place).go(len(straight.rows) - place.seq).differs(straight)
            expect(not differs, f"a capture that was saved must stay what it is when another one is taken: {differs}")

    def test_the_extra_is_copied_to_its_leaves(self) -> None:
        driver = self.course().go(1).driver
        extra: dict[str, Any] = {"user": {"scores": [0.5, 1.0], "name": "x"}, "listeners": {"a": {"n": 1}}}
        capture = driver.capture(extra)
        extra["user"]["scores"].append(2.0)
        extra["listeners"]["a"]["n"] = 2
        extra["user"]["name"] = "y"
        told, _ = self.ready().read(self.saved(driver, capture))
        expected = {"user": {"scores": [0.5, 1.0], "name": "x"}, "listeners": {"a": {"n": 1}}}
        expect(told == expected, f"read must return the extra as it was when it was captured: {expected}, not {told}")

    def test_the_files_are_as_save_says(self) -> None:
        driver = self.course().go(1).driver
        capture, folder = driver.capture({}), self.folder(driver.ranks)
        expect(driver.size_of(capture) >= 0, "size_of must be >= 0")
        told = driver.save(capture, folder)
        expect(bool(told), "save must write a file, and say so")
        driver.ranks.barrier()
        over_all = {name for each in driver.ranks.gather(sorted(told)) for name in each}
        there = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
        expect(there == over_all, f"save must name each file it wrote: {sorted(there)}, not {sorted(over_all)}")
        for name, (size, digest) in told.items():
            raw = (folder / name).read_bytes()
            expect(len(raw) == size, f"save says that {name} has {size} bytes, and it has {len(raw)}")
            own = hashlib.blake2b(raw, digest_size=16).hexdigest()
            expect(own == digest, f"save says that the digest of {name} is {digest}, and it is {own}")

    def test_what_does_not_fit_is_refused_and_changes_nothing(self) -> None:
        straight, folder = self.straight(self.length() + 2), self.snapshot(self.course().go(2))[0]
        course = self.course().go(1)
        ranks = course.driver.ranks
        spoilt = [self.folder(ranks)]
        needed = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("fingerprints")]
        for file in sorted(path.relative_to(folder) for path in needed):
            spoilt.append(self._without(folder, file, ranks))
        for given in spoilt:
            here = False
            try:
                course.driver.read(given)
            except RestoreFault:
                here = True
            holds = ", ".join(sorted(path.name for path in given.iterdir())) or "nothing"
            expect(bool(ranks.agree(int(here))), f"read must raise RestoreFault for a folder that holds {holds}")
        differs = course.go(len(straight.rows) - 1).differs(straight)
        expect(not differs, f"a refusal of read must change nothing: {differs}")

    def _without(self, folder: Path, file: Path, ranks: Any) -> Path:
        """A copy of a snapshot that lacks one of its files."""
        spoilt = self.folder(ranks)
        for path in folder.rglob("*") if ranks.first else ():
            there = path.relative_to(folder)
            if path.is_file() and there != file:
                (spoilt / there).parent.mkdir(parents=True, exist_ok=True)
                (spoilt / there).write_bytes(path.read_bytes())
        ranks.barrier()
        return spoilt

    def test_reading_changes_nothing(self) -> None:
        straight, folder = self.straight(self.length() + 2), self.snapshot(self.course().go(2))[0]
        course = self.course().go(1).fetch()
        course.driver.read(folder)
        differs = course.go(len(straight.rows) - 1).differs(straight)
        expect(not differs, f"read must change nothing: {differs}")

    def test_the_generators_are_restored_last(self) -> None:
        straight = self.straight(self.length() + 2)
        folder, place = self.snapshot(self.course().go(1).fetch())
        driver = self.ready()
        batch = driver.restore(driver.read(folder)[1])
        course = Course(driver, self.loss_of, 2, place).enter(batch)
        driver.seed_generators(self.seed + 1)  # so that whoever drew until now drew something else
        driver.restore_generators()
        differs = course.go(len(straight.rows) - place.seq).differs(straight)
        expect(not differs, f"what is drawn before restore_generators must leave no trace: {differs}")

    def test_the_model_may_be_restored_without_the_training(self) -> None:
        course = self.course().go(3).fetch()
        folder, _ = self.snapshot(course)
        driver = self.ready()
        batch = driver.restore(driver.read(folder)[1], training=False)
        expect(batch is NO_BATCH, "restore(held, training=False) must return NO_BATCH")
        expect(same_weights(course.driver, driver), "restore(held, training=False) must restore the weights")
        begun = Course(driver, self.loss_of, 2).go(self.length())
        expect(begun.rows[0].epoch == 0, "after restore(held, training=False) a run begins anew")

    def test_values_in_a_state_are_tensors_or_not(self) -> None:
        driver = self.ready()
        expect(not any(map(driver.is_tensor, (1, "x", None, [1]))), "is_tensor must be False for plain data")


__all__ = ["SnapshotsContract"]
