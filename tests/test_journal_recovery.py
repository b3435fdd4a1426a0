"""What a crash leaves is mended, what a crash can't have done is refused: at every byte, one by one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest

from tachograph.engine.journal import (
    Files,
    Journal,
    JournalCorrupt,
    JournalError,
    JournalFormat,
    JournalLock,
    JournalWriteError,
    JournalWriter,
    Position,
    recover,
)
from tachograph.engine.journal.codec import sealed
from tests.test_journal_support import Crash, Faulty, Quick, folder, only_file, run, same, states_of, writer, written

N = 6


def resume(run_dir: Path, files: Files | None = None, run_id: str = "r") -> JournalWriter:
    lock = JournalLock(run_dir)
    end = recover(run_dir, files=files).end
    parent = end if end.incarnation >= 0 else None
    return writer(run_dir, incarnation=end.incarnation + 1, parent=parent, run_id=run_id, lock=lock, files=files)


def copies(source: Path, target: Path) -> Path:
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


def lines_of(run_dir: Path) -> list[bytes]:
    return only_file(run_dir).read_bytes().splitlines(keepends=True)


def test_nothing_recorded_is_an_end_before_the_first_transition(tmp_path: Path) -> None:
    assert recover(tmp_path).end == Position(-1, 0, "0" * 16)


def test_a_clean_end_needs_no_cut(tmp_path: Path) -> None:
    done = written(tmp_path, N)
    found = recover(tmp_path)
    assert found.cut == []
    assert (found.end.incarnation, found.end.seq) == (0, N)
    assert found.end.chain == Journal(tmp_path).chain
    assert same(list(Journal(tmp_path)), done)


def test_a_journal_torn_at_any_byte_loses_only_the_torn_record_and_puts_it_aside(tmp_path: Path) -> None:
    written(tmp_path / "whole", 4, close=False, events=[])
    lines = lines_of(tmp_path / "whole")
    ends = [sum(map(len, lines[: k + 1])) for k in range(len(lines))]
    text = b"".join(lines)
    for size in range(ends[0], len(text)):
        run_dir = copies(tmp_path / "whole", tmp_path / "torn")
        path = only_file(run_dir)
        path.write_bytes(text[:size])
        good = max(e for e in ends if e <= size)
        journal = Journal(run_dir)
        assert [r.seq for r in journal] == list(range(1, ends.index(good) + 1))
        assert journal.torn == ((path, good) if good < size else None)
        found = recover(run_dir, files=Quick())
        assert found.end.seq == ends.index(good)
        assert [(c.offset, c.bytes) for c in found.cut] == ([(good, size - good)] if good < size else [])
        assert all(c.aside.read_bytes() == text[good:size] for c in found.cut)
        assert path.read_bytes() == text[:good]
        assert recover(run_dir, files=Quick()).cut == []


def test_a_journal_cut_below_its_durable_mark_is_refused_at_any_byte(tmp_path: Path) -> None:
    out = writer(tmp_path / "whole", events=[])
    done = run(5)
    for transition in done[:2]:
        out.append(*transition)
    out.sync()
    for transition in done[2:]:
        out.append(*transition)
    out.abandon()
    lines = lines_of(tmp_path / "whole")
    durable, text = sum(map(len, lines[:3])), b"".join(lines)
    for size in range(len(text)):
        if size == 0 or size >= durable:
            run_dir = copies(tmp_path / "whole", tmp_path / "torn")
        only_file(run_dir).write_bytes(text[:size])
        if size < durable:
            with pytest.raises(JournalCorrupt, match="known to have been on the disk"):
                recover(run_dir, files=Quick())
            with pytest.raises(JournalCorrupt, match="known to have been on the disk"):
                states_of(run_dir)
            assert only_file(run_dir).read_bytes() == text[:size]
        else:
            assert recover(run_dir, files=Quick()).end.seq >= 2


def test_a_file_that_holds_only_a_torn_header_is_put_aside_whole(tmp_path: Path) -> None:
    done = written(tmp_path / "whole", 4, close=False, events=[])
    resume(tmp_path / "whole").abandon()
    (folder(tmp_path / "whole") / "durable.json").unlink()
    header = (folder(tmp_path / "whole") / "000000000005.i1.jsonl").read_bytes()
    for size in range(len(header)):
        run_dir = copies(tmp_path / "whole", tmp_path / "torn")
        path = folder(run_dir) / "000000000005.i1.jsonl"
        path.write_bytes(header[:size])
        journal = Journal(run_dir)
        assert same(list(journal), done)
        assert journal.torn == (path, 0)
        found = recover(run_dir, files=Quick())
        assert (found.end.incarnation, found.end.seq) == (0, 4)
        assert [c.aside.read_bytes() for c in found.cut] == [header[:size]]
        assert not path.exists()
        out = resume(run_dir, Quick())
        assert out.path.name == path.name
        out.abandon()


def test_a_new_journal_killed_at_creation_starts_anew(tmp_path: Path) -> None:
    written(tmp_path, 0, close=False)
    (folder(tmp_path) / "durable.json").unlink()
    only_file(tmp_path).write_bytes(b'{"side":"opened","se')
    assert states_of(tmp_path) == []
    assert Journal(tmp_path).chain == "0" * 16
    assert recover(tmp_path).end.incarnation == -1
    resume(tmp_path).abandon()


@pytest.mark.parametrize("tail", [bytes(1), bytes(5000), b"\0" * 300 + b'"}\n', b'{"seq":7,"fr\0\0\0\n', b"rubbish\n"])
def test_a_tail_that_power_loss_left_is_torn(tmp_path: Path, tail: bytes) -> None:
    written(tmp_path, N, close=False)
    path = only_file(tmp_path)
    before = path.read_bytes()
    path.write_bytes(before + tail)
    assert states_of(tmp_path) == list(range(1, N + 1))
    (cut,) = recover(tmp_path).cut
    assert (cut.offset, cut.bytes, cut.aside.read_bytes()) == (len(before), len(tail), tail)
    assert path.read_bytes() == before


Change = Callable[[list[bytes]], list[bytes]]
DAMAGE: dict[str, Change] = {
    "a record is missing": lambda x: x[:3] + x[4:],
    "the last but one is missing": lambda x: x[:-2] + x[-1:],
    "a record stands twice": lambda x: [*x[:4], x[3], *x[4:]],
    "the last record stands twice": lambda x: [*x, x[-1]],
    "two records are swapped": lambda x: [*x[:3], x[4], x[3], *x[5:]],
    "the last two are swapped": lambda x: [*x[:-2], x[-1], x[-2]],
    "a record is zeroed": lambda x: [*x[:3], bytes(len(x[3])), *x[4:]],
    "a record is zeroed up to its newline": lambda x: [*x[:3], bytes(len(x[3]) - 1) + b"\n", *x[4:]],
    "a record lost a byte": lambda x: [*x[:3], x[3][:100] + x[3][101:], *x[4:]],
    "the header is missing": lambda x: x[1:],
    "the header is zeroed": lambda x: [bytes(len(x[0]) - 1) + b"\n", *x[1:]],
    "an empty line stands between": lambda x: [*x[:3], b"\n", *x[3:]],
    "the last record is changed": lambda x: [
        *x[:-1],
        x[-1].replace(b"false", b"true ").replace(b'"fetch"', b'"epoch"'),
    ],
    "a crc is written in capitals": lambda x: [line[:-11] + line[-11:].upper() for line in x],
}


@pytest.mark.parametrize("change", DAMAGE)
def test_damage_that_no_crash_explains_is_refused_and_left_as_it_is(tmp_path: Path, change: str) -> None:
    written(tmp_path, N, close=False)
    lines = lines_of(tmp_path)
    damaged = b"".join(DAMAGE[change](lines))
    (folder(tmp_path) / "durable.json").unlink()
    path = only_file(tmp_path)
    path.write_bytes(damaged)
    for use in (recover, states_of):
        with pytest.raises(JournalError) as caught:
            use(tmp_path)
        assert str(path) in str(caught.value)
        if isinstance(caught.value, JournalCorrupt):
            assert "salvage=True" in str(caught.value)
            assert 0 <= caught.value.offset < len(damaged)
    assert path.read_bytes() == damaged
    assert sorted(p.name for p in folder(tmp_path).iterdir()) == [path.name, "lock"]


def test_a_wrong_number_under_a_right_checksum_is_refused(tmp_path: Path) -> None:
    written(tmp_path, N, close=False)
    path, lines = only_file(tmp_path), lines_of(tmp_path)
    again, crc = sealed(lines[-1].rpartition(b',"crc"')[0], int(lines[-1][-11:-3], 16))
    path.write_bytes(b"".join([*lines, again]))
    for use in (recover, states_of):
        with pytest.raises(JournalCorrupt, match=f"seq {N} follows seq {N}"):
            use(tmp_path)
    gap, _ = sealed(lines[-1].replace(b'"seq":6', b'"seq":8').rpartition(b',"crc"')[0], crc)
    path.write_bytes(b"".join([*lines, gap]))
    with pytest.raises(JournalError):
        recover(tmp_path)


def test_what_follows_a_footer_is_never_cut(tmp_path: Path) -> None:
    written(tmp_path, N)
    (folder(tmp_path) / "durable.json").unlink()
    with only_file(tmp_path).open("ab") as file:
        file.write(b'{"seq":7')
    with pytest.raises(JournalCorrupt, match="after the segment's footer"):
        recover(tmp_path)


def test_a_damaged_earlier_incarnation_is_refused(tmp_path: Path) -> None:
    written(tmp_path, N, close=False)
    resume(tmp_path).abandon()
    path = folder(tmp_path) / "000000000000.i0.jsonl"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(JournalCorrupt, match="in a segment that another one follows"):
        recover(tmp_path)


def test_a_missing_incarnation_is_named(tmp_path: Path) -> None:
    written(tmp_path, N, close=False)
    for _ in range(2):
        resume(tmp_path).abandon()
    (folder(tmp_path) / f"{N + 1:012d}.i1.jsonl").unlink()
    with pytest.raises(JournalCorrupt, match="incarnation 1 are missing"):
        recover(tmp_path)


def test_a_missing_newest_segment_is_known_by_the_durable_mark(tmp_path: Path) -> None:
    written(tmp_path, N, close=False)
    resume(tmp_path).abandon()
    (folder(tmp_path) / f"{N + 1:012d}.i1.jsonl").unlink()
    with pytest.raises(JournalCorrupt, match="the file is missing"):
        recover(tmp_path)


def test_an_incarnation_of_another_run_is_refused(tmp_path: Path) -> None:
    written(tmp_path / "a", N)
    written(tmp_path / "b", N, run_id="other")
    resume(tmp_path / "a").abandon()
    resume(tmp_path / "b", run_id="other").abandon()
    name = f"{N + 1:012d}.i1.jsonl"
    shutil.copy(folder(tmp_path / "b") / name, folder(tmp_path / "a") / name)
    with pytest.raises(JournalCorrupt, match="another run, 'other'"):
        recover(tmp_path / "a")


def test_an_incarnation_that_goes_on_from_another_history_is_refused(tmp_path: Path) -> None:
    written(tmp_path, N)
    end = recover(tmp_path).end
    out = writer(tmp_path, incarnation=1, parent=attrs.evolve(end, chain="0123456789abcdef"))
    out.abandon()
    for use in (recover, states_of):
        with pytest.raises(JournalCorrupt, match="leads to seq 6"):
            use(tmp_path)


def test_a_newer_format_asks_for_an_upgrade(tmp_path: Path) -> None:
    written(tmp_path, N)
    path, lines = only_file(tmp_path), lines_of(tmp_path)
    path.write_bytes(b"".join([lines[0].replace(b'"format":1', b'"format":2'), *lines[1:]]))
    with pytest.raises(JournalFormat, match="format 2, this version reads up to 1: upgrade tachograph"):
        recover(tmp_path)
    line, _ = sealed(b'{"hello":1', 0)
    path.write_bytes(line)
    with pytest.raises(JournalFormat, match="isn't a journal's file"):
        recover(tmp_path)


@pytest.mark.parametrize("at", range(12))
def test_a_recovery_that_is_itself_cut_short_is_repeated_with_the_same_end(tmp_path: Path, at: int) -> None:
    done = written(tmp_path, N, close=False)
    with only_file(tmp_path).open("ab") as file:
        file.write(b'{"seq":7,"from"')
    files = Faulty(("open_append", "write", "fdatasync", "fsync_dir", "rename", "truncate", "pwrite"), at, Crash())
    try:
        recover(tmp_path, files=files)
    except Crash:
        pass
    else:
        assert at >= 7
    found = recover(tmp_path)
    assert found.end.seq == N
    assert same(list(Journal(tmp_path)), done)
    assert [p.read_bytes() for p in folder(tmp_path).glob("*.torn-*") if p.suffix != ".tmp"] == [b'{"seq":7,"from"']
    out = resume(tmp_path)
    assert not list(folder(tmp_path).glob("*.tmp"))
    out.abandon()


def test_a_tail_that_cannot_be_put_aside_is_not_cut(tmp_path: Path) -> None:
    written(tmp_path, N, close=False)
    with only_file(tmp_path).open("ab") as file:
        file.write(b"rub")
    before = only_file(tmp_path).read_bytes()
    with pytest.raises(JournalWriteError, match="No space left"):
        recover(tmp_path, files=Faulty(("write",), 0, OSError(28, "")))
    assert only_file(tmp_path).read_bytes() == before


def test_a_second_tail_at_the_same_place_does_not_overwrite_the_first(tmp_path: Path) -> None:
    written(tmp_path, N, close=False)
    for tail in (b"one", b"two"):
        with only_file(tmp_path).open("ab") as file:
            file.write(tail)
        recover(tmp_path)
    assert sorted(p.read_bytes() for p in folder(tmp_path).glob("*.torn-*")) == [b"one", b"two"]


def test_after_recovery_everything_left_is_known_to_be_on_the_disk(tmp_path: Path) -> None:
    written(tmp_path, N, close=False)
    files = Faulty(("fdatasync",), 99, None)
    recover(tmp_path, files=files)
    assert "fdatasync" in files.calls
    path = only_file(tmp_path)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(JournalCorrupt, match="known to have been on the disk"):
        recover(tmp_path)


def test_every_flipped_bit_is_noticed(tmp_path: Path) -> None:
    """With a mark that covers all it is refused; without one it may be a torn tail, and then says so."""
    done = written(tmp_path, 3, close=False, events=[])
    path = only_file(tmp_path)
    text = path.read_bytes()
    mark = folder(tmp_path) / "durable.json"
    recover(tmp_path)
    covering = mark.read_bytes()
    for offset in range(len(text)):
        flipped = bytearray(text)
        flipped[offset] ^= 1 << offset % 8
        path.write_bytes(flipped)
        mark.write_bytes(covering)
        with pytest.raises(JournalError):
            states_of(tmp_path)
        mark.unlink()
        journal = Journal(tmp_path)
        try:
            records = list(journal)
        except JournalError:
            continue
        assert journal.torn is not None
        assert same(records, done[: len(records)])
        assert len(records) < 3


def test_every_flipped_bit_of_the_durable_mark_is_noticed_or_means_nothing(tmp_path: Path) -> None:
    written(tmp_path, N)
    mark = folder(tmp_path) / "durable.json"
    text = mark.read_bytes()
    for offset in range(len(text)):
        flipped = bytearray(text)
        flipped[offset] ^= 1 << offset % 8
        mark.write_bytes(flipped)
        if flipped.strip(b" \n\0") == text.strip():
            assert states_of(tmp_path) == list(range(1, N + 1))
        else:
            with pytest.raises(JournalCorrupt, match="durable mark"):
                states_of(tmp_path)
