"""`make demo`: a training is killed in the middle, goes on, and is shown to have lost nothing.

It runs `char_gpt.py` in processes of its own, so that the kill is a real one. It takes about a minute, and exits with
a status other than 0 if anything isn't as it says.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from tachograph.engine import Journal

EXAMPLE = Path(__file__).with_name("char_gpt.py")
RUN_DIR = Path("runs") / "demo"
KILL_AT = 445  # batches of 800; the last snapshot before it is that of batch 425
PATIENCE = 600.0  # seconds; nothing here takes nearly as long
THREADS = {
    "OMP_NUM_THREADS": "2",
    "OMP_WAIT_POLICY": "PASSIVE",  # on a busy machine, threads that spin while they wait slow every step many times
}


def say(text: str) -> None:
    print(f"\n\033[1m{text}\033[0m\n" if sys.stdout.isatty() else f"\n== {text}\n", flush=True)


def fail(text: str) -> None:
    sys.exit(f"\nThe demo failed: {text}")


def example(*options: str) -> "subprocess.Popen[bytes]":
    command = [sys.executable, str(EXAMPLE), "--run-dir", str(RUN_DIR), *options]
    return subprocess.Popen(command, env={**os.environ, **THREADS})


def wait_for_batch(child: "subprocess.Popen[bytes]", batch: int) -> None:
    """Follow the journal, as anybody may while a run writes it, until so many batches are committed."""
    begun = time.monotonic()

    def over() -> bool:
        return child.poll() is not None or time.monotonic() - begun > PATIENCE

    while not any(RUN_DIR.glob("journal/rank-0/*.jsonl")) and not over():
        time.sleep(0.05)
    if not over():
        for record in Journal(RUN_DIR).follow(stop=over):
            if record.state.global_forward_batches >= batch:
                return
    fail(f"the training never came to batch {batch}")


def train_and_kill() -> None:
    with example() as child:
        try:
            wait_for_batch(child, KILL_AT)
        finally:
            child.kill()  # SIGKILL: the process gets no chance to save or to say anything


def train_on_to_the_end() -> None:
    with example("--resume", "--sample", "400") as child:
        if child.wait(PATIENCE) != 0:
            fail(f"the resumed training ended with status {child.returncode}")


def check() -> str:
    """Hold what the journal says against what was promised, and say it."""
    journal = Journal(RUN_DIR)
    for side in journal.sides("diverged"):
        fail(f"the resumed training diverged from what had been recorded: {side.data}")
    found = [side.data for side in journal.sides("matched")]
    if not found or found[-1]["of"] == 0 or found[-1]["matched"] != found[-1]["of"]:
        fail(f"the journal doesn't say that all re-executed transitions match: {found}")
    last = journal.last
    if last is None or last.dest != "done" or journal.verify_chain() != journal.chain:
        fail(f"the run doesn't end in 'done' with an unbroken chain, but with {last}")
    return f"{found[-1]['matched']} of {found[-1]['of']} re-executed transitions match"


def main() -> None:
    begun = time.monotonic()
    shutil.rmtree(RUN_DIR, ignore_errors=True)
    say(f"A small GPT learns the text of Python's standard library. Its journal and snapshots go to {RUN_DIR}.")
    train_and_kill()
    last = Journal(RUN_DIR).last
    assert last is not None
    done = last.state.global_forward_batches
    say(f"That was SIGKILL, after batch {done}. The journal holds all {last.seq:,} transitions up to there.")
    print("A new process goes on from the newest snapshot. What the dead one had recorded since is done once more,")
    print("and every transition must come out with the same bits.\n", flush=True)
    train_on_to_the_end()
    said = check()
    say(f"What the journal knows of this run: tachograph show {RUN_DIR}")
    command = Path(sys.executable).with_name("tachograph")
    if subprocess.run([command, "show", RUN_DIR], timeout=PATIENCE).returncode != 0:
        fail("`tachograph show` couldn't show the run")
    say(f"Killed once, nothing lost: {said}. That took {time.monotonic() - begun:.0f} seconds.")


if __name__ == "__main__":
    main()
