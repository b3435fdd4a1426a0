"""Disks that fill up, fail or take half a line: a record is committed or it isn't, and nothing is tried twice."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.engine.journal import Files, Journal, JournalLock, JournalWriteError, recover
from tachograph.engine.journal.durable import read_mark
from tests.test_journal_support import (
    Crash,
    Faulty,
    HalfThen,
    folder,
    kill,
    only_file,
    run,
    same,
    states_of,
    writer,
    written,
)

N = 9


def append_until_refused(out: Any, done: list[Any]) -> JournalWriteError | None:
    for transition in done:
        try:
            out.append(*transition)
        except JournalWriteError as error:
            return error
    return None


def created_or_not(run_dir: Path, files: Files) -> JournalWriteError | None:
    try:
        writer(run_dir, files=files).close()
    except JournalWriteError as error:
        return error
    return None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT])
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("at", range(1, N + 1))
def test_a_failed_write_commits_nothing_and_ends_the_writer_for_good(
    tmp_path: Path, at: int, half: bool, number: int
) -> None:
    files: Files = (HalfThen if half else Faulty)(("write",), at, OSError(number, "x"))
    done = run(N)
    out = writer(tmp_path, files=files)
    error = append_until_refused(out, done)
    assert error is not None
    assert (error.errno, error.path) == (number, only_file(tmp_path))
    assert errno.errorcode[number] in str(error)
    assert out.seq == at - 1
    assert out.failure is error
    chain, unwritten = out.chain, out.unwritten
    again: list[Callable[[], None]] = [lambda: out.append(*done[at - 1]), lambda: out.side("noted"), out.sync]
    for attempt in again:
        with pytest.raises(JournalWriteError) as caught:
            attempt()
        assert caught.value is error
    assert (out.seq, out.chain, out.unwritten) == (at - 1, chain, unwritten)
    out.close()
    assert same(list(Journal(tmp_path)), done[: at - 1])


@pytest.mark.parametrize("at", range(1, N + 1))
def test_what_could_not_be_written_is_written_by_the_next_incarnation_with_the_same_chain(
    tmp_path: Path, at: int
) -> None:
    written(tmp_path / "straight", N)
    done = run(N)
    out = writer(tmp_path / "failed", files=HalfThen(("write",), at, OSError(errno.ENOSPC, "")))
    append_until_refused(out, done)
    assert len(out.unwritten) == 1
    out.close()
    lock = JournalLock(tmp_path / "failed")
    end = recover(tmp_path / "failed").end
    assert end.seq == at - 1
    following = writer(tmp_path / "failed", incarnation=1, parent=end, lock=lock)
    following.rewrite(*out.unwritten[0])
    for transition in done[at:]:
        following.append(*transition)
    following.close()
    assert same(list(Journal(tmp_path / "failed")), done)
    assert Journal(tmp_path / "failed").verify_chain() == Journal(tmp_path / "straight").chain


@pytest.mark.parametrize("at", range(N + 2))
def test_a_short_write_goes_on_with_the_rest(tmp_path: Path, at: int) -> None:
    done = written(tmp_path, N, files=Faulty(("write",), at, None))
    assert same(list(Journal(tmp_path)), done)


@pytest.mark.parametrize("at", range(1, N + 1))
def test_ctrl_c_before_a_write_leaves_the_record_out_and_the_writer_whole(tmp_path: Path, at: int) -> None:
    out, done = writer(tmp_path, files=Faulty(("write",), at, KeyboardInterrupt())), run(N)
    with pytest.raises(KeyboardInterrupt):
        append_until_refused(out, done)
    assert out.seq == at - 1
    for transition in done[out.seq :]:
        out.append(*transition)
    out.close()
    assert same(list(Journal(tmp_path)), done)


class InterruptedAfter(Faulty):
    def write(self, fd: int, data: bytes) -> int:
        taken = Files.write(self, fd, data)
        self._strike("write")
        return taken


@pytest.mark.parametrize("at", range(1, N + 1))
def test_ctrl_c_after_a_write_leaves_the_record_in_and_the_writer_whole(tmp_path: Path, at: int) -> None:
    out, done = writer(tmp_path, files=InterruptedAfter(("write",), at, KeyboardInterrupt())), run(N)
    with pytest.raises(KeyboardInterrupt):
        append_until_refused(out, done)
    assert out.seq == at
    for transition in done[out.seq :]:
        out.append(*transition)
    out.close()
    assert same(list(Journal(tmp_path)), done)


def test_ctrl_c_half_way_through_a_write_ends_the_writer(tmp_path: Path) -> None:
    out, done = writer(tmp_path, files=HalfThen(("write",), 3, KeyboardInterrupt())), run(N)
    with pytest.raises(KeyboardInterrupt):
        append_until_refused(out, done)
    with pytest.raises(JournalWriteError, match="interrupted half way"):
        out.append(*done[2])
    out.close()
    assert states_of(tmp_path) == [1, 2]


def test_a_failed_sync_in_the_background_stops_the_run_at_its_next_transition(tmp_path: Path) -> None:
    files, done = Faulty(("fdatasync",), 1, OSError(errno.EIO, "")), run(3)
    out = writer(tmp_path, files=files, sync_every=0.0)
    out.append(*done[0])
    thread = out._output.tail.pulse.thread
    assert thread is not None
    while out.failure is None:
        thread.join(0.001)
    with pytest.raises(JournalWriteError, match="EIO"):
        out.append(*done[1])
    assert out.seq == 1
    assert len(out.unwritten) == 1
    assert b'"seq":2' in out.unwritten[0][0]
    with pytest.raises(JournalWriteError, match="EIO"):
        out.sync()
    assert files.seen == 2
    out.close()
    assert states_of(tmp_path) == [1]


def test_a_failed_sync_is_told_by_close_where_nobody_heard_of_it(tmp_path: Path) -> None:
    out = writer(tmp_path, files=Faulty(("fdatasync",), 1, OSError(errno.EIO, "")))
    out.append(*run(1)[0])
    with pytest.raises(JournalWriteError, match="EIO"):
        out.close()
    out.close()


def test_a_waited_for_sync_raises_its_failure(tmp_path: Path) -> None:
    out = writer(tmp_path, files=Faulty(("fdatasync",), 1, OSError(errno.EIO, "")))
    out.append(*run(1)[0])
    with pytest.raises(JournalWriteError, match="EIO"):
        out.sync()
    out.close()


def test_the_mark_says_what_a_sync_brought_to_the_disk(tmp_path: Path) -> None:
    out, done = writer(tmp_path), run(4)
    for transition in done[:2]:
        out.append(*transition)
    out.sync()
    size = out.path.stat().st_size
    out.append(*done[2])
    mark = read_mark(folder(tmp_path))
    assert mark is not None
    assert (mark.file, mark.bytes, mark.seq) == (out.path.name, size, 2)
    assert len((folder(tmp_path) / "durable.json").read_bytes()) == 192
    out.close()
    mark = read_mark(folder(tmp_path))
    assert mark is not None
    assert (mark.bytes, mark.seq) == (out.path.stat().st_size, 3)


def test_the_background_sync_comes_by_itself_and_only_while_there_is_something_new(tmp_path: Path) -> None:
    files = Faulty(("fdatasync",), 99, None)
    out = writer(tmp_path, files=files, sync_every=0.0)
    out.append(*run(1)[0])
    thread = out._output.tail.pulse.thread
    assert thread is not None
    while (mark := read_mark(folder(tmp_path))) is None or mark.seq < 1:
        thread.join(0.001)
    seen = files.seen
    thread.join(0.02)
    assert files.seen == seen
    out.close()
    assert not thread.is_alive()


@pytest.mark.parametrize("at", range(8))
def test_ctrl_c_while_a_journal_is_created_frees_the_lock(tmp_path: Path, at: int) -> None:
    files = Faulty(("open_append", "open_update", "write", "fdatasync", "fsync_dir", "pwrite"), at, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        writer(tmp_path, files=files)
    JournalLock(tmp_path).release()


@pytest.mark.parametrize("at", range(8))
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES])
def test_a_journal_that_cannot_be_created_says_so_and_frees_the_lock(tmp_path: Path, at: int, number: int) -> None:
    files = Faulty(("open_append", "write", "fdatasync", "fsync_dir", "pwrite"), at, OSError(number, ""))
    error = created_or_not(tmp_path, files)
    assert error is None or error.errno == number
    JournalLock(tmp_path).release()


def test_a_closed_writer_refuses(tmp_path: Path) -> None:
    out, done = writer(tmp_path), run(2)
    out.append(*done[0])
    out.close()
    with pytest.raises(JournalWriteError, match="this writer is closed"):
        out.append(*done[1])
    assert states_of(tmp_path) == [1]


@pytest.mark.parametrize("at", range(60))
def test_a_power_cut_at_any_operation_loses_no_committed_record(tmp_path: Path, at: int) -> None:
    done, committed = run(N), 0
    files = Faulty(("open_append", "write", "fdatasync", "fsync_dir", "pwrite"), at, Crash())
    with contextlib.suppress(Crash):
        out = writer(tmp_path, files=files, seal_records=4)
        try:
            for transition in done:
                out.append(*transition)
                out.sync()
        finally:
            committed = out.seq
            kill(out)
    assert recover(tmp_path).end.seq == committed
    assert same(list(Journal(tmp_path)), done[:committed])


def test_a_file_that_is_gone_altogether_is_told_as_any_failure_is(tmp_path: Path) -> None:
    """It can't even be asked how much it holds."""
    done = run(3)
    out = writer(tmp_path)
    out.append(*done[0])
    os.close(out._output._fd)
    with pytest.raises(JournalWriteError, match="EBADF"):
        out.append(*done[1])
    assert out.seq == 1
    assert [b'"seq":2' in line for line, _ in out.unwritten] == [True]
    out._output.tail._fd = -1  # it is closed
    out.abandon()
