"""`tachograph watch`: a run that goes on in another process, as a person and a program see it."""

from __future__ import annotations

import itertools
import math
import os
import re
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.engine import Callback, Journal, recording
from tachograph.engine.cli.commands import watch
from tachograph.engine.cli.curves import Curve, draw
from tachograph.engine.cli.watch_page import Paper, fitted, line, page
from tachograph.engine.cli.watched import Watched
from tests import test_cli_ranks as of_ranks
from tests.terminals import Tmux
from tests.test_cli_ranks import transitions
from tests.test_cli_support import PROGRAM, Said, cli, failed, in_a_process, killed, resumed, validating
from tests.toys import stub

JOB = [sys.executable, "-m", "tests.jobs.watched_job"]


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    held: list[subprocess.Popen[str]] = []
    yield held
    for process in held:
        if process.poll() is None:
            process.kill()
        process.wait(30)


def start(held: list[subprocess.Popen[str]], *command: str | Path, **more: Any) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([str(part) for part in command], **pipes, **more)
    held.append(process)
    return process


def ended(process: subprocess.Popen[str]) -> Said:
    out, err = process.communicate(timeout=60)
    return Said(process.returncode, out, err)


def wait_for(found: Any) -> None:
    end = time.monotonic() + 30
    while not found():
        assert time.monotonic() < end
        time.sleep(0.02)


def read_whole(run_dir: Path) -> Watched:
    watched = Watched(run_dir, recording.load(run_dir))
    for item in Journal(run_dir, rank="all").follow(0.0, lambda: True, sides=True):
        watched.take(item)
    return watched


def drawn(watched: Watched, width: int = 80, height: int = 40, *, plain: bool = False) -> list[str]:
    paper = Paper(width=width, height=height, plain=plain, decorated=False)
    return page(watched, "still running", paper, time.time())


# -- how it ends -------------------------------------------------------------------------------------------


def test_a_run_that_has_ended_is_told_in_lines_and_the_command_ends(run_dir: Path) -> None:
    stub(run_dir=run_dir, **validating()).run()
    said = cli("watch", run_dir)
    assert (said.status, said.err) == (0, "")
    assert said.lines[0] == f"Run {run_dir}"
    assert re.search(r"done         epoch 2/2  batch 0/3  in all 6/6  loss ", said.out)
    assert said.lines[-1] == "the run has ended: done"


def test_one_that_failed_ends_with_status_1_and_its_error(run_dir: Path) -> None:
    said = cli("watch", failed(run_dir))
    assert said.status == 1
    assert said.lines[-1] == "the run has ended: failed: ValueError"


def test_one_whose_process_is_gone_is_waited_for_a_moment_and_then_called_killed(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "_GRACE", 0.3)
    killed(run_dir)
    began = time.monotonic()
    said = cli("watch", run_dir)
    assert time.monotonic() - began >= 0.3
    assert (said.status, said.lines[-1]) == (1, "the run has ended: killed")


def test_a_stopped_run_ends_well_with_its_reason(run_dir: Path) -> None:
    trainer = stub(run_dir=run_dir)
    trainer.on("step -> fetch", lambda t: t.stop("enough"))
    trainer.run()
    said = cli("watch", run_dir)
    assert (said.status, said.lines[-1]) == (0, "the run has ended: stopped: enough")


@pytest.mark.parametrize("then", ["", "fail"])
def test_a_live_run_is_followed_from_another_process_to_its_end(then: str, run_dir: Path, processes: Any) -> None:
    """It is started before the run directory is there, and says so."""
    watching = start(processes, *PROGRAM, "watch", run_dir, "--every", "0.05")
    assert watching.stderr.readline() == f"waiting for {run_dir}: no run has begun there yet (Ctrl-C ends this)\n"
    training = start(processes, *JOB, run_dir, "0.02", "2", then)
    said = ended(watching)
    assert said.status == (1 if then else 0), said.err
    batches = [int(found) for found in re.findall(r"in all (\d+)/40", said.out)]
    assert batches == sorted(batches)
    assert len(set(batches)) >= 3
    assert re.search(r"saved       snapshot 0+\d+", said.out)
    assert then or re.search(r"\d batches/s", said.out)  # it takes a quarter of a second to know
    assert ("the run has ended: failed: ValueError" if then else "the run has ended: done") in said.out
    training.wait(30)


