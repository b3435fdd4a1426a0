"""What a person sees of a run: the numbers, each display, terminals and pipes; and that training doesn't notice."""

from __future__ import annotations

import contextlib
import datetime
import importlib.util
import io
import itertools
import json
import logging
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import termios
import threading
import warnings
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch.utils.data import DataLoader

from tachograph.drivers import StubDriver
from tachograph.engine import (
    Callback,
    Engine,
    Events,
    Monitor,
    Progress,
    ProgressCallback,
    RawTextCallback,
    RichCallback,
    TqdmCallback,
    Trainer,
    replay,
)
from tachograph.engine.callbacks.progress.status import Pace, Status
from tachograph.engine.callbacks.progress.wording import FIRST, Columns, Words, duration, fit, joined
from tachograph.engine.world import World
from tachograph.states import Event, Failed, Machine, Row
from tachograph.states.errors import CallerError
from tests.jobs.progress_job import MeanLoss
from tests.terminals import Tmux
from tests.toys import Indexed, Run, Sum, equal, stub, validated

ROOT = Path(__file__).parent.parent
NAN = float("nan")
MODES = ("auto", "rich", "plain", "json", "tqdm")


# -- what the tests look with ------------------------------------------------------------------------------


class Clock:
    """Seconds that go on when they are told to, and by `tick` at each look."""

    def __init__(self, tick: float = 0.0) -> None:
        self.now, self.tick = 100.0, tick

    def __call__(self) -> float:
        self.now += self.tick
        return self.now

    def spend(self, seconds: float) -> None:
        self.now += seconds


class Tty(io.StringIO):
    """A file that says it is a terminal."""

    encoding = "utf-8"  # type: ignore[assignment]

    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns, wherever the tests run."""
    for name in ("CI", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LOCAL_RANK", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


def plain_text(text: str) -> str:
    """Text without the codes that move, colour and erase."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def drawn(text: str) -> list[str]:
    """The lines that were drawn, over one another too, oldest first; one that was drawn again in its place is one."""
    lines = [line for part in re.split(r"\r|\n", text) if (line := plain_text(part).rstrip())]
    return [line for line, _ in itertools.groupby(lines)]


def trainer_of(
    mode: Any = "plain",
    file: Any = None,
    *,
    clock: Clock | None = None,
    spent: float = 0.5,
    loss: Any = lambda batch, n: 0.5,
    progress: dict[str, Any] | None = None,
    driver: StubDriver | None = None,
    batches: Any = (1, 2),
    **settings: Any,
) -> Trainer:
    """A trainer without torch whose batches take `spent` seconds each, shown in `file`."""
    clock = Clock() if clock is None else clock
    shown = Progress(mode, **{"print_every": 1, **(progress or {})}, file=file)
    driver = driver or StubDriver(lambda batch, n: (clock.spend(spent), loss(batch, n))[1])
    callbacks = [shown, *settings.pop("callbacks", [])]
    about = {"metrics": {"m": Sum()}, "validate_dataloaders": [5, 6], **settings}
    trainer = stub(batches, driver, callbacks=callbacks, **about)
    trainer.world = World(timer=clock, clock=clock)
    return trainer


def shown(mode: Any = "plain", **settings: Any) -> str:
    """What a short run shows."""
    file = settings.pop("file", None) or io.StringIO()
    trainer_of(mode, file, **settings).run()
    return str(file.getvalue())


def told(**settings: Any) -> list[dict[str, Any]]:
    """What a short run tells programs."""
    return [json.loads(line) for line in shown("json", **settings).splitlines()]


# -- lines -------------------------------------------------------------------------------------------------

PLAIN = """\
epoch 1/2  batch 1/2  loss 0.5  2.0 batch/s  0:01 left
epoch 1/2  batch 2/2  loss 0.5  2.0 batch/s  0:01 left
validation 1 after batch 2: sum#m 11  n#m 2
epoch 1/2  loss 0.5  2.0 batch/s  0:01 left  done
epoch 2/2  batch 1/2  loss 0.5  2.0 batch/s  0:00 left
epoch 2/2  batch 2/2  loss 0.5  2.0 batch/s
validation 2 after batch 4: sum#m 11  n#m 2
epoch 2/2  loss 0.5  2.0 batch/s  done
"""


def without_batches(text: str) -> str:
    return "".join(line for line in text.splitlines(True) if not re.match(r"epoch \d+/\d+  batch", line))


def test_plain_progress_is_a_line_at_each_point() -> None:
    """K10, C4."""
    assert shown() == PLAIN
    assert shown("raw") == PLAIN  # what the reference trainer calls it


def test_lines_come_after_so_many_batches_of_the_run_or_so_many_seconds() -> None:
    """K10."""
    about = {"batches": range(7), "n_epochs": 2, "metrics": None, "validate_dataloaders": None}

    def batches(**progress: Any) -> list[str]:
        return re.findall(r"batch +(\d+)/", shown(progress=progress, **about))

    assert batches(print_every=3) == ["3", "6", "2", "5"]  # 3, 6, 9 and 12 of the run
    assert batches(print_every="1s") == ["2", "4", "6", "1", "3", "5", "7"]
    assert batches(print_every=datetime.timedelta(seconds=2)) == ["4", "1", "5"]
    assert batches(print_every=None) == []  # half a minute isn't over


def test_the_loss_is_the_mean_over_the_batches_since_it_was_shown_last() -> None:
    """K10: of losses that were measured; one that wasn't yet is no part of it."""
    about = {"batches": range(4), "n_epochs": 1, "metrics": None, "validate_dataloaders": None}
    text = shown(loss=lambda batch, n: [1.0, 2.0, 4.0, 5.0][n], progress={"print_every": 2}, **about)
    assert re.findall(r"loss (\S+)", text) == ["1.5", "4.5", "4.5"]


def test_what_is_said_in_between_takes_nothing_from_the_mean() -> None:
    """K10: a sentence shows no loss, and what programs are told of snapshots or notices begins no new mean."""
    about = {"batches": range(4), "n_epochs": 1, "metrics": None, "validate_dataloaders": None}
    for mode in ("plain", "json"):
        file = io.StringIO()
        trainer = trainer_of(
            mode, file, loss=lambda batch, n: [1.0, 2.0, 4.0, 5.0][n], progress={"print_every": 4}, **about
        )
        trainer.on(Events.on_train_batch_end, lambda t: t.say("hear"), priority=1)
        trainer.run()
        stepped = [line for line in file.getvalue().splitlines() if "batch 4" in line or "stepped" in line]
        assert len(stepped) == 1
        assert re.search(r'loss(": ?| |":)3\b', stepped[0]), stepped


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.123456789, 6, "0.123457"),
        (0.123456789, 2, "0.12"),
        (12345.678, 0, "12346"),
        (1e-9, 6, "1e-09"),
        (0.0, 6, "0"),
        (-0.25, 6, "-0.25"),
        (NAN, 6, "nan"),
        (float("inf"), 6, "inf"),
    ],
)
def test_a_loss_is_rounded_but_never_to_nothing(value: float, digits: int, text: str) -> None:
    """K10: loss_round_ndigit."""
    assert Words(digits).loss(value) == text


def test_results_whose_names_begin_with_an_underscore_are_not_shown() -> None:
    """K10, EV8: in any mode."""

    class Gives(Sum):
        def compute(self) -> dict[str, Any]:
            return {"_raw": [1, 2], "f": 0.123456789}

    about = {"metrics": {"m": Gives()}}
    assert "validation 1 after batch 2: f#m 0.123457\n" in shown(**about)
    assert "validation 1 after batch 2: {" + '"f#m":0.123456789}\n' in shown(progress={"format_json": True}, **about)
    for mode in MODES:
        assert "_raw" not in shown(mode, file=Tty(), **about)


