"""Thousands of runs that are killed, cut off from power, signalled and damaged; see `tests.simulator`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.simulator import simulate
from tests.simulator.disk import Disk, Folder, Killed, Strike
from tests.simulator.plan import lives_of, settings_of

ROOT = Path(__file__).parent.parent
RUNS = 2000
CHUNK = 100


@pytest.mark.parametrize("first", range(0, RUNS, CHUNK))
def test_whatever_befalls_a_run_it_ends_as_the_straight_one(first: int) -> None:
    """R03 R04 R12 R25 R34 R59 R66."""
    for seed in range(first, first + CHUNK):
        simulate(seed)


def test_the_same_seed_tells_the_same_story_in_another_process_too() -> None:
    seeds = (1, 14, 58)
    stories = [line for seed in seeds for line in simulate(seed)]
    for hashing in ("1", "2"):
        told = [
            subprocess.run(
                [sys.executable, "-m", "tests.simulator", "--seed", str(seed)],
                cwd=ROOT,
                env={**os.environ, "PYTHONHASHSEED": hashing},
                capture_output=True,
                text=True,
                check=True,
            ).stdout.splitlines()
            for seed in seeds
        ]
        assert [line for lines in told for line in lines] == stories


def test_every_fault_and_every_setting_occurs() -> None:
    """What is never drawn is never shown."""
    settings = [settings_of(seed) for seed in range(0, RUNS, 8)]
    lives = [life for seed in range(RUNS) for life in lives_of(seed, settings_of(seed), 100, 100)]
    assert {strike.kind for life in lives for strike in life.strikes} == {
        *("kill", "full", "broken", "garbled", "unreadable", "ctrl-c")
    }
    assert {event.kind for life in lives for event in life.events} == {"kill", "signal", "error"}
    assert {life.damage for life in lives} == {"", "snapshot", "lost", "journal", "mark"}
    assert sum(life.power for life in lives) > RUNS // 10
    for name in ("tail", "accumulation", "known", "snapshot_every", "keep", "segment", "seed", "eagerness"):
        assert len({getattr(each, name) for each in settings}) > 1, name


# -- the disk ----------------------------------------------------------------------------------------------


def written(disk: Disk, name: str, data: bytes, *, sync: bool = False) -> Path:
    path = disk.root / "run" / name
    if not path.parent.exists():
        disk.make_dir(path.parent)
        disk.fsync_dir(disk.root)
    fd = disk.open_append(path)
    disk.write(fd, data)
    if sync:
        disk.fdatasync(fd)
        disk.fsync_dir(path.parent)
    disk.close(fd)
    return path


def test_what_was_synced_outlives_a_power_cut_and_the_rest_may_not(tmp_path: Path) -> None:
    left: set[bytes | None] = set()
    for n in range(60):
        root = tmp_path / str(n)
        root.mkdir()
        disk = Disk(root)
        safe = written(disk, "safe", b"safe", sync=True)
        loose = written(disk, "loose", b"loose")
        disk.cut_power(Random(n))
        assert safe.read_bytes() == b"safe"
        left.add(loose.read_bytes() if loose.exists() else None)
    found = {data for data in left if data is not None}
    assert {None, b"loose"} <= left
    assert any(b"loose".startswith(data) and data != b"loose" for data in found)
    assert any(data.endswith(b"\0") and len(data) == len(b"loose") for data in found)


def test_a_rename_is_done_or_not_done_after_a_power_cut(tmp_path: Path) -> None:
    left = set()
    for n in range(20):
        root = tmp_path / str(n)
        root.mkdir()
        disk = Disk(root)
        written(disk, "new", b"new", sync=True)
        written(disk, "old", b"old", sync=True)
        disk.rename(root / "run" / "new", root / "run" / "old")
        disk.cut_power(Random(n))
        left.add(tuple(sorted(path.read_text() for path in (root / "run").iterdir())))
    assert left == {("new",), ("new", "old")}


@pytest.mark.parametrize(("part", "left"), [(0.0, b""), (0.5, b"12"), (1.0, b"1234")])
def test_a_kill_in_a_write_leaves_none_some_or_all_of_it(tmp_path: Path, part: float, left: bytes) -> None:
    disk = Disk(tmp_path)
    path = written(disk, "file", b"")
    disk.born((Strike("kill", 2, part),))
    fd = disk.open_update(path)
    disk.fdatasync(fd)
    with pytest.raises(Killed):
        disk.write(fd, b"1234")
    with pytest.raises(Killed):
        disk.unlink(path)
    disk.close(fd)
    assert path.read_bytes() == left


def test_a_full_disk_takes_nothing_more(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    path = written(disk, "file", b"")
    disk.born((Strike("full", 1, 0.5),))
    fd = disk.open_update(path)
    assert disk.write(fd, b"1234") == 2
    for act in (lambda: disk.write(fd, b"34"), lambda: disk.make_dir(tmp_path / "run" / "other")):
        with pytest.raises(OSError, match="No space left"):
            act()
    disk.unlink(path)
    disk.close(fd)


def test_the_model_of_the_disk_and_the_disk_are_the_same(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    written(disk, "a", b"1", sync=True)
    written(disk, "b", b"22")
    disk.rename(tmp_path / "run" / "b", tmp_path / "run" / "c")
    disk.make_dir(tmp_path / "run" / "d")
    disk.remove_tree(tmp_path / "run" / "d")
    assert {path: file.data for path, file in disk.files().items()} == {"run/a": b"1", "run/c": b"22"}
    assert isinstance(disk.folder.names["run"], Folder)
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == sorted(disk.folder.names["run"].names)