def test_with_stay_a_resume_is_taken_in_and_its_curve_goes_on_where_it_began(run_dir: Path, processes: Any) -> None:
    first = start(processes, *JOB, run_dir, "0.02", "2", "die")
    watching = start(processes, *PROGRAM, "watch", run_dir, "--every", "0.05", "--stay")
    assert first.wait(60) == 9
    lines: list[str] = []
    for told in watching.stdout:
        lines.append(told)
        if "in all 14/40" in told:
            break
    second = start(processes, *JOB, run_dir, "0.001", "2")
    for told in watching.stdout:
        lines.append(told)
        if "in all 40/40" in told:
            break
    assert second.wait(60) == 0
    watching.send_signal(signal.SIGINT)
    assert ended(watching).status == 130
    assert any("resumed     from snapshot" in told for told in lines)


def test_watching_changes_nothing_in_the_run_directory(run_dir: Path) -> None:
    stub(run_dir=run_dir).run()

    def held() -> dict[str, tuple[int, bytes]]:
        return {str(p): (p.stat().st_mtime_ns, p.read_bytes()) for p in run_dir.rglob("*") if p.is_file()}

    before = held()
    cli("watch", run_dir)
    assert held() == before


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: stub(run_dir=path / "inner").run(), "isn't a run directory: it has no run.json. Runs in"),
        (lambda path: path.write_text("x"), "can't be read"),
        (lambda path: newer(path), "is of format 99"),
    ],
    ids=["a directory of runs", "a file", "a newer run"],
)
def test_what_cannot_be_watched_is_refused_in_a_sentence(make: Any, sentence: str, run_dir: Path) -> None:
    make(run_dir)
    said = cli("watch", run_dir)
    assert (said.status, len(said.err.splitlines())) == (2, 1)
    assert sentence in said.err


def newer(path: Path) -> None:
    stub(run_dir=path).run()
    about = recording.load(path)
    recording.write_json(path / "run.json", {**about, "format": 99})


@pytest.mark.parametrize("every", ["0", "nan", "x", "-1"])
def test_a_time_that_is_none_is_refused(every: str, run_dir: Path) -> None:
    said = cli("watch", run_dir, "--every", every)
    assert (said.status, len(said.err.splitlines())) == (2, 1)


def test_a_damaged_journal_ends_it_in_a_sentence(run_dir: Path) -> None:
    stub(run_dir=run_dir).run()
    path = next((run_dir / "journal" / "rank-0").glob("*.jsonl"))
    text = path.read_bytes()
    path.write_bytes(text[:500] + b"#" + text[501:])
    said = cli("watch", run_dir)
    assert (said.status, len(said.err.splitlines())) == (2, 1)
    assert "is damaged at byte" in said.err


def test_it_imports_no_torch_and_no_rich(run_dir: Path) -> None:
    stub(run_dir=run_dir).run()
    code = (
        "import sys\nfrom tachograph.engine.cli.app import run\nrun(['watch', sys.argv[1]])\n"
        "sys.exit(10 + ('torch' in sys.modules or 'rich' in sys.modules))"
    )
    assert in_a_process(code, run_dir).returncode == 10


# -- in a terminal -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_a_person_sees_a_page_that_fits_follows_a_new_size_and_ctrl_c_gives_the_terminal_back(
    columns: int, tmux: Tmux, run_dir: Path, processes: Any
) -> None:
    """In tmux: machine with the state in work, progress, curves; the last page stays behind."""
    start(processes, *JOB, run_dir, "0.05", "50")
    wait_for((run_dir / "run.json").exists)
    tmux.start(columns, [*PROGRAM[:2], "from tachograph.engine.cli import main; main()", "watch", str(run_dir)], 24)
    tmux.wait_for(lambda: any("batches/s" in told for told in tmux.screen))
    tmux.wait_for(lambda: any(re.search(r"[\u2801-\u28ff]", told) for told in tmux.screen))
    screen = tmux.screen
    assert screen[0] == f"Run {run_dir}"[:columns]
    assert re.match("still running, process ", screen[1])
    assert len(re.findall(r"\[(step|fetch)\]", "".join(screen))) == 1
    assert max(map(len, screen)) <= columns
    assert len(screen) <= 24
    tmux("resize-window", "-x", "60", "-y", "15")
    tmux.wait_for(lambda: len(tmux.screen) <= 15 and any("[" in told for told in tmux.screen))
    tmux.wait_for(lambda: any(40 < len(told) <= 60 for told in tmux.screen))
    tmux("send-keys", "C-c")
    tmux.wait_for(lambda: any(told.startswith("status") for told in tmux.screen))
    assert tmux.screen[-1] == "status 130"
    assert any(re.match(r"epoch \d+/50", told) for told in tmux.screen)
    assert tmux("display-message", "-p", "#{cursor_flag} #{alternate_on}").split() == ["1", "0"]