def test_results_as_json_have_words_for_what_is_no_number() -> None:
    """K10: format_json."""
    assert Words(as_json=True).results({"a": NAN, "b": [float("inf")]}) == '{"a":"nan","b":["inf"]}'


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (9.99, "0:09"), (75, "1:15"), (3661, "1:01:01"), (90061, "1d 01:01:01")]
)
def test_a_time_is_minutes_and_seconds_and_more_where_there_is_more(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_slow_rate_is_seconds_a_batch() -> None:
    assert "  4.0 s/batch  0:12 left" in shown(spent=4.0)


def test_without_a_terminal_automatic_progress_is_plain(capsys: pytest.CaptureFixture[str]) -> None:
    """K10: and on stderr, so that what the program prints is left alone."""
    assert shown("auto") == PLAIN
    trainer_of("auto").run()
    assert capsys.readouterr() == ("", PLAIN)


@pytest.mark.parametrize("mode", ["rich", "tqdm"])
def test_into_a_pipe_live_modes_are_plain_without_an_escape_code(mode: str) -> None:
    """K10: rich itself would print nothing there."""
    assert shown(mode) == PLAIN


# -- better or not -----------------------------------------------------------------------------------------


def banners(scores: list[float], progress: dict[str, Any] | None = None, **settings: Any) -> list[str]:
    file = io.StringIO()
    callbacks = [Progress("plain", file=file, **(progress or {}))]
    validated(scores, callbacks=callbacks, **settings).run(num_eval_sanity_batch=0)
    return [line for line in file.getvalue().splitlines() if not line.startswith("epoch")]


def test_a_validation_says_whether_it_was_better_than_the_best_so_far_and_the_end_says_which_was_best() -> None:
    """K10, MO4."""
    assert banners([1.0, 3.0, 3.0, NAN, 2.0], {"monitor": "score"}) == [
        "+++ validation 1 after batch 1: score 1  (best so far)",
        "+++ validation 2 after batch 2: score 3  (best so far, before 1)",
        "--- validation 3 after batch 3: score 3  (best: 3 at validation 2)",
        "--- validation 4 after batch 4: score nan  (best: 3 at validation 2)",
        "--- validation 5 after batch 5: score 2  (best: 3 at validation 2)",
        "best score: 3 at validation 2 after batch 2",
    ]


def test_which_is_better_follows_the_argument_or_the_trainer() -> None:
    """K10, MO1."""
    signs = [
        [line[0] for line in banners([2.0, 1.0, 3.0], progress, **settings)[:3]]
        for progress, settings in (
            ({"monitor": "score", "larger_better": False}, {}),
            ({}, {"monitor": "score", "larger_better": False}),
            ({"larger_better": True}, {"monitor": "score", "larger_better": False}),
            ({"monitor": lambda results: -results["score"]}, {}),
            ({}, {}),
        )
    ]
    assert signs == [["+", "+", "-"], ["+", "+", "-"], ["+", "-", "+"], ["+", "+", "-"], ["v", "v", "v"]]


def test_of_several_results_the_one_that_was_compared_is_named() -> None:
    text = shown(progress={"monitor": "sum"}, loss=lambda batch, n: 0.5)
    assert "+++ validation 1 after batch 2: sum#m 11  n#m 2  (best sum so far)\n" in text
    assert "--- validation 2 after batch 4: sum#m 11  n#m 2  (best sum: 11 at validation 1)\n" in text
    assert text.endswith("best sum: 11 at validation 1 after batch 2\n")


def warned(act: Any) -> list[str]:
    """What is warned of, each time it is."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        act()
    return [str(warning.message) for warning in caught]


def test_a_monitor_that_finds_no_number_is_no_reason_to_end_a_run() -> None:
    """MO3: it is said once, and nothing is called better."""
    lines: list[list[str]] = []
    said = warned(lambda: lines.append(banners([1.0, 2.0], monitor="los")))
    assert lines == [["validation 1 after batch 1: score 1", "validation 2 after batch 2: score 2"]]
    assert len(said) == 1
    assert said[0].startswith("progress: monitor 'los' isn't among the results")
    assert banners([1.0], {"monitor": lambda results: None}) == ["validation 1 after batch 1: score 1"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("own", [True, False], ids=["its own", "the trainer's"])
def test_a_monitor_that_is_not_there_is_said_at_the_sanity_check_once_and_ends_no_run(own: bool, mode: str) -> None:
    """MO3: before anything was trained; the same whose monitor it is. A validation says nothing about it again."""
    file, heard = Tty(), []
    progress, settings = ({"monitor": "accuracy"}, {}) if own else ({}, {"monitor": "accuracy"})
    trainer = trainer_of(mode, file, progress=progress, **settings)
    trainer.on(Events.on_sanity_check_end, lambda trainer, results: heard.append("checked"))
    trainer.on(Events.on_train_batch_begin, lambda trainer, batch, indices: heard.append("trained"))
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *args, **kwargs: heard.append(str(message))
        end = trainer.run()
    assert (end.state, end.validations) == ("done", 2)
    said = heard.pop(0)
    assert said.startswith("progress: monitor 'accuracy' isn't among the results. ")
    assert "sum#m" in said
    assert "(These are the sanity check's results; " in said
    assert said.endswith(" A validation without it is called neither better nor worse")
    assert heard == ["checked", *["trained"] * 4]
    assert not re.search(r"\+\+\+|---|best", file.getvalue())


def test_a_result_that_comes_later_than_the_sanity_check_is_compared_all_the_same() -> None:
    """MO3: the sanity check's few batches may not have made it."""

    class Late(Sum):
        def compute(self) -> dict[str, int]:
            return {"late": self.total} if trainer.global_forward_batches else super().compute()

    file = io.StringIO()
    trainer = trainer_of(file=file, monitor="late", metrics={"m": Late()})
    assert len(warned(trainer.run)) == 1
    assert "+++ validation 1 after batch 2: late#m 11  (best so far)" in file.getvalue()


def test_a_monitor_that_is_taken_for_another_is_said_once() -> None:
    """MO3: what the sanity check has found is kept to."""
    trainer = trainer_of(file=(file := io.StringIO()), monitor=Monitor("sumsum", fuzzy=True))
    assert warned(trainer.run) == ["monitor 'sumsum' isn't among the results: 'sum#m' is taken for it"]
    assert "(best sumsum so far)" in file.getvalue()


@pytest.mark.parametrize("mode", ["rich", "tqdm"])
def test_a_warning_at_the_sanity_check_is_not_glued_to_the_live_line(mode: str) -> None:
    """K10."""
    file = Tty()
    trainer = trainer_of(mode, file, monitor="accuracy")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = lambda message, *args, **kwargs: file.write(f"WARNING {message}\n")
        trainer.run()
    assert any(line.startswith("sanity_check") for line in drawn(file.getvalue()))
    assert any(line.startswith("WARNING") for line in Seen(file.getvalue().replace("\n", "\r\n"), 0).lines)


@pytest.mark.parametrize("mode", ["rich", "tqdm"])
def test_what_is_said_or_printed_over_the_live_line_has_a_line_of_its_own(mode: str) -> None:
    """K10: a print of a program's own has, if it clears the line first."""
    file, texts = Tty(), ["short", "x" * 70, "two\nlines"]
    for begin in ("\r\x1b[K", None):
        trainer = trainer_of(mode, file, batches=range(4))

        def speak(trainer: Any, batch: Any, indices: Any, begin: str | None = begin) -> None:
            for text in texts:
                trainer.say(text) if begin is None else file.write(f"{begin}{text}\n")

        trainer.on(Events.on_train_batch_begin, speak)
        trainer.run()
    assert len([line for line in drawn(file.getvalue()) if line.startswith(("step", "fetch"))]) > 4
    lines = Seen(file.getvalue().replace("\n", "\r\n"), 0).lines
    for text in ("short", "x" * 70, "two", "lines"):
        assert lines.count(text) == 2 * 4 * 2
    assert not any(line.endswith("left") for line in lines)


# -- how it ended ------------------------------------------------------------------------------------------


def strike(error: BaseException, batch: int | None = None) -> Any:
    """A listener that raises an error, after a batch of the run; without a filter, whose counts would be saved."""

    def struck(trainer: Any) -> None:
        if batch in (None, trainer.trainer_state.global_forward_batches):
            raise error

    return struck


def test_a_stop_an_error_and_ctrl_c_say_where_they_came_and_what_the_run_has_to_say_is_shown() -> None:
    """K10."""
    ends: list[str] = []
    for act in (lambda t: t.stop("tired"), strike(ValueError("no [good]")), strike(KeyboardInterrupt())):
        file = io.StringIO()
        trainer = trainer_of(file=file, progress={"print_every": None})
        trainer.on(Events.on_train_batch_end(once=3), act)
        with contextlib.suppress(ValueError, KeyboardInterrupt):
            trainer.run()
        trainer.say("a sentence [with brackets]")
        *_, end, sentence = file.getvalue().splitlines()
        ends.append(end)
        assert sentence == "a sentence [with brackets]"
    assert ends == [
        "stopped at epoch 2/2  batch 1/2  loss 0.5: tired",
        "failed at epoch 2/2  batch 1/2  loss 0.5: ValueError",
        "interrupted at epoch 2/2  batch 1/2  loss 0.5",
    ]


def test_a_run_that_fails_before_its_first_batch_says_so() -> None:
    file = Tty()
    driver = StubDriver(on={"evaluate_step": lambda driver: {}["lost"]})
    with pytest.raises(KeyError):
        trainer_of("rich", file, driver=driver).run()
    assert drawn(file.getvalue())[-1] == "failed at epoch 1/2  batch 0/2: KeyError"


# -- the numbers -------------------------------------------------------------------------------------------


def test_a_run_of_unknown_length_has_no_end_in_sight() -> None:
    """K10: nothing that isn't known is shown; a NaN is."""
    clock = Clock()
    driver = StubDriver(lambda b, n: (clock.spend(0.5), NAN if n else 1e-9)[1], known_length=False)
    trainer = trainer_of(file=(file := io.StringIO()), clock=clock, driver=driver, n_epochs=None)
    trainer.on(Events.on_validate_end, lambda t, results: t.stop("enough"))
    trainer.run()
    assert file.getvalue().splitlines() == [
        "epoch 1  batch 1  loss 1e-09  2.0 batch/s",
        "epoch 1  batch 2  loss nan  2.0 batch/s",
        "validation 1 after batch 2: sum#m 11  n#m 2",
        "epoch 1  loss nan  2.0 batch/s  done",
        "stopped at epoch 1  batch 2  loss nan: enough",
    ]


def left(text: str) -> list[str]:
    return re.findall(r"(\S+) left$", text, re.M)


def test_the_time_that_is_left_goes_by_whichever_limit_comes_first() -> None:
    """K10: epochs, batches, seconds."""
    about = {"metrics": None, "validate_dataloaders": None, "batches": range(10)}
    assert left(shown(n_epochs=2, **about))[0] == "0:09"
    assert left(shown(n_batches=5, **about)) == ["0:02", "0:01", "0:01", "0:00"]
    assert left(shown(n_epochs=2, max_time="4s", **about))[0] == "0:03"
    assert left(shown(n_epochs=2, max_time="4h", **about))[0] == "0:09"
    assert left(shown(n_epochs=None, max_time=5, **about))[0] == "0:04"


def test_where_nothing_is_left_no_time_is_told() -> None:
    """K10: at the run's end the time that `max_time` would still give is none that is left."""
    about = {"n_epochs": 2, "metrics": None, "validate_dataloaders": None}
    with_time, without = shown(max_time="1h", **about), shown(**about)
    assert with_time == without
    assert with_time.splitlines()[-2:] == [
        "epoch 2/2  batch 2/2  loss 0.5  2.0 batch/s",
        "epoch 2/2  loss 0.5  2.0 batch/s  done",
    ]
    for mode in ("rich", "tqdm"):
        lines = drawn(shown(mode, file=Tty(), max_time="1h", **about))
        assert "59:5" not in "".join(lines)
        assert "epoch 2/2  loss 0.5  2.0 batch/s  done" in lines
    by_event = {told["event"]: told["eta"] for told in told(max_time="1h", **about)}  # the last of each
    assert by_event == {"began": None, "stepped": None, "epoch_ended": None, "ended": None}


def test_when_the_time_is_up_or_somebody_stops_the_run_none_is_left() -> None:
    """K10: at an epoch's end, where batches are left that nobody will train."""
    about = {"metrics": None, "validate_dataloaders": None}
    assert shown(n_epochs=9, max_time=1.0, **about).splitlines() == [
        "epoch 1/9  batch 1/2  loss 0.5  2.0 batch/s  0:00 left",  # half a second
        "epoch 1/9  batch 2/2  loss 0.5  2.0 batch/s",
        "epoch 1/9  loss 0.5  2.0 batch/s  done",
        "stopped at epoch 1/9  batch 2/2  loss 0.5: max_time, 1 seconds, is over",
    ]
    file = io.StringIO()
    trainer = trainer_of(file=file, n_epochs=9, max_time="1h", **about)
    trainer.on("epoch_end", lambda trainer: trainer.stop("enough"))
    trainer.run()
    assert file.getvalue().splitlines()[-2:] == [
        "epoch 1/9  loss 0.5  2.0 batch/s  done",
        "stopped at epoch 1/9  batch 2/2  loss 0.5: enough",
    ]


def test_as_long_as_one_limit_cannot_be_told_in_seconds_the_other_is_not_taken_for_what_is_left() -> None:
    """K10: before the first batch, no rate is known; with one limit alone, it is."""
    about = {"metrics": None, "validate_dataloaders": None}
    assert told(n_epochs=2, max_time="1h", **about)[0]["eta"] is None
    assert told(n_epochs=None, max_time="1h", **about)[0]["eta"] == 3600.0


def test_after_a_resume_the_time_that_is_left_counts_what_was_spent_before(tmp_path: Path) -> None:
    """K10: the limit in seconds is one over all lives of the run."""
    about: dict[str, Any] = {"metrics": None, "validate_dataloaders": None, "batches": range(10)}
    about |= {"n_epochs": 9, "run_dir": tmp_path / "run"}
    trainer = trainer_of(file=io.StringIO(), max_time="10s", **about)
    trainer.on(Events.on_train_batch_end, lambda t: t.global_forward_batches == 4 and t.stop("here"))
    trainer.run()
    file = io.StringIO()
    trainer_of(file=file, max_time="10s", **about).run(resume_from="auto")
    assert left(file.getvalue())[0] == "0:07"


def test_evaluations_slow_no_rate_but_put_off_the_end() -> None:
    """K10."""
    clock = Clock()

    class Slow(Sum):
        def update(self, value: int) -> None:
            clock.spend(1.0)
            super().update(value)

    lines = shown(clock=clock, metrics={"m": Slow()}, n_epochs=4).splitlines()
    assert lines[0] == "epoch 1/4  batch 1/2  loss 0.5  2.0 batch/s  0:03 left"
    # an epoch: a second of training, two of evaluation
    assert lines[3] == "epoch 1/4  loss 0.5  2.0 batch/s  0:09 left  done"
    assert all("  2.0 batch/s" in line for line in lines if line.startswith("epoch"))


def test_the_rate_follows_what_is_true_now_and_the_first_batches_count_as_they_are() -> None:
    pace = Pace(0.0, 50)
    assert pace.rate is None
    pace.look(0.0, 50)
    assert pace.rate is None
    pace.look(10.0, 60)
    assert pace.rate == 1.0
    for n in range(1, 31):
        pace.look(10.0 + n, 60 + 10 * n)  # ten times as fast, for half a minute
    assert 5.0 < (pace.rate or 0) < 10.0
    for n in range(31, 400):
        pace.look(10.0 + n, 60 + 10 * n)
    assert pace.rate == pytest.approx(10.0, rel=1e-2)


def test_after_a_resume_in_mid_epoch_the_position_is_the_run_s_and_the_rate_this_process_s(tmp_path: Path) -> None:
    """K10: the bar starts at the resumed batch; ten seconds a batch before it say nothing about what comes."""
    about = {"batches": range(10), "n_epochs": 3, "metrics": None, "validate_dataloaders": None, "snapshot_every": 1}
    first = trainer_of(file=io.StringIO(), spent=10.0, run_dir=tmp_path / "run", **about)
    first.on(Events.on_train_batch_end, strike(KeyboardInterrupt(), 14))
    with pytest.raises(KeyboardInterrupt):
        first.run()
    file = io.StringIO()
    trainer_of(file=file, spent=0.5, run_dir=tmp_path / "run", **about).run(resume_from="auto")
    lines = [line for line in file.getvalue().splitlines() if line.startswith("epoch")]
    assert lines[0] == "epoch 2/3  batch  5/10  loss 0.5  2.0 batch/s  0:07 left"
    assert len(lines) == 6 + 10 + 2


def test_a_bar_stands_where_the_run_was_resumed(tmp_path: Path) -> None:
    """K10."""
    about = {"batches": range(10), "n_epochs": 1, "metrics": None, "validate_dataloaders": None, "snapshot_every": 1}
    first = trainer_of(file=io.StringIO(), run_dir=tmp_path / "run", **about)
    first.on(Events.on_train_batch_end, strike(KeyboardInterrupt(), 6))
    with pytest.raises(KeyboardInterrupt):
        first.run()
    for mode in ("rich", "tqdm"):
        run_dir = tmp_path / mode
        shutil.copytree(tmp_path / "run", run_dir)
        file = Tty()
        trainer_of(mode, file, clock=Clock(0.1), run_dir=run_dir, **about).run(resume_from="auto")
        bars = [line for line in drawn(file.getvalue()) if "batch" in line and "done" not in line]
        assert re.search(r"batch +[67]/10", bars[0]), bars


def test_the_age_of_the_last_snapshot_is_shown(tmp_path: Path) -> None:
    """C4: it counts from its publishing, which the next transition tells."""
    clock = Clock()
    lines = told(clock=clock, batches=range(6), n_epochs=1, snapshot_every=2, run_dir=tmp_path / "run", spent=1.0)
    assert [line["snapshot"] for line in lines if line["event"] == "saved"]
    ages = {line["global_batch"]: line["snapshot_age"] for line in lines if line["event"] == "stepped"}
    assert ages[1] is None
    assert any(age is not None and age >= 1.0 for age in ages.values())


def test_nothing_is_read_from_a_device_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """R50, C4: whatever is shown, no tensor is read that isn't read without it."""
    reads: list[str] = []
    for name in ("item", "__float__", "__bool__", "__int__", "tolist", "cpu", "numpy"):
        original = getattr(torch.Tensor, name)

        def counted(self: Any, *args: Any, _name: str = name, _original: Any = original, **kwargs: Any) -> Any:
            reads.append(_name)
            return _original(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, counted)

    def read(mode: Any) -> list[str]:
        reads.clear()
        Run(callbacks=lambda run: [] if mode is None else [Progress(mode, 1, file=Tty())]).run()
        return list(reads)

    read(None)  # what is read once for all
    alone = read(None)
    assert {mode: read(mode) for mode in MODES} == dict.fromkeys(MODES, alone)


def test_a_learning_rate_that_is_a_tensor_is_left_out() -> None:
    """It might lie on a device."""
    file = io.StringIO()
    optimizer = lambda parameters: torch.optim.Adam(  # noqa: E731
        [{"params": list(parameters), "lr": torch.tensor(0.5)}], lr=0.01, capturable=False, foreach=False
    )
    run = Run(optimizer=optimizer, n_epochs=1, callbacks=lambda run: [Progress("json", file=file)])
    run.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 0.25})
    run.run()
    assert {json.dumps(json.loads(line)["lr"]) for line in file.getvalue().splitlines()} == {"[null, 0.25]"}


