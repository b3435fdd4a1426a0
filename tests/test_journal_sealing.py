"""Sealing: a long journal becomes many files, compressed one after the other, and reads as one."""

from __future__ import annotations

import contextlib
import gzip
from pathlib import Path
from typing import Any

import pytest

from tachograph.engine.journal import Journal, JournalCorrupt, JournalLock, JournalWriteError, recover
from tachograph.engine.journal.sealing import compress
from tests.test_journal_support import Crash, Faulty, folder, kill, run, same, states_of, writer, written

N = 25
EVERY = ("open_append", "write", "fdatasync", "fsync_dir", "pwrite", "rename", "unlink")


def names(run_dir: Path) -> list[str]:
    return sorted(p.name for p in folder(run_dir).iterdir() if "jsonl" in p.name)


def unpacked(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes())


def test_segments_are_sealed_by_number_of_records_and_read_as_one(tmp_path: Path) -> None:
    done = written(tmp_path, N, seal_records=10)
    assert names(tmp_path) == ["000000000000.i0.jsonl.gz", "000000000011.i0.jsonl.gz", "000000000021.i0.jsonl"]
    journal = Journal(tmp_path)
    assert same(list(journal), done)
    assert len(journal) == N
    assert [(s.data["records"], s.data["next"]) for s in journal.sides("sealed")] == [
        (10, "000000000011.i0.jsonl"),
        (10, "000000000021.i0.jsonl"),
    ]
    assert [journal.seek(seq).seq for seq in range(1, N + 1)] == list(range(1, N + 1))


def test_segments_are_sealed_by_size(tmp_path: Path) -> None:
    done = written(tmp_path, N, seal_bytes=4000)
    assert len(names(tmp_path)) > 2
    assert same(list(Journal(tmp_path)), done)


def test_a_sealed_segment_is_an_ordinary_gzip_file_of_lines(tmp_path: Path) -> None:
    written(tmp_path, N, seal_records=10)
    first, *_, last = unpacked(folder(tmp_path) / "000000000000.i0.jsonl.gz").splitlines()
    assert first.startswith(b'{"side":"opened"')
    assert last.startswith(b'{"side":"sealed"')


def test_a_run_that_ends_exactly_with_a_segment_goes_on_in_the_next_one(tmp_path: Path) -> None:
    done = written(tmp_path, 20, seal_records=10)
    assert names(tmp_path)[-1] == "000000000021.i0.jsonl"
    journal = Journal(tmp_path)
    assert same(list(journal), done)
    assert journal.last is not None
    assert journal.last.seq == 20


def struck_while_sealing(folder: Path, done: list[Any], at: int, strike: BaseException) -> Any:
    """A writer whose `at`-th step on the disk, while it seals its first segment, was struck."""
    out = writer(folder, seal_records=10)
    for transition in done[:9]:
        out.append(*transition)
    out._files = out._output._files = out._output.tail._files = Faulty(EVERY, at, strike)
    out._output._write = out._files.write
    with contextlib.suppress(type(strike)):
        out.append(*done[9])
    return out


def expect_that_it_can_be_gone_on_with(folder: Path, done: list[Any], seq: int) -> None:
    """Recover a journal that must end at `seq`, write the rest, and read all of it."""
    lock = JournalLock(folder)
    end = recover(folder).end
    assert end.seq == seq
    following = writer(folder, incarnation=1, parent=end, lock=lock, seal_records=10)
    for transition in done[seq:]:
        following.append(*transition)
    following.close()
    assert same(list(Journal(folder)), done)
    Journal(folder).verify_chain()


@pytest.mark.parametrize("at", range(9))
def test_ctrl_c_between_any_two_steps_of_sealing_leaves_a_journal_that_can_be_gone_on_with(
    tmp_path: Path, at: int
) -> None:
    """The writer takes nothing more, since nobody knows in which file it would stand."""
    done = run(N)
    out = struck_while_sealing(tmp_path, done, at, KeyboardInterrupt())
    seq = out.seq
    with contextlib.suppress(JournalWriteError):
        out.append(*done[seq])
    seq = out.seq
    with contextlib.suppress(JournalWriteError):
        out.close()
    expect_that_it_can_be_gone_on_with(tmp_path, done, seq)


@pytest.mark.parametrize("at", range(24))
def test_a_power_cut_between_any_two_steps_of_sealing_loses_nothing(tmp_path: Path, at: int) -> None:
    done = run(N)
    out = struck_while_sealing(tmp_path, done, at, Crash())
    kill(out)
    expect_that_it_can_be_gone_on_with(tmp_path, done, out.seq)


