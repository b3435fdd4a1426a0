"""In a run whose steps take microseconds, they are committed at once, and become lines a little later."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tachograph.drivers import StubDriver
from tachograph.engine import Callback, Trainer
from tachograph.engine.journal import (
    Journal,
    JournalError,
    JournalLock,
    JournalWriteError,
    JournalWriter,
    Recovery,
    recover,
)
from tachograph.engine.journal.files import HELD
from tachograph.engine.world import World
from tachograph.states import Fetched, Stepped, TrainerState

from .test_journal_support import HalfThen, Quick, Transition, folder, only_file, run, writer

N = 24


def clock(step: float = 1e-5) -> Any:
    now = [1796081234.0]

    def tick() -> float:
        now[0] += step
        return now[0]

    return tick


def hold(out: JournalWriter, done: list[Transition], before: TrainerState | None = None) -> None:
    """Commit transitions as an engine does."""
    for source, event, state in done:
        if isinstance(event, (Fetched, Stepped)) and state.state != "validate":
            out.hold(source, event, before, state)
        else:
            out.append(source, event, state)
        before = state


def quick(run_dir: Path, **settings: Any) -> JournalWriter:
    return writer(run_dir, **{"clock": clock(), "files": Quick(), **settings})


def text(run_dir: Path) -> bytes:
    return only_file(run_dir).read_bytes()


def lines(run_dir: Path) -> list[tuple[int, str, str]]:
    return [(r.seq, r.event, r.chain) for r in Journal(run_dir)]


def killed(tmp_path: Path, n: int = N) -> Path:
    """A journal as it is when its process is killed after the n-th transition."""
    out = quick(tmp_path / "killed")
    hold(out, run(n))
    out.abandon()
    return tmp_path / "killed"


def recovered(run_dir: Path) -> Recovery:
    lock = JournalLock(run_dir)
    try:
        return recover(run_dir)
    finally:
        lock.release()


def straight(tmp_path: Path, n: int = N) -> list[tuple[int, str, str]]:
    out = writer(tmp_path / "straight")
    for transition in run(n):
        out.append(*transition)
    out.close()
    return lines(tmp_path / "straight")


def test_what_is_held_ends_as_the_same_lines(tmp_path: Path) -> None:
    expected = straight(tmp_path)
    out = quick(tmp_path / "held")
    hold(out, run(N))
    assert len(text(tmp_path / "held").splitlines()) < N
    assert out.seq == N
    assert out.chain == expected[-1][2]
    out.close()
    assert lines(tmp_path / "held") == expected
    assert not (folder(tmp_path / "held") / HELD).exists()


@pytest.mark.parametrize("n", range(1, N + 1))
def test_a_killed_process_loses_nothing_of_what_it_held(tmp_path: Path, n: int) -> None:
    """Whatever the n-th transition is, and however many before it are held."""
    expected = straight(tmp_path, n)
    run_dir = killed(tmp_path, n)
    assert lines(run_dir) == expected  # a reader has them, and changes nothing
    assert Journal(run_dir).last.seq == len(Journal(run_dir)) == n  # type: ignore[union-attr]
    assert Journal(run_dir).chain == Journal(run_dir).verify_chain() == expected[-1][2]
    assert [Journal(run_dir).seek(seq).seq for seq in range(1, n + 1)] == list(range(1, n + 1))
    assert [record.seq for record in Journal(run_dir).since(n)] == [n]
    found = recovered(run_dir)
    assert (found.end.seq, found.end.chain) == (n, expected[-1][2])
    assert lines(run_dir) == expected
    assert recovered(run_dir).added == 0


def test_lines_that_were_being_written_when_the_process_was_killed_are_completed(tmp_path: Path) -> None:
    """The file ends at any byte of the lines that were on their way."""
    run_dir, expected = killed(tmp_path), straight(tmp_path)
    before = text(run_dir)
    shutil.copytree(run_dir, tmp_path / "recovered")
    recovered(tmp_path / "recovered")
    whole = text(tmp_path / "recovered")
    assert len(whole) > len(before)
    for end in range(len(before), len(whole) + 1, 7):
        again = tmp_path / f"cut-{end}"
        shutil.copytree(run_dir, again)
        only_file(again).write_bytes(whole[:end])
        assert recovered(again).end.seq == N
        assert lines(again) == expected
        assert text(again) == whole


def test_of_a_torn_page_the_entries_before_the_tear_are_kept(tmp_path: Path) -> None:
    run_dir, expected = killed(tmp_path), straight(tmp_path)
    held = (folder(run_dir) / HELD).read_bytes().rstrip(b"\0")
    ends = []
    for end in range(len(held)):
        again = tmp_path / f"torn-{end}"
        shutil.copytree(run_dir, again)
        (folder(again) / HELD).write_bytes(held[:end] + b"\xff" * 3)
        ends.append(recovered(again).end.seq)
        assert lines(again) == expected[: ends[-1]]
    assert ends == sorted(ends)
    assert len(set(ends)) > 2


def test_a_page_of_another_point_adds_nothing(tmp_path: Path) -> None:
    run_dir, other = killed(tmp_path), tmp_path / "other"
    out = writer(other)
    for transition in run(N + 5):
        out.append(*transition)
    out.close()
    expected = lines(other)
    shutil.copy(folder(run_dir) / HELD, folder(other) / HELD)
    assert recovered(other).added == 0
    assert lines(other) == expected
    for noise in (b"", b"\0" * 99, os.urandom(4096), b"\x00\x05abcdefghijkl"):
        (folder(other) / HELD).write_bytes(noise)
        assert recovered(other).added == 0


def test_where_steps_take_a_millisecond_every_transition_is_a_line_at_once(tmp_path: Path) -> None:
    out = quick(tmp_path, clock=clock(6e-4))
    hold(out, run(N))
    assert len(text(tmp_path).splitlines()) == N + 1
    out.close()


def test_what_is_held_is_written_within_a_time_and_a_number(tmp_path: Path) -> None:
    done = run(400)
    out = quick(tmp_path, clock=clock(1e-6))
    before, most = None, 0
    for source, event, state in done:
        out.hold(source, event, before, state) if isinstance(event, (Fetched, Stepped)) else out.append(
            source, event, state
        )
        before, most = state, max(most, len(out._held))
        assert text(tmp_path).count(b"\n") + len(out._held) == state.seq + 1
    assert 0 < most < 64
    out.close()


def test_a_state_that_was_changed_between_two_transitions_is_a_line_at_once(tmp_path: Path) -> None:
    """An event and the state before don't say it all then."""
    import attrs

    done = run(6)
    out = quick(tmp_path)
    hold(out, done[:4])
    source, event, state = done[4]
    raised = attrs.evolve(state, n_epochs=3)
    out.hold(source, event, attrs.evolve(done[3][2], n_epochs=3), raised)
    assert Journal(tmp_path).last.state == raised  # type: ignore[union-attr]
    out.close()