# -- for programs ------------------------------------------------------------------------------------------

KEYS = ["event", *(a.name for a in attrs.fields(Status)), "lr", "time"]


def test_json_lines_have_the_same_keys_whatever_they_tell() -> None:
    """C4."""
    lines = told(progress={"print_every": 2, "monitor": "n"})
    assert [line["event"] for line in lines] == [
        *("began", "stepped", "validated", "epoch_ended", "stepped", "validated", "epoch_ended", "ended")
    ]
    assert all(list(line)[: len(KEYS)] == KEYS for line in lines)
    found = {line["event"]: line for line in lines}
    expected = {"epoch": 2, "n_epochs": 2, "batch": 2, "n_batches": 2, "global_batch": 4, "total_batches": 4}
    assert {key: found["stepped"][key] for key in expected} == expected
    assert (found["stepped"]["loss"], found["stepped"]["rate"], found["stepped"]["state"]) == (0.5, 2.0, "fetch")
    assert found["validated"]["results"] == {"sum#m": 11, "n#m": 2}
    assert (found["validated"]["better"], found["validated"]["before"]) == (False, 2.0)
    assert (found["ended"]["best"], found["ended"]["best_at"], found["ended"]["state"]) == (2.0, 1, "done")


def test_json_lines_tell_of_stops_failures_and_sentences() -> None:
    file = io.StringIO()
    trainer = trainer_of("json", file)
    trainer.on(Events.on_train_batch_end(once=1), lambda t: t.say("hear"))
    trainer.on(Events.on_train_batch_end(once=2), lambda t: t.stop("tired"))
    trainer.on(Events.on_stop, lambda t, reason: strike(LookupError("x"))(t))
    with pytest.raises(LookupError):
        trainer.run()
    facts = {line["event"]: line for line in map(json.loads, file.getvalue().splitlines())}
    assert (facts["noticed"]["text"], facts["stopped"]["reason"]) == ("hear", "tired")


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq isn't installed")
def test_jq_reads_json_lines_and_no_number_is_none() -> None:
    """C4: NaN and the infinities are strings, as in the journal."""

    class Odd(Sum):
        def compute(self) -> dict[str, Any]:
            return {"a": NAN, "b": -float("inf"), "c": [float("inf"), "ä\n"]}

    text = shown("json", metrics={"m": Odd()}, loss=lambda batch, n: NAN)
    command = ["jq", "-c", 'select(.event == "validated") | [.loss, .results]']
    found = subprocess.run(command, input=text, capture_output=True, text=True, check=True, timeout=60).stdout
    results = {"a#m": "nan", "b#m": "-inf", "c#m": ["inf", "ä\n"]}
    assert [json.loads(line) for line in found.splitlines()] == [["nan", results]] * 2