@pytest.mark.parametrize("at", range(12))
def test_a_power_cut_between_any_two_steps_of_compressing_loses_nothing(tmp_path: Path, at: int) -> None:
    done = written(tmp_path, N, seal_records=10)
    packed = folder(tmp_path) / "000000000000.i0.jsonl.gz"
    plain = packed.with_suffix("")
    plain.write_bytes(unpacked(packed))
    packed.unlink()
    try:
        compress(Faulty(EVERY, at, Crash()), plain)
    except Crash:
        pass
    else:
        assert at >= 6
    assert same(list(Journal(tmp_path)), done)
    lock = JournalLock(tmp_path)
    writer(tmp_path, incarnation=1, parent=recover(tmp_path).end, lock=lock).close()
    assert names(tmp_path)[0] == packed.name
    assert not plain.exists()
    assert not list(folder(tmp_path).glob("*.tmp"))
    assert same(list(Journal(tmp_path)), done)


def test_of_a_plain_and_a_compressed_twin_the_plain_one_is_read(tmp_path: Path) -> None:
    done = written(tmp_path, N, seal_records=10)
    packed = folder(tmp_path) / "000000000000.i0.jsonl.gz"
    packed.with_suffix("").write_bytes(unpacked(packed))
    packed.write_bytes(b"rubbish")
    assert same(list(Journal(tmp_path)), done)


def test_a_segment_compressed_while_it_is_read_is_read_on(tmp_path: Path) -> None:
    done = written(tmp_path, N, seal_records=10)
    packed = folder(tmp_path) / "000000000011.i0.jsonl.gz"
    plain = packed.with_suffix("")
    plain.write_bytes(unpacked(packed))
    reading = iter(Journal(tmp_path))
    first = next(reading)
    plain.unlink()
    assert same([first, *reading], done)


def test_what_cannot_be_compressed_stays_plain_and_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tachograph.engine.journal.sealing.zlib.compressobj", no_space)
    done = written(tmp_path, N, seal_records=10)
    assert names(tmp_path) == ["000000000000.i0.jsonl", "000000000011.i0.jsonl", "000000000021.i0.jsonl"]
    assert same(list(Journal(tmp_path)), done)
    assert [s.data["text"].partition(":")[0] for s in Journal(tmp_path).sides("noted")] == [
        "000000000000.i0.jsonl stays uncompressed",
        "000000000011.i0.jsonl stays uncompressed",
    ]


def no_space(*_: object) -> None:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("at", range(5))
def test_a_segment_that_cannot_be_sealed_stops_the_run_at_the_next_transition(tmp_path: Path, at: int) -> None:
    done, out = run(N), writer(tmp_path, seal_records=10)
    for transition in done[:9]:
        out.append(*transition)
    out._files = out._output._files = out._output.tail._files = Faulty(EVERY, at + 1, OSError(28, ""))
    out._output._write = out._files.write
    out.append(*done[9])
    with pytest.raises(JournalWriteError, match="ENOSPC"):
        out.append(*done[10])
    assert out.seq == 10
    out.close()
    assert recover(tmp_path).end.seq == 10
    assert same(list(Journal(tmp_path)), done[:10])


def test_a_damaged_sealed_segment_is_refused(tmp_path: Path) -> None:
    written(tmp_path, N, seal_records=10)
    packed = folder(tmp_path) / "000000000000.i0.jsonl.gz"
    text = packed.read_bytes()
    for offset in range(10, len(text), 7):
        flipped = bytearray(text)
        flipped[offset] ^= 1 << offset % 8
        packed.write_bytes(flipped)
        for use in (recover, states_of):
            with pytest.raises(JournalCorrupt):
                use(tmp_path)
    for size in (0, 100, len(text) - 1):
        packed.write_bytes(text[:size])
        with pytest.raises(JournalCorrupt):
            recover(tmp_path)


@pytest.mark.parametrize("name", ["000000000000.i0.jsonl.gz", "000000000011.i0.jsonl.gz", "000000000021.i0.jsonl"])
def test_a_missing_segment_is_refused(tmp_path: Path, name: str) -> None:
    written(tmp_path, N, seal_records=10)
    (folder(tmp_path) / name).unlink()
    for use in (recover, states_of):
        with pytest.raises(JournalCorrupt, match="missing"):
            use(tmp_path)


def test_a_segment_that_lost_its_last_records_is_refused_although_another_follows(tmp_path: Path) -> None:
    written(tmp_path, N, seal_records=10)
    packed = folder(tmp_path) / "000000000011.i0.jsonl.gz"
    lines = unpacked(packed).splitlines(keepends=True)
    packed.write_bytes(gzip.compress(b"".join(lines[:-2])))
    with pytest.raises(JournalCorrupt, match="doesn't go on from the segment before"):
        recover(tmp_path)