@pytest.mark.parametrize("at", range(1, 9))
def test_what_cant_be_written_is_kept_line_by_line(tmp_path: Path, at: int) -> None:
    """A disk that is full in the midst of several lines: those it took are committed, the others go with a snapshot."""
    expected = straight(tmp_path)
    out = quick(tmp_path / "full", files=HalfThen(("write",), at, OSError(errno.ENOSPC, "")))
    done, n = run(N), 0
    try:
        for n in range(1, N + 1):
            hold(out, done[n - 1 : n], done[n - 2][2] if n > 1 else None)
            if n % 5 == 0:
                out.flush()
    except JournalWriteError:
        pass
    else:
        pytest.fail("the disk wasn't full")
    lost = out.unwritten
    out.close()
    shutil.rmtree(folder(tmp_path / "full") / HELD, ignore_errors=True)
    lock = JournalLock(tmp_path / "full")
    end = recover(tmp_path / "full").end
    assert end.seq + len(lost) >= n
    following = writer(tmp_path / "full", incarnation=1, parent=end, lock=lock)
    for line, chain in lost[end.seq - n :] if end.seq < n else ():
        following.rewrite(line, chain)
    for transition in done[n:]:
        following.append(*transition)
    following.close()
    assert lines(tmp_path / "full") == expected


def test_a_value_that_only_a_line_can_hold_or_refuse_is_left_to_it(tmp_path: Path) -> None:
    """A driver of one's own may count its generators in any number, and give a loss of any kind."""
    done = run(4)
    source, _, state = done[3]
    for loss, rng, error in ((0.5, 2**70, None), (np.float32(0.5), 1, JournalError)):
        out = quick(tmp_path / str(rng))
        hold(out, done[:3])
        event = Stepped(loss=loss, rng=rng)  # type: ignore[arg-type]
        with pytest.raises(error) if error else contextlib.nullcontext():
            out.hold(source, event, done[2][2], state)
        assert out.seq == (3 if error else 4)
        out.close()
        assert len(Journal(tmp_path / str(rng))) == out.seq