def test_json_lines_go_to_stdout_or_to_a_file_that_is_appended_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer_of("json").run()
    out, err = capsys.readouterr()
    assert (err, json.loads(out.splitlines()[0])["event"]) == ("", "began")
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # a file that isn't closed
            trainer_of("json", tmp_path / "progress.jsonl").run()
    assert (tmp_path / "progress.jsonl").read_text(encoding="utf-8").count('"event":"ended"') == 2


# -- over a resume -----------------------------------------------------------------------------------------

SCORES = [3.0, 5.0, 4.0, 6.0, 6.0, 1.0]


def scored(run_dir: Path, file: Any, n_epochs: int = 6) -> Trainer:
    callbacks = [Progress("plain", file=file)]
    return validated(SCORES, callbacks=callbacks, n_epochs=n_epochs, run_dir=run_dir, monitor="score")


def said(text: str) -> list[str]:
    return [line for line in text.splitlines() if re.match(r"\+\+\+|---|best", line)]


@pytest.mark.parametrize("k", range(1, 6))
def test_the_best_so_far_is_known_again_wherever_the_run_was_interrupted(tmp_path: Path, k: int) -> None:
    """K10: the banners of two lives are those of one, and so is the chain."""
    straight, first, second = io.StringIO(), io.StringIO(), io.StringIO()
    one = scored(tmp_path / "straight", straight)
    one.run()
    scored(tmp_path / "run", first, k).run()
    again = scored(tmp_path / "run", second)
    again.run(resume_from="auto")
    lives = said(first.getvalue())[:-1] + said(second.getvalue())
    assert lives == said(straight.getvalue())
    assert again.journal.chain == one.journal.chain  # type: ignore[union-attr]


