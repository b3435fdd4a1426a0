"""The example, run as a reader runs it: in processes of their own, one of which is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tachograph.engine import Journal, diff

EXAMPLE = Path(__file__).parent.parent / "examples" / "char_gpt.py"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}  # sums are added in the same order in every process


def started(run_dir: Path, *options: str) -> subprocess.Popen[bytes]:
    """Start the example for 45 batches; it takes a snapshot at 25."""
    command = [sys.executable, str(EXAMPLE), "--run-dir", str(run_dir), "--batches", "45", *options]
    return begun(command)


def begun(command: list[str]) -> subprocess.Popen[bytes]:
    """Start a command in a process group of its own."""
    kept = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "start_new_session": True}
    return subprocess.Popen(command, env=ENVIRONMENT, **kept)


def said_at_the_end(child: subprocess.Popen[bytes]) -> str:
    try:
        said = child.communicate(timeout=300)[0].decode()
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        raise
    assert child.returncode == 0, said
    return said


def wait_for_a_snapshot_and_more(child: subprocess.Popen[bytes], run_dir: Path, batch: int) -> None:
    while not any(run_dir.glob("snapshots/*/COMMIT")):
        assert child.poll() is None, said_at_the_end(child)
        time.sleep(0.01)
    for record in Journal(run_dir).follow(poll=0.01, stop=lambda: child.poll() is not None):
        if record.state.global_forward_batches >= batch:
            return


def test_killed_and_resumed_it_ends_with_the_chain_of_a_straight_run(tmp_path: Path) -> None:
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    with started(straight) as whole, started(killed) as child:
        wait_for_a_snapshot_and_more(child, killed, batch=30)
        child.kill()
        child.wait()
        said_at_the_end(whole)
    assert 30 <= Journal(killed).last.state.global_forward_batches < 45
    with started(killed, "--resume", "--sample", "20") as resumed:
        said = said_at_the_end(resumed)
    assert diff(straight, killed) is None
    assert Journal(killed).chain == Journal(straight).chain
    assert Journal(killed).last.state == Journal(straight).last.state
    assert f"ends with the chain {Journal(straight).chain}" in said
    [matched] = [side.data for side in Journal(killed).sides("matched")]
    assert matched["matched"] == matched["of"] > 0
    assert f"{matched['of']} of {matched['of']} re-executed transitions match" in said


def test_of_two_ranks_one_is_killed_and_the_restarted_ones_end_with_the_chain_of_a_straight_run(tmp_path: Path) -> None:
    """R17. D5. C6: torchrun starts both anew, and they go on where the last snapshot of both was taken."""
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    with in_two(straight) as whole:
        said_at_the_end(whole)
    with in_two(killed) as child:
        wait_for_a_snapshot_and_more(child, killed, batch=30)
        lock = json.loads((killed / "journal" / "rank-1" / "lock").read_text())
        os.kill(lock["pid"], signal.SIGKILL)
        said = said_at_the_end(child)
    for rank in (0, 1):
        before, after = (Journal(run, rank=rank) for run in (straight, killed))
        assert len(after.incarnations) == 2
        assert after.chain == before.chain
        assert after.last.state == before.last.state
        [matched] = [side.data for side in after.sides("matched")]
        assert matched["matched"] == matched["of"] > 0
    assert f"ends with the chain {Journal(straight).chain}" in said
    assert said.count("ends with the chain") == 1
    assert "another rank is gone" in said


def in_two(run_dir: Path) -> subprocess.Popen[bytes]:
    """Start the example in two processes, as its first lines say."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = ["--run-dir", str(run_dir), "--batches", "45", "--resume"]
    return begun([*launcher, "--max-restarts", "3", str(EXAMPLE), *options])


def test_it_fits_on_a_screen_or_two() -> None:
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) < 100
