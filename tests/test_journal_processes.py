"""Several processes: killed ones, forked ones, two writers, and a reader that watches."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tachograph.engine.journal import Journal, JournalBusy, JournalLock, JournalWriteError, recover
from tests.test_journal_support import folder, in_child, run, same, states_of, writer


def appended_then_killed(run_dir: Path, k: int, **settings: Any) -> None:
    """In a child: commit `k` transitions, then SIGKILL."""

    def work() -> None:
        out = writer(run_dir, **settings)
        for transition in run(k):
            out.append(*transition)
        os.kill(os.getpid(), signal.SIGKILL)

    pid = in_child(work)
    assert os.WTERMSIG(os.waitpid(pid, 0)[1]) == signal.SIGKILL


@pytest.mark.parametrize("k", range(0, 26, 3))
def test_a_process_killed_after_any_record_has_lost_none(tmp_path: Path, k: int) -> None:
    appended_then_killed(tmp_path, k, seal_records=7)
    found = recover(tmp_path)
    assert found.cut == []
    assert found.end.seq == k
    assert same(list(Journal(tmp_path)), run(k))


@pytest.mark.sweep
@pytest.mark.parametrize("k", range(200))
def test_a_process_killed_after_any_of_many_records_has_lost_none(tmp_path: Path, k: int) -> None:
    appended_then_killed(tmp_path, k, seal_records=11, sync_every=0.0)
    assert recover(tmp_path).end.seq == k


def test_a_process_killed_while_it_writes_leaves_a_run_of_whole_records(tmp_path: Path) -> None:
    def work() -> None:
        out = writer(tmp_path, sync_every=0.0, seal_records=500)
        for transition in run(10**5):
            out.append(*transition)

    pid = in_child(work)
    for record in Journal(wait_for(tmp_path)).follow(poll=0.001):
        if record.seq == 1500:
            break
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    end = recover(tmp_path).end
    assert end.seq >= 1500
    assert states_of(tmp_path) == list(range(1, end.seq + 1))
    assert Journal(tmp_path).verify_chain() == end.chain


def wait_for(run_dir: Path) -> Path:
    while not (folder(run_dir) / "000000000000.i0.jsonl").exists():
        os.sched_yield()
    return run_dir


def test_a_second_writer_in_this_process_is_refused_until_the_first_is_closed(tmp_path: Path) -> None:
    out = writer(tmp_path)
    with pytest.raises(JournalBusy, match=f"process {os.getpid()} on ") as caught:
        JournalLock(tmp_path)
    assert caught.value.pid == os.getpid()
    out.close()
    JournalLock(tmp_path).release()


def test_a_second_writer_is_refused_while_another_process_lives_and_let_in_when_it_is_killed(tmp_path: Path) -> None:
    read, write = os.pipe()

    def work() -> None:
        out = writer(tmp_path)
        os.write(write, b"x")
        signal.pause()
        out.close()

    pid = in_child(work)
    assert os.read(read, 1) == b"x"
    with pytest.raises(JournalBusy, match="a journal has one writer at a time") as caught:
        writer(tmp_path)
    assert caught.value.pid == pid
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    JournalLock(tmp_path).release()
    os.close(read)
    os.close(write)


def test_a_forgotten_writer_frees_the_lock(tmp_path: Path) -> None:
    out = writer(tmp_path)
    out.append(*run(1)[0])
    thread = out._output.tail.pulse.thread
    del out
    gc.collect()
    JournalLock(tmp_path).release()
    assert thread is not None
    thread.join()


def test_a_forked_child_neither_writes_nor_holds_the_lock(tmp_path: Path) -> None:
    out, done = writer(tmp_path), run(3)
    out.append(*done[0])
    read, write = os.pipe()
    release, hold = os.pipe()

    def work() -> None:
        try:
            out.append(*done[1])
        except JournalWriteError as error:
            os.write(write, str(error).encode())
        os.read(release, 1)

    pid = in_child(work)
    assert f"this writer belongs to process {os.getpid()}" in os.read(read, 4096).decode()
    out.append(*done[1])
    out.close()
    JournalLock(tmp_path).release()  # although the child still lives
    os.write(hold, b"x")
    os.waitpid(pid, 0)
    assert same(list(Journal(tmp_path)), done[:2])


def test_a_follower_sees_every_record_once_over_segments_and_a_resume(tmp_path: Path) -> None:
    def first() -> None:
        out = writer(tmp_path, seal_records=50)
        for transition in run(330):
            out.append(*transition)

    def second() -> None:
        lock = JournalLock(tmp_path)
        recover(tmp_path)
        record = Journal(tmp_path).seek(300)
        parent = type(recover(tmp_path).end)(0, 300, record.chain)
        out = writer(tmp_path, incarnation=1, parent=parent, lock=lock, seal_records=50)
        for transition in run(400)[300:]:
            out.append(*transition)
        out.close()

    pids = [in_child(first)]
    seen = []
    for record in Journal(wait_for(tmp_path)).follow(poll=0.001):
        seen.append((record.incarnation, record.seq))
        if seen[-1] == (0, 330):
            os.waitpid(pids[0], 0)
            pids = [in_child(second)]
        if seen[-1] == (1, 400):
            break
    os.waitpid(pids[0], 0)
    assert seen == [(0, n) for n in range(1, 331)] + [(1, n) for n in range(301, 401)]