def test_a_fork_knows_what_was_best_where_it_began_and_nothing_of_what_came_after(tmp_path: Path) -> None:
    """K10."""
    scored(tmp_path / "run", io.StringIO()).run()
    first = min((tmp_path / "run" / "snapshots").iterdir())
    file = io.StringIO()
    scored(tmp_path / "fork", file).run(resume_from=first)
    assert said(file.getvalue())[0] == "+++ validation 2 after batch 2: score 5  (best so far, before 3)"


def lives(tmp_path: Path, mode: str, every: int | None) -> list[str]:
    """What a process tells that is killed eleven batches after its last snapshot, and what the next one does."""
    found = []
    for end in ("SIGKILL", "done"):
        command = arguments_of(mode, tmp_path / "run", end=end, at=26, every=every)
        seen = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False)
        found.append(seen.stdout.removesuffix("the program goes on\n") + seen.stderr)
    return found


def test_what_a_dead_process_had_come_past_is_not_said_again(tmp_path: Path) -> None:
    """C4: lines at points of the run are said once; those of two lives read as those of one."""

    def without_times(text: str) -> list[str]:
        lines = [line for line in text.splitlines() if not line.startswith("resumed")]
        return [re.sub(r"  \S+ (left|batch/s)", "", line) for line in lines]

    command = arguments_of("plain", tmp_path / "straight", every=1)
    straight = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=True).stderr
    first, second = lives(tmp_path, "plain", 1)
    assert re.search("resumed at .* recorded transitions to re-execute", second)
    assert without_times(first + second) == without_times(straight)


def test_what_comes_by_time_says_that_it_is_done_again(tmp_path: Path) -> None:
    """C4: for programs; it's about now."""
    first, second = (list(map(json.loads, text.splitlines())) for text in lives(tmp_path, "json", None))
    assert not any(line["again"] for line in first)
    again = [line["again"] for line in second if line["event"] != "noticed"]
    assert again == sorted(again, reverse=True)
    assert set(again) == {True, False}
    points = [
        (line["event"], line["epoch"]) for line in first + second if line["event"] in ("validated", "epoch_ended")
    ]
    assert points == [(event, epoch) for epoch in (1, 2, 3) for event in ("validated", "epoch_ended")]


def test_a_live_line_says_that_what_it_shows_is_done_again(tmp_path: Path) -> None:
    command = arguments_of("plain", tmp_path / "run", end="SIGKILL", at=26)
    subprocess.run(command, capture_output=True, cwd=ROOT, timeout=120, check=False)
    seen = in_a_terminal(arguments_of("rich", tmp_path / "run"), columns=120)
    shown_again = [line for line in drawn(seen.text) if re.match("(step|fetch) again +epoch 2/3", line)]
    assert shown_again
    batches = {int(line.split("batch")[1].split("/")[0]) for line in shown_again}
    assert batches <= set(range(3, 13))


def test_a_display_has_no_say_in_whether_a_run_goes_on(tmp_path: Path) -> None:
    """K10: it may be another one, or none, or the first one, at each resume; and the chain is that of none at all."""
    alone = stub(
        [1, 2, 3], n_epochs=7, run_dir=tmp_path / "alone", monitor="m", metrics={"m": Sum()}, validate_dataloaders=[1]
    )
    alone.run()
    kinds: list[Any] = [
        Progress("json", 1, monitor="sum", file=io.StringIO()),
        None,
        RichCallback(file=Tty()),
        TqdmCallback(file=Tty()),
    ]
    kinds += [RawTextCallback(monitor="sum", file=io.StringIO()), None, Progress("plain", file=io.StringIO())]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for n, kind in enumerate(kinds, 1):
            trainer = stub(
                [1, 2, 3],
                n_epochs=n,
                run_dir=tmp_path / "run",
                monitor="m",
                progress_bar=kind,
                metrics={"m": Sum()},
                validate_dataloaders=[1],
            )
            trainer.run(resume_from="auto")
    assert trainer.journal.chain == alone.journal.chain  # type: ignore[union-attr]
    assert all(kind is None or kind.state_dict() == kind.built_with() == {} for kind in kinds)


def test_a_second_run_of_one_trainer_counts_anew_and_knows_the_best() -> None:
    file, clock = io.StringIO(), Clock()
    trainer = trainer_of(file=file, clock=clock, n_epochs=1, progress={"monitor": "sum"})
    trainer.run()
    clock.spend(1000.0)
    trainer.n_epochs = 2
    file.truncate(file.seek(0))
    trainer.run()
    assert file.getvalue().splitlines() == [
        "epoch 2/2  batch 1/2  loss 0.5  2.0 batch/s  0:00 left",
        "epoch 2/2  batch 2/2  loss 0.5  2.0 batch/s",
        "--- validation 2 after batch 4: sum#m 11  n#m 2  (best sum: 11 at validation 1)",
        "epoch 2/2  loss 0.5  2.0 batch/s  done",
        "best sum: 11 at validation 1 after batch 2",
    ]


def test_a_replay_shows_what_was_shown(tmp_path: Path) -> None:
    """Without its times."""
    live, again = io.StringIO(), io.StringIO()
    trainer_of(file=live, run_dir=tmp_path / "run").run()
    replay(tmp_path / "run").add_callback(Progress("plain", 1, file=again)).run()
    without_times = [re.sub(r"  [\d.,]+ (batch/s|s/batch)|  \S+ left", "", f.getvalue()) for f in (live, again)]
    assert without_times[0] == without_times[1]


# -- a live line -------------------------------------------------------------------------------------------


def test_a_live_line_is_drawn_every_fifth_of_a_second_at_most() -> None:
    """C4: of a hundred batches of 10 ms five are drawn."""
    about = {"batches": range(100), "n_epochs": 1, "metrics": None, "validate_dataloaders": None}
    for mode in ("rich", "tqdm"):
        for every in (None, 1, "0.01s"):
            file = Tty()
            trainer_of(mode, file, spent=0.0100001, progress={"print_every": every}, **about).run()
            bars = {line.split("/100")[0] for line in drawn(file.getvalue()) if "/100" in line}
            assert 4 <= len(bars) <= 5, (mode, every, bars)