# -- with an engine -----------------------------------------------------------------------------------------


def trained(run_dir: Path | None, callbacks: Any = (), **settings: Any) -> Trainer:
    return Trainer(
        None, StubDriver(), list(range(1, 41)), None, n_epochs=2, run_dir=run_dir, callbacks=list(callbacks),
        progress_bar=None, **{"snapshot_every": None, **settings},
    )  # fmt: skip


def test_listeners_change_nothing_in_the_history(tmp_path: Path) -> None:
    silent, heard = trained(tmp_path / "silent"), trained(tmp_path / "heard")
    seen: list[int] = []
    heard.on("on_train_batch_end", lambda trainer: seen.append(Journal(tmp_path / "heard").last.seq))  # type: ignore[union-attr]
    silent.run()
    heard.run()
    assert lines(tmp_path / "silent") == lines(tmp_path / "heard")
    assert seen == [r.seq for r in Journal(tmp_path / "heard") if r.event == "Stepped"]  # committed before it is heard


class Within(Callback):
    def __init__(self, run_dir: Path) -> None:
        self.run_dir, self.seen = run_dir, []  # type: ignore[var-annotated]

    def on_before_backward(self, trainer: Any, outputs: Any) -> None:
        self.seen.append((Journal(self.run_dir).last.seq, trainer.trainer_state.seq))  # type: ignore[union-attr]


def test_who_hears_a_step_from_within_finds_its_batch_in_the_journal(tmp_path: Path) -> None:
    within = Within(tmp_path / "run")
    trained(tmp_path / "run", [within]).run()
    assert within.seen
    assert all(journal == state for journal, state in within.seen)


def test_a_trainers_own_journal_holds_all_that_is_committed(tmp_path: Path) -> None:
    trainer = trained(tmp_path / "run")
    seen = []

    class Model(StubDriver):
        def train_step(self, batch: Any) -> Any:
            if batch % 7 == 0:
                seen.append((trainer.journal.last.seq, trainer.trainer_state.seq))
            return super().train_step(batch)

    trainer.driver.__class__ = Model
    trainer.run()
    assert seen
    assert all(journal == state for journal, state in seen)


KILLED = """
import os, signal, sys
from pathlib import Path
from tachograph.drivers import StubDriver
from tachograph.engine import Trainer

def strike(driver):
    if driver.calls.count("train_step") == int(sys.argv[2]):
        print(trainer.trainer_state.seq, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

driver = StubDriver(**({"on": {"train_step": strike}} if int(sys.argv[2]) else {}))
trainer = Trainer(None, driver, list(range(1, 401)), None, n_epochs=1, run_dir=Path(sys.argv[1]), progress_bar=None)
trainer.run(resume_from="auto")
"""


def test_a_sigkill_in_the_midst_of_quick_steps_loses_no_committed_transition(tmp_path: Path) -> None:
    """What a real process had committed is there when it is gone on with, the batch in hand included."""

    def go(run_dir: Path, at: int) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", KILLED, str(run_dir), str(at)], capture_output=True, text=True, timeout=120
        )

    go(tmp_path / "straight", 0)
    for at in (150, 311):
        run_dir = tmp_path / f"killed-{at}"
        done = go(run_dir, at)
        assert done.returncode == -signal.SIGKILL
        committed = int(done.stdout)
        assert committed == 2 * at + 1
        assert Journal(run_dir).last.seq == committed  # type: ignore[union-attr]
        assert sum(1 for _ in Journal(run_dir)) == committed
        assert go(run_dir, 0).returncode == 0
        (matched,) = Journal(run_dir).sides("matched")
        assert (matched.data["matched"], matched.data["of"]) == (committed, committed)
        assert Journal(run_dir).chain == Journal(tmp_path / "straight").chain


def test_a_snapshot_that_is_written_beside_the_run_leaves_what_is_held_to_the_run(tmp_path: Path) -> None:
    """The thread that writes it waits for the journal, and may do so while the next steps are held, or become lines."""

    class Slow(Quick):
        def write(self, fd: int, data: bytes) -> int:
            time.sleep(0.003)
            return super().write(fd, data)

    trainer = trained(tmp_path / "run", snapshot_every=7, keep_snapshots=1)
    trainer.world = World(files=Slow(), clock=clock())  # so that the steps are quick ones nevertheless
    trainer.run()
    assert [r.seq for r in Journal(tmp_path / "run")] == list(range(1, trainer.trainer_state.seq + 1))