def test_sigterm_gives_the_terminal_back_too(tmux: Tmux, run_dir: Path, processes: Any) -> None:
    start(processes, *JOB, run_dir, "0.05", "50")
    wait_for((run_dir / "run.json").exists)
    tmux.start(80, [*PROGRAM[:2], "from tachograph.engine.cli import main; main()", "watch", str(run_dir)], 24)
    tmux.wait_for(lambda: any("still running" in told for told in tmux.screen))
    shell = int(tmux("display-message", "-p", "#{pane_pid}"))
    (child,) = subprocess.run(["pgrep", "-P", str(shell)], capture_output=True, text=True, check=True).stdout.split()
    os.kill(int(child), signal.SIGTERM)
    tmux.wait_for(lambda: any(told.startswith("status 143") for told in tmux.screen))
    assert tmux("display-message", "-p", "#{cursor_flag} #{alternate_on}").split() == ["1", "0"]


# -- the page ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "height"), [*itertools.product([1, 20, 40, 80, 200], [1, 5, 12, 24, 60])])
@pytest.mark.parametrize("plain", [False, True])
def test_a_page_never_takes_more_than_there_is(width: int, height: int, plain: bool, run_dir: Path) -> None:
    stub(run_dir=run_dir, batches=[5, 4, 3, 2], **validating()).run()
    lines = drawn(read_whole(run_dir), width, height, plain=plain)
    assert len(lines) <= height
    assert all(len(told) <= width for told in lines)
    assert not plain or all(told.isascii() for told in lines)


def test_the_page_has_the_machine_the_progress_the_curves_and_what_happened(run_dir: Path) -> None:
    stub(run_dir=run_dir, batches=[5, 4, 3, 2], snapshot_every=2, **validating()).run()
    lines = drawn(read_whole(run_dir), 100)
    text = "\n".join(lines)
    machine = next(told for told in lines if "sanity_check" in told)
    assert " ".join(machine.split()) == ("init sanity_check epoch_begin fetch step validate epoch_end [done] exception")
    assert "epoch 2/2   batch 0/4   in all 8/8" in text
    assert "100 %" in text
    losses = [record.data["loss"] for record in Journal(run_dir) if record.event == "Stepped"]
    assert f"loss {losses[-1]:.6g}  from {min(losses):.6g} to {max(losses):.6g}" in text
    assert "sum#sum#dev 3" in text
    assert re.search(r"snapshots: \d+ saved, the last 0000000000\d\d at ", text)
    assert re.search(r"Validated   validate -> epoch_end", text)


def test_a_machine_of_the_user_s_own_shows_the_states_it_was_seen_in(run_dir: Path) -> None:
    stub(run_dir=run_dir).run()
    watched = read_whole(run_dir)
    watched._seen["distill"] = None
    assert "distill" in watched.states
    assert "exception" not in watched.states


def test_losses_that_are_not_finite_stand_out(run_dir: Path) -> None:
    from tachograph.drivers import StubDriver

    losses = iter([1.0, math.nan, 2.0, math.inf, 1.0, 1.0])
    driver = StubDriver(on={"train_step": lambda d: None})
    driver.train_step = lambda batch: {"loss": next(losses)}  # type: ignore[method-assign]
    stub(run_dir=run_dir, driver=driver).run()
    watched = read_whole(run_dir)
    seq = next(r.seq for r in Journal(run_dir) if r.event == "Stepped" and math.isnan(r.data["loss"]))
    assert f"NOT FINITE: 2, from {seq} on" in "\n".join(drawn(watched))


def test_what_a_run_recorded_cannot_steer_the_terminal(run_dir: Path) -> None:
    failed(run_dir, text="\x1b[2J\x07 gone")
    lines = drawn(read_whole(run_dir), 200)
    assert any(r"\x1b[2J" in told for told in lines)
    assert not any("\x1b" in told for told in lines)


def test_a_resume_cuts_the_curves_back_to_where_it_began(run_dir: Path) -> None:
    class Stop(Callback):
        def on_train_batch_end(self, trainer: Any) -> None:
            if trainer.trainer_state.global_forward_batches == 4:
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stub(run_dir=run_dir, snapshot_every=2, callbacks=Stop()).run()
    watched = Watched(run_dir, recording.load(run_dir))
    going_on = [True]
    for item in Journal(run_dir, rank="all").follow(0.0, lambda: once(going_on, run_dir), sides=True):
        watched.take(item)
    steps = [record.seq for record in Journal(run_dir) if record.event == "Stepped"]
    curve = watched.curves["loss"]
    assert [span.first for span in curve._spans] == steps
    assert watched.newest == 1