def test_a_live_line_names_the_state_that_the_time_went_into() -> None:
    """C4."""
    clock = Clock()

    class Slow(Sum):
        def update(self, value: int) -> None:
            clock.spend(1.0)
            super().update(value)

    def states(spent_in: str) -> set[str]:
        file = Tty()
        driver = StubDriver(
            lambda batch, n: (clock.spend(1.0 if spent_in == "step" else 0.0), 0.5)[1],
            on={"next_batch": lambda driver: clock.spend(1.0 if spent_in == "fetch" else 0.0)},
        )
        trainer_of(
            "rich", file, clock=clock, driver=driver, progress={"print_every": None}, metrics={"m": Slow()}
        ).run()
        return {line.split()[0] for line in drawn(file.getvalue()) if not re.match(r"epoch \d|validation", line)}

    assert states("step") == {"sanity_check", "step", "validate", "epoch_end", "epoch_begin"}
    assert states("fetch") == {"sanity_check", "fetch", "validate", "epoch_end", "epoch_begin"}


@pytest.mark.parametrize(("loaders", "most"), [({"a": [1] * 4, "b": [2] * 3}, 7), ([1] * 7, 7), (None, None)])
def test_the_batches_of_an_evaluation_are_counted(loaders: Any, most: int | None) -> None:
    """C4: all loaders of it; nothing is said of what isn't known; one made by hand isn't the run's."""

    class Unknown:
        def __iter__(self) -> Iterator[int]:
            return iter([1] * 7)

    clock, file = Clock(), Tty()

    class Slow(Sum):
        def update(self, value: int) -> None:
            clock.spend(1.0)
            super().update(value)

    about = {"n_epochs": 1, "metrics": {"m": Slow()}, "validate_dataloaders": loaders or Unknown()}
    trainer = trainer_of("rich", file, clock=clock, **about)
    trainer.on(Events.on_train_batch_end(once=1), lambda t: t.validate())
    trainer.run()
    found = [match[1] for line in drawn(file.getvalue()) if (match := re.search(r"evaluation (\S+)", line))]
    of = "" if most is None else f"/{most}"
    check = "" if most is None else f"/{2 * len(loaders) if isinstance(loaders, dict) else 2}"
    sanity = [f"{n}{check}" for n in range(1, (4 if isinstance(loaders, dict) else 2) + 1)]
    assert [n for n, _ in itertools.groupby(found)] == [*sanity, *(f"{n}{of}" for n in range(1, 8))]


def test_a_live_line_costs_no_copy_of_the_listeners_memory() -> None:
    """An evaluation that listeners hear inside is preceded by one."""
    copies: list[int] = []

    class Heavy(Callback):
        def __deepcopy__(self, memo: Any) -> Any:
            raise AssertionError

        def state_dict(self) -> dict[str, Any]:
            copies.append(1)
            return {}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            pass

    def copied(mode: Any) -> int:
        copies.clear()
        trainer_of(mode, Tty(), callbacks=[Heavy()]).run()
        return len(copies)

    assert copied("rich") == copied(None)


FIELDS = {
    "state": "fetch",
    "epoch": "epoch 3/20",
    "batch": "batch 123/400",
    "evaluated": "",
    "loss": "loss 0.123456",
    "results": "acc#m 0.91",
    "rate": "12.3 batch/s",
    "eta": "1:23:45 left",
    "saved": "saved 0:45 ago",
}


def test_a_narrow_line_leaves_out_the_least_important_first() -> None:
    """C4."""
    kept = [[name for name in FIRST if name in fit(FIELDS, width)] for width in (1, 10, 25, 60, 77, 95, 200)]
    whole = [name for name in FIRST if FIELDS[name]]
    assert kept[0] == []
    assert kept[1] == ["epoch"]
    assert kept[2] == ["epoch", "batch"]
    assert kept[-1] == whole
    assert [len(names) for names in kept] == sorted(len(names) for names in kept)
    for width in range(1, 200):
        fields = fit(FIELDS, width)
        assert len(joined(fields)) <= width
        assert list(fields) == [name for name in FIELDS if name in fields]


def test_fields_keep_their_place_and_a_long_state_takes_none_for_good() -> None:
    """C4."""
    columns = Columns()
    columns.padded({"state": "sanity_check", "loss": "loss 0.123456"})
    assert columns.padded({"state": "step", "loss": "loss 0.5"}) == {"state": "step ", "loss": "loss 0.5     "}


@pytest.mark.parametrize("mode", ["rich", "tqdm"])
@pytest.mark.parametrize("columns", [20, 40, 80, 120])
def test_no_live_line_is_wider_than_its_terminal(mode: str, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """C4."""
    monkeypatch.setenv("COLUMNS", str(columns))
    file = Tty()
    trainer_of(mode, file, clock=Clock(0.1), n_epochs=3, batches=range(30)).run()
    lines = [line for line in drawn(file.getvalue()) if not re.match(r"validation|epoch.*done", line)]
    assert len(lines) > 5
    assert max(map(len, lines)) < columns


def test_it_has_no_thread_and_leaves_stdout_and_the_cursor_alone() -> None:
    """C4."""
    for mode in ("rich", "tqdm"):
        file = Tty()
        seen: list[Any] = []
        trainer = trainer_of(mode, file, clock=Clock(0.1), batches=range(10))
        before = set(threading.enumerate()), sys.stdout, sys.stderr
        trainer.on(
            Events.on_train_batch_end(once=12),
            lambda t, seen=seen: seen.append((set(threading.enumerate()), sys.stdout, sys.stderr)),
        )
        trainer.run()
        assert seen == [before]
        assert len(drawn(file.getvalue())) > 5
        hidden, shown_again = (file.getvalue().rfind(code) for code in ("\x1b[?25l", "\x1b[?25h"))
        assert hidden <= shown_again
        first_bar = file.getvalue().find("epoch")
        assert "\x1b[?25l" not in file.getvalue()[first_bar : file.getvalue().rfind("epoch")]


@pytest.mark.parametrize("mode", ["rich", "tqdm"])
def test_importing_what_draws_moves_no_generator(mode: str) -> None:
    """In a process of its own: rich's first import draws from Python's generator."""
    code = (
        "import random, sys\n"
        "from io import StringIO\n"
        "from tachograph.drivers import StubDriver\n"
        "from tachograph.engine import Progress, Trainer\n"
        "from tachograph.engine.world import World\n"
        "file = StringIO()\n"
        "file.isatty = lambda: True\n"
        f"shown = Progress({mode!r}, 1, file=file)\n"
        "trainer = Trainer(None, StubDriver(), [1, 2, 3], None, n_epochs=2, run_dir=None, callbacks=[shown])\n"
        "trainer.world = World(timer=iter(range(1000)).__next__)\n"
        "assert not any(name in sys.modules for name in ('rich', 'tqdm'))\n"
        "before = random.getstate()\n"
        "trainer.run()\n"
        "assert any(name in sys.modules for name in ('rich.live', 'tqdm'))\n"
        "assert random.getstate() == before\n"
    )
    environ = {**os.environ, "TERM": "xterm"}
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=ROOT, env=environ)


def test_ascii_terminals_get_ascii() -> None:
    class Ascii(Tty):
        encoding = "ascii"  # type: ignore[assignment]

        def write(self, text: str) -> int:
            text.encode("ascii")
            return super().write(text)

    for mode in ("rich", "plain", "tqdm"):
        file = Ascii()
        trainer_of(mode, file, clock=Clock(0.1), metrics={"ü": Sum()}).run()
        assert "sum#\\xfc 11" in file.getvalue()


