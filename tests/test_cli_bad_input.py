"""Whatever a run directory is, each command answers: with what it can read, or with one sentence and status 2."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tachograph.engine.cli import COMMANDS
from tests.jobs import rehearsed
from tests.test_cli_support import cli
from tests.toys import files_of

BUILD = ("--trainer", f"{rehearsed.__file__}:build")
FORMS: dict[str, Callable[[Path, Path, Path], list[str | Path]]] = {
    "diff": lambda bad, good, out: ["diff", bad, good],
    "diff the other way": lambda bad, good, out: ["diff", good, bad],
    "export": lambda bad, good, out: ["export", bad, "--to", "csv", "-o", out / "run.csv"],
    "export a trace": lambda bad, good, out: ["export", bad, "--to", "trace", "-o", out / "run.json"],
    "export a database": lambda bad, good, out: ["export", bad, "--to", "sqlite", "-o", out / "run.db"],
    "fork": lambda bad, good, out: ["fork", bad, "--at", "9", *BUILD, "-o", out / "fork"],
    "graph": lambda bad, good, out: ["graph", bad],
    "note": lambda bad, good, out: ["note", bad, "9", "look here"],
    "note listed": lambda bad, good, out: ["note", bad, "--list"],
    "pack": lambda bad, good, out: ["pack", bad, "--around", "9", "-o", out / "run.zip"],
    "replay": lambda bad, good, out: ["replay", bad, "--to", "csv", out / "replayed.csv"],
    "report": lambda bad, good, out: ["report", bad, "-o", out / "run.html"],
    "report beside another": lambda bad, good, out: ["report", good, bad, "-o", out / "run.html"],
    "shell": lambda bad, good, out: ["shell", bad, "--at", "9", *BUILD, "-c", "print(state)"],
    "show": lambda bad, good, out: ["show", bad],
    "show one": lambda bad, good, out: ["show", bad, "--at", "30"],
    "show samples": lambda bad, good, out: ["show", bad, "--at", "30", "--samples"],
    "snapshots": lambda bad, good, out: ["snapshots", "ls", bad],
    "snapshots verified": lambda bad, good, out: ["snapshots", "verify", bad],
    "unpack": lambda bad, good, out: ["unpack", bad, "-o", out / "unpacked"],
    "verify": lambda bad, good, out: ["verify", bad, *BUILD],
    "watch": lambda bad, good, out: ["watch", bad],
}
"""What is typed: f(a directory, a sound run, a folder for what is written)."""
READ_NO_JOURNAL = {"graph", "note", "note listed", "snapshots", "snapshots verified", "unpack"}
"""Forms that answer whatever is wrong with the journal, or need none."""


def test_every_command_is_among_those_that_are_tried() -> None:
    assert {form.split()[0] for form in FORMS} == set(COMMANDS)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "run"
    rehearsed.build(path).run()
    return path


# -- what a run directory may be ---------------------------------------------------------------------------


def empty(run: Path) -> None:
    shutil.rmtree(run)
    run.mkdir()


def foreign(run: Path) -> None:
    empty(run)
    (run / "hparams.yaml").write_text("lr: 0.1\n")
    (run / "epoch=3.ckpt").write_bytes(b"\x80\x02}q\x00.")


def a_file(run: Path) -> None:
    shutil.rmtree(run)
    run.write_text("loss 0.5\n")


def missing(run: Path) -> None:
    shutil.rmtree(run)


def newer(run: Path) -> None:
    about = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**about, "format": 99}))


def truncated(run: Path) -> None:
    text = (run / "run.json").read_text()
    (run / "run.json").write_text(text[: len(text) // 2])


def another_json(run: Path) -> None:
    (run / "run.json").write_text("[1, 2]")


def journal_of(run: Path) -> Path:
    return next((run / "journal" / "rank-0").glob("*.jsonl"))


def newer_journal(run: Path) -> None:
    path = journal_of(run)
    path.write_bytes(path.read_bytes().replace(b'"format":1', b'"format":7', 1))


def flipped(run: Path) -> None:
    path = journal_of(run)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 4
    path.write_bytes(bytes(raw))


def with_a_hole(run: Path) -> None:
    path = journal_of(run)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:8], *lines[12:]]))


def no_journal(run: Path) -> None:
    shutil.rmtree(run / "journal")


NO_RUN = [empty, foreign, a_file, missing, newer, truncated, another_json]
DAMAGED = [newer_journal, flipped, with_a_hole]


def tried(form: str, make: Callable[[Path], None], good: Path, folder: Path) -> tuple[int, str]:
    """Type a form at a copy of a run that something was done to; nothing of it may be touched."""
    bad, out = folder / "run", folder / "out"
    shutil.copytree(good, bad)
    make(bad)
    out.mkdir()
    before = files_of(folder)
    said = cli(*FORMS[form](bad, good, out))
    told = [line for line in said.err.splitlines() if line.startswith("tachograph: ")]
    assert "Traceback" not in said.err
    if said.status == 2:
        assert len(told) == 1, said.err
        assert str(bad) in told[0], told
        assert not any(out.iterdir()), "something was left half done"
    if said.status == 2 or not form.startswith("note"):
        assert {path: raw for path, raw in files_of(folder).items() if out not in path.parents} == before
    return said.status, told[0] if told else said.out


@pytest.mark.parametrize("make", NO_RUN, ids=lambda make: make.__name__)
@pytest.mark.parametrize("form", FORMS)
def test_what_is_no_run_is_refused_in_one_sentence(
    form: str, make: Callable[[Path], None], good: Path, tmp_path: Path
) -> None:
    if form == "watch" and make in (missing, empty, foreign):
        pytest.skip("it says that it waits for a run to begin there: see test_cli_watch.py")
    status, told = tried(form, make, good, tmp_path)
    assert status == 2, told
    if make is newer:
        assert "upgrade tachograph" in told or form == "unpack"


@pytest.mark.parametrize("make", DAMAGED, ids=lambda make: make.__name__)
@pytest.mark.parametrize("form", [form for form in FORMS if form not in READ_NO_JOURNAL])
def test_a_damaged_journal_is_refused_in_one_sentence(
    form: str, make: Callable[[Path], None], good: Path, tmp_path: Path
) -> None:
    status, told = tried(form, make, good, tmp_path)
    if form.startswith("diff") and status == 0:  # it reads what it needs: the last chains stand for all before them
        assert make is not newer_journal
        assert "are equal" in told
        return
    assert status == 2, told
    assert ("upgrade tachograph" in told) == (make is newer_journal)


@pytest.mark.parametrize("make", [*DAMAGED, no_journal], ids=lambda make: make.__name__)
@pytest.mark.parametrize("form", sorted(READ_NO_JOURNAL - {"unpack"}))
def test_what_needs_no_journal_answers_whatever_is_wrong_with_it(
    form: str, make: Callable[[Path], None], good: Path, tmp_path: Path
) -> None:
    tried(form, make, good, tmp_path)


@pytest.mark.parametrize("form", ["report", "export"])
def test_a_place_that_is_not_there_is_named_as_it_was_given(form: str, good: Path, tmp_path: Path) -> None:
    said = cli(*FORMS[form](good, good, tmp_path / "nowhere"))
    assert said.status == 2
    assert f"there is no folder {tmp_path}/nowhere" in said.err


@pytest.mark.parametrize("form", [form for form in FORMS if form not in ("unpack", "watch")])
def test_a_run_that_was_begun_and_wrote_nothing_is_answered(form: str, good: Path, tmp_path: Path) -> None:
    tried(form, no_journal, good, tmp_path)