def once(going_on: list[bool], run_dir: Path) -> bool:
    """Resume the run the first time this is asked; then say that it is over."""
    if not going_on.pop():
        return True
    going_on.append(False)
    resumed(run_dir)
    return False


def test_memory_does_not_grow_with_the_transitions(run_dir: Path) -> None:
    stub(run_dir=run_dir, batches=range(200), n_epochs=1).run()
    items = list(Journal(run_dir).everything())
    watched = Watched(run_dir, recording.load(run_dir))
    peaks = []
    for rounds in (10, 40):
        tracemalloc.start()
        for _ in range(rounds):
            for item in items:
                watched.take(item)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


# -- several ranks -----------------------------------------------------------------------------------------


def late(rank: int, source: str) -> float:
    return 0.005 if rank == 1 and source == "fetch" else 0.0


def test_ranks_are_set_side_by_side_with_who_waits_for_whom(run_dir: Path) -> None:
    run = of_ranks.Run(run_dir, 3, late)
    records = list(transitions(200))
    for rank, upto in ((0, 200), (1, 190), (2, 200)):
        run.rank(rank, records[:upto])
    watched = read_whole(run_dir)
    text = "\n".join(drawn(watched, 100))
    assert "ranks 3, the furthest at 200" in text
    assert re.search(r"rank 1 +\w+ +190.* 10 behind", text)
    assert "The others wait for rank 1" in text
    assert "The others wait for rank 1" in line(watched, time.time())
    assert "Rank 1 is the slowest: it leaves fetch 5 ms after the first rank" in text


def test_a_rank_that_failed_makes_the_status_1(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "_GRACE", 0.0)
    run = of_ranks.Run(run_dir, 2)
    run.rank(0, list(transitions(20)), close=True)
    run.rank(1, list(transitions(10)), ("ValueError", "no", 0.0), close=True)
    said = cli("watch", run_dir)
    assert (said.status, said.lines[-1]) == (1, "the run has ended: failed: ValueError")


# -- curves ------------------------------------------------------------------------------------------------

finite = st.floats(-1e6, 1e6)


@given(values=st.lists(finite, min_size=1, max_size=400), most=st.sampled_from([2, 4, 16]))
def test_a_thinned_curve_keeps_its_room_its_sum_and_its_extremes(values: list[float], most: int) -> None:
    curve = Curve(most)
    for at, value in enumerate(values):
        curve.add(at, value)
    assert len(curve) <= most
    assert sum(span.n for span in curve._spans) == len(values)
    assert sum(span.total for span in curve._spans) == pytest.approx(sum(values), abs=1e-3)
    assert (curve.low, curve.high, curve.value) == (min(values), max(values), values[-1])


@given(n=st.integers(1, 300), at=st.integers(-1, 310))
def test_a_curve_that_is_cut_has_nothing_behind_the_point(n: int, at: int) -> None:
    curve = Curve(16)
    for i in range(n):
        curve.add(i, float(i))
    curve.cut(at)
    assert all(span.first <= span.last <= at for span in curve._spans)
    curve.add(at + 1, 0.0)
    assert curve._spans[-1].last == at + 1


@given(values=st.lists(st.none() | finite, min_size=1, max_size=60), rows=st.integers(1, 6), plain=st.booleans())
def test_a_drawing_has_its_rows_and_reaches_from_the_bottom_to_the_top(
    values: list[float | None], rows: int, plain: bool
) -> None:
    lines, low, high = draw(values, rows, plain=plain)
    assert len(lines) == rows
    held = [value for value in values if value is not None]
    if not held:
        assert not any(lines)
        return
    assert (low, high) == (min(held), max(held))
    blank = " " if plain else " \u2800"
    if high - low > 1e-6:
        assert lines[0].strip(blank)
        assert lines[-1].strip(blank)


def test_a_straight_line_is_drawn_straight() -> None:
    values = [float(i) for i in range(4)]
    assert draw(values, 4, plain=True)[0] == ["   *", "  *", " *", "*"]
    assert draw(values, 1, plain=False)[0] == ["\u2860\u280a"]
    assert draw([0.0, None, None, 3.0], 4, plain=True)[0] == ["   *", "  *", " *", "*"]


@given(st.text(), st.integers(0, 30))
def test_a_line_that_is_fitted_is_a_beginning_of_it(text: str, width: int) -> None:
    assert text.startswith(fitted(text, width))
    assert fitted("\u4e2d\u6587", 3) == "\u4e2d"