class Gone(Tty):
    """A terminal that goes away after so many writes."""

    def __init__(self, error: Exception, after: int) -> None:
        super().__init__()
        self.error, self.left = error, after

    def write(self, text: str) -> int:
        self.left -= 1
        if self.left < 0:
            raise self.error
        return super().write(text)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("after", [0, 1, 7])
@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), BrokenPipeError(32, "Broken pipe")])
def test_a_terminal_that_goes_away_ends_no_run(
    mode: str, after: int, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """C4: it is said once, in the log."""
    trainer = trainer_of(mode, Gone(error, after), clock=Clock(0.1))
    with caplog.at_level(logging.WARNING, "tachograph"):
        assert trainer.run().state == "done"
    assert [record.message for record in caplog.records] == [
        f"progress can't be shown any more ({error}); the run goes on"
    ]


def test_a_file_that_is_closed_and_a_program_without_a_console_end_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    assert trainer_of("plain", closed).run().state == "done"
    monkeypatch.setattr(sys, "stderr", None)
    for mode in ("auto", "rich", "tqdm", "plain"):
        assert trainer_of(mode).run().state == "done"


# -- which display -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "mode"),
    [
        ({}, "rich"),
        ({"NO_COLOR": "1"}, "rich"),
        ({"CI": "true"}, "plain"),
        ({"CI": "1"}, "plain"),
        ({"CI": "false"}, "rich"),
        ({"TERM": "dumb"}, "plain"),
        ({"LOCAL_RANK": "0"}, "rich"),
        ({"LOCAL_RANK": "1"}, None),
    ],
)
def test_automatic_progress_goes_by_the_terminal_and_the_environment(
    environ: dict[str, str], mode: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """K10, C4."""
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert Progress("auto", file=Tty()).mode == mode
    assert Progress("auto", file=io.StringIO()).mode == (mode and "plain")


def test_colours_are_left_out_where_they_are_not_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR."""
    colours = re.compile(r"\x1b\[[0-9;]*(3[0-7]|9[0-7])[0-9;]*m")
    assert colours.search(shown("rich", file=Tty(), clock=Clock(0.1)))
    monkeypatch.setenv("NO_COLOR", "1")
    assert not colours.search(shown("rich", file=Tty(), clock=Clock(0.1)))


@pytest.mark.parametrize("mode", MODES)
def test_only_the_first_process_of_a_machine_shows_anything(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """K10: the others hear nothing, and so it costs them nothing."""
    monkeypatch.setenv("LOCAL_RANK", "3")
    file = Tty()
    trainer = trainer_of(mode, file)
    assert not trainer.listeners.inside
    trainer.run()
    trainer.n_epochs = 3
    trainer.run()
    assert file.getvalue() == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"mode": "bar"}, "progress must be one of auto, rich, plain, json, tqdm or None, not 'bar'"),
        ({"mode": 3}, "progress must be one of auto, rich, plain, json, tqdm or None, not 3"),
        ({"print_every": 0}, "print_every must be n >= 1 (batches), a time such as '10s', or None, not 0"),
        ({"print_every": True}, "print_every must be n >= 1"),
        ({"print_every": 2.5}, "print_every must be n >= 1"),
        ({"print_every": "often"}, "print_every must be n >= 1"),
        ({"print_every": datetime.timedelta(0)}, "print_every must be n >= 1"),
        ({"loss_round_ndigit": -1}, "loss_round_ndigit must be an integer >= 0, not -1"),
        ({"monitor": 3}, "monitor must be a key of the results or a function, not 3"),
    ],
)
def test_what_cannot_be_used_is_refused(arguments: dict[str, Any], said: str) -> None:
    """K10."""
    with pytest.raises(CallerError) as caught:
        Progress(**arguments)
    assert said in str(caught.value)


def test_tqdm_is_asked_for_where_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tachograph.engine.callbacks.progress.choosing.find_spec", lambda name: None)
    with pytest.raises(CallerError, match=r"needs tqdm, which isn't installed: pip install 'tachograph\[tqdm\]'"):
        Progress("tqdm")


def test_no_progress_is_one_too() -> None:
    assert Progress(None).mode is None
    trainer_of(None).run()


@pytest.mark.parametrize(("kind", "mode"), [(RichCallback, "rich"), (RawTextCallback, "plain"), (TqdmCallback, "tqdm")])
def test_the_reference_trainer_s_names_take_its_arguments_in_its_order(kind: Any, mode: str) -> None:
    """K10."""
    assert issubclass(kind, ProgressCallback)
    assert kind(file=Tty()).mode == mode
    file = io.StringIO()
    callbacks = [kind(2, 2, "sum", True, True, file=file)]
    driver = StubDriver(lambda batch, n: 0.123456)
    trainer = stub([1, 2], driver, callbacks=callbacks, metrics={"m": Sum()}, validate_dataloaders=[5, 6], n_epochs=1)
    trainer.world = World(timer=Clock())
    trainer.run()
    assert file.getvalue().splitlines() == [
        "epoch 1/1  batch 2/2  loss 0.12",
        '+++ validation 1 after batch 2: {"sum#m":11,"n#m":2}  (best sum so far)',
        "epoch 1/1  loss 0.12  done",
        "best sum: 11 at validation 1 after batch 2",
    ]


def test_an_engine_of_one_s_own_states_can_be_shown() -> None:
    @attrs.frozen(slots=True, kw_only=True)
    class Where:
        state: str = "a"
        seq: int = 0

    @attrs.frozen
    class Went(Event):
        def fold(self, state: Any, dest: str) -> Any:
            return attrs.evolve(state, state=dest, seq=state.seq + 1)

    rows = [Row("a", Went, "b"), Row("b", Went, "c"), Row("a", Failed, "exception"), Row("b", Failed, "exception")]
    machine = Machine(rows, initial="a", final=("c", "exception"))
    for mode in ("plain", "json", "rich"):
        file = Tty()
        engine = Engine(
            machine,
            {"a": lambda s: Went(), "b": lambda s: Went()},
            state=Where(),
            callbacks=[Progress(mode, file=file)],
        )
        engine.run()
        engine.say("it went")
        assert "it went" in file.getvalue()


# -- training doesn't notice -------------------------------------------------------------------------------


def trained(tmp_path: Path, name: str, shown: Any) -> dict[str, Any]:
    """Train with noise, two workers that are forked under whatever is shown, and validation; return what came of it."""
    run = Run(
        run_dir=tmp_path / name,
        loader={"num_workers": 2},
        callbacks=None if shown is None else lambda run: [shown],
        metrics={"loss": MeanLoss()},
        validate_dataloaders={"dev": DataLoader(Indexed(4, noise=True), batch_size=2, num_workers=1)},
        validate_every=4,
    )
    run.trainer.world = World(timer=Clock(0.1))
    run.run()
    return {"chain": run.chain, "weights": run.weights, "generators": run.generators, "ids": run.model.seen}


@pytest.fixture(scope="module")
def unwatched(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return trained(tmp_path_factory.mktemp("unwatched"), "run", None)


@pytest.mark.parametrize("every", [None, 1])
@pytest.mark.parametrize("mode", MODES)
def test_training_does_not_notice(mode: str, every: Any, unwatched: dict[str, Any], tmp_path: Path) -> None:
    """C4, R29 B16: chain, weights, generators and order are those of a run that shows nothing."""
    file = Tty()
    watched = trained(tmp_path, mode, Progress(mode, every, file=file))
    assert file.getvalue()
    assert equal(watched.pop("weights"), unwatched["weights"])
    assert watched == {key: value for key, value in unwatched.items() if key != "weights"}


# -- real terminals ----------------------------------------------------------------------------------------


def arguments_of(mode: str, run_dir: Path, **settings: Any) -> list[str]:
    return [sys.executable, "-m", "tests.jobs.progress_job", mode, str(run_dir), json.dumps(settings)]


@attrs.frozen
class Seen:
    """What a program wrote into a terminal, and how it ended."""

    text: str
    status: int

    @property
    def lines(self) -> list[str]:
        """Its lines as they stood at last, on a screen that is high and wide enough."""
        screen, row, column = [""], 0, 0
        for code, text in re.findall(r"(\x1b\[[0-9;?]*[A-Za-z]|\r|\n)|([^\x1b\r\n]+)", self.text):
            if code == "\r":
                column = 0
            elif code == "\n":
                row += 1
                screen += [""] * (row + 1 - len(screen))
            elif code == "\x1b[2K":
                screen[row] = ""
            elif code == "\x1b[K":
                screen[row] = screen[row][:column]
            elif code.endswith("A"):
                row -= int(code[2:-1] or 1)
            elif not code:
                screen[row] = screen[row][:column].ljust(column) + text + screen[row][column + len(text) :]
                column += len(text)
        return [line.rstrip() for line in screen if line.rstrip()]


def in_a_terminal(command: list[str], columns: int = 80, **environ: str) -> Seen:
    """Run a program in a pseudo-terminal."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environ = {**os.environ, "TERM": "xterm-256color", **environ}
    child = subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=environ, start_new_session=True
    )
    os.close(theirs)
    parts = []
    with contextlib.suppress(OSError):  # EIO: nobody is left on the other side
        while part := os.read(ours, 65536):
            parts.append(part)
    os.close(ours)
    return Seen(b"".join(parts).decode(), child.wait(timeout=60))


def whole(text: str) -> bool:
    """Whether the cursor is there, and no mode is left switched on."""
    return text.rfind("\x1b[?25l") <= text.rfind("\x1b[?25h") and "\x1b[?1049h" not in text


ENDS = {
    "done": ("best mean: ", 0),
    "stop": ("stopped at epoch 2/3  batch  6/12  loss ", 0),
    "error": ("failed at epoch 2/3  batch  6/12  loss ", 1),
    "SIGINT": ("interrupted at epoch 2/3  batch  6/12  loss ", -2),
    "SIGTERM": ("stopped at epoch 2/3  batch  6/12  loss ", 143),
}


@pytest.mark.parametrize(
    ("mode", "end", "workers"),
    [*((mode, end, 0) for mode in ("auto", "tqdm") for end in ENDS), ("auto", "SIGINT", 2), ("tqdm", "error", 2)],
)
def test_however_a_run_ends_its_terminal_is_whole_and_its_last_line_stands_there(
    mode: str, end: str, workers: int, tmp_path: Path
) -> None:
    """K10, C4: with workers forked under the live line, too."""
    seen = in_a_terminal(arguments_of(mode, tmp_path / "run", end=end, workers=workers))
    line, status = ENDS[end]
    assert seen.status == status, seen.text
    assert len(drawn(seen.text)) > 10, "nothing was drawn"
    assert whole(seen.text)
    assert any(held.startswith(line) for held in seen.lines), seen.lines
    assert not any(held.endswith("left") for held in seen.lines), "a live line stayed behind"


@pytest.mark.parametrize("environ", [{"TERM": "dumb"}, {"CI": "true"}])
def test_a_terminal_that_cannot_draw_gets_lines(environ: dict[str, str], tmp_path: Path) -> None:
    """K10, C4."""
    seen = in_a_terminal(arguments_of("auto", tmp_path / "run"), **environ)
    assert seen.status == 0
    assert "\x1b" not in seen.text
    assert len([line for line in seen.lines if line.startswith("epoch") and line.endswith("done")]) == 3


def test_a_pipe_gets_lines_and_the_same_training(tmp_path: Path) -> None:
    """K10, C4."""
    from tachograph.engine import Journal

    command = arguments_of("auto", tmp_path / "pipe", workers=2)
    piped = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True, timeout=120)
    assert piped.stdout == "the program goes on\n"
    assert not set(piped.stderr) & {"\x1b", "\r"}
    in_a_terminal(arguments_of("auto", tmp_path / "terminal", workers=2))
    assert Journal(tmp_path / "pipe").chain == Journal(tmp_path / "terminal").chain


@pytest.mark.parametrize(
    ("columns", "line"),
    [
        (40, r"epoch 2/3  batch  \d+/12  loss 0\.\d+"),
        (80, r"(step|fetch) +epoch 2/3  batch  \d+/12  (━+─+  )?loss 0\.\d+ +\d\.\d batch/s +0:\d\d left"),
        (
            120,
            r"(step|fetch) +epoch 2/3  batch  \d+/12  ━+─+  loss 0\.\d+ +mean#loss#dev \S+"
            r" +\d\.\d batch/s +0:\d\d left",
        ),
    ],
    ids=["40", "80", "120"],
)
def test_a_person_sees_one_line_that_fits_and_ctrl_c_gives_the_terminal_back(
    columns: int, line: str, tmux: Tmux, tmp_path: Path
) -> None:
    """K10, C4: at 40, 80 and 120 columns, in tmux, while the run stands still in its middle."""
    tmux.start(columns, arguments_of("auto", tmp_path / "run", held=str(tmp_path)))
    tmux.wait_for((tmp_path / "here").exists)
    tmux.wait_for(lambda: re.fullmatch(line, tmux.screen[-1]))
    tmux("send-keys", "C-c")
    (tmp_path / "go").touch()
    tmux.wait_for(lambda: any(held.startswith("status") for held in tmux.screen))
    screen = tmux.screen
    assert screen[-1] == "status 130", screen
    text = "".join(screen)
    assert "interrupted at epoch 2/3  batch  6/12" in text
    assert not any(re.fullmatch(line, held) for held in screen)
    assert tmux("display-message", "-p", "#{cursor_flag}").strip() == "1"


@pytest.fixture
def outside_of_notebooks() -> Iterator[None]:
    """Forget the kernel's package afterwards: a run in a process that has it takes itself to be in a notebook."""
    yield
    for name in [name for name in sys.modules if name.split(".")[0] == "ipykernel"]:
        del sys.modules[name]


def test_a_notebook_has_one_output_that_is_changed_in_place(outside_of_notebooks: None, tmp_path: Path) -> None:
    """K10, C4: in a real kernel, without widgets."""
    manager = pytest.importorskip("jupyter_client.manager", reason="jupyter_client isn't installed")
    if importlib.util.find_spec("ipykernel") is None:
        pytest.skip("ipykernel isn't installed")
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.jobs.progress_job import main\n"
        f"main('auto', {str(tmp_path / 'run')!r}, workers=2)\n"
    )
    kernel, client = manager.start_new_kernel(kernel_name="python3", env={**os.environ, "PYTHONWARNINGS": "error"})
    messages: list[Any] = []
    try:
        reply = client.execute_interactive(code, timeout=120, output_hook=messages.append)
    finally:
        client.stop_channels()
        kernel.shutdown_kernel(now=True)
    assert reply["content"]["status"] == "ok", reply["content"]
    kinds = [message["msg_type"] for message in messages]
    assert kinds.count("display_data") == 1
    assert kinds.count("update_display_data") > 10
    displays = {m["content"]["transient"]["display_id"] for m in messages if "display_data" in m["msg_type"]}
    assert len(displays) == 1
    last = [m["content"]["data"] for m in messages if m["msg_type"] == "update_display_data"][-1]
    assert list(last) == ["text/plain"]
    streams = {m["content"]["name"]: "" for m in messages if m["msg_type"] == "stream"}
    printed = "".join(m["content"]["text"] for m in messages if m["msg_type"] == "stream")
    assert set(streams) == {"stdout"}
    assert printed.count("validation") == 3 + 1  # and the best
