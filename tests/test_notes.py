"""Notes at transitions: written beside the journal, by anybody, at any time; shown wherever the transition is."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.engine import Journal
from tachograph.engine.journal import JournalError, add_note, read_notes, withdraw_note
from tachograph.engine.journal.notes import MOST, NOTES
from tachograph.states import CallerError
from tests.test_cli_support import cli, failed, killed, strict_json
from tests.toys import stub


@pytest.fixture
def done(run_dir: Path) -> Path:
    stub(run_dir=run_dir).run()
    return run_dir


def texts(run_dir: Path) -> list[str]:
    return [note.text for note in Journal(run_dir).notes()]


# -- the file ----------------------------------------------------------------------------------------------


def test_a_note_is_kept_with_its_transition_its_text_and_its_time_and_the_journal_is_not_touched(done: Path) -> None:
    journal = next((done / "journal" / "rank-0").glob("*.jsonl"))
    before = journal.read_bytes()
    made = add_note(done, 4, "the loss jumps", now=1796081234.5)
    assert Journal(done).notes() == (made,)
    assert attrs.astuple(made)[1:] == (4, "the loss jumps", 1796081234.5, None)
    assert journal.read_bytes() == before
    line = strict_json((done / NOTES).read_text())
    assert list(line) == ["note", "seq", "text", "time", "crc"]


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is made once; each example begins with no notes."""
    path = tmp_path_factory.mktemp("once") / "run"
    stub(run_dir=path, batches=[1], n_epochs=1).run()
    return path


@given(text=st.text(min_size=1).filter(str.strip))
def test_any_text_comes_back_on_a_line_of_its_own(once: Path, text: str) -> None:
    (once / NOTES).unlink(missing_ok=True)
    add_note(once, 1, "before")
    add_note(once, 1, text)
    assert texts(once) == ["before", text]
    assert (once / NOTES).read_bytes().count(b"\n") == 2


def test_bytes_that_are_no_text_are_kept_as_what_they_look_like(done: Path) -> None:
    add_note(done, 1, b"caf\xe9".decode(errors="surrogateescape"))
    assert texts(done) == [r"caf\udce9"]


def test_a_live_run_a_dead_one_and_a_damaged_one_take_notes(run_dir: Path, tmp_path: Path) -> None:
    live = stub(run_dir=run_dir)
    live.on("fetch -> step", lambda trainer: add_note(run_dir, trainer.trainer_state.seq, "while it runs"))
    live.run()
    assert len(texts(run_dir)) == 6
    dead = killed(tmp_path / "dead")
    add_note(dead, 2, "before it died")
    segment = next((dead / "journal" / "rank-0").glob("*.jsonl"))
    lines = segment.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b'"to"', b'"ot"')
    segment.write_bytes(b"".join(lines))
    add_note(dead, 1, "damaged")
    assert texts(dead) == ["before it died", "damaged"]


@pytest.mark.parametrize("seq", [-1, 0, 20, 10**12])
def test_a_transition_that_is_not_there_takes_none(seq: int, done: Path) -> None:
    with pytest.raises(JournalError, match=f"has no transition {seq}: it holds 1 to 19"):
        add_note(done, seq, "x")
    assert not (done / NOTES).exists()


@pytest.mark.parametrize("text", ["", " \n\t", "x" * (MOST + 1)])
def test_a_note_says_something_and_not_too_much(text: str, done: Path) -> None:
    with pytest.raises(CallerError):
        add_note(done, 1, text)
    assert not (done / NOTES).exists()


@given(cut=st.integers(1, 400), flipped=st.integers(0, 400), bit=st.integers(0, 7))
def test_whatever_is_torn_or_flipped_costs_the_lines_it_struck_and_no_others(
    once: Path, cut: int, flipped: int, bit: int
) -> None:
    """A tail may be torn by a crash; the next note begins on a line of its own."""
    path = once / NOTES
    path.unlink(missing_ok=True)
    made, ends = [], [0]
    for i in range(3):
        made.append(add_note(once, 1, f"note {i}"))
        ends.append(path.stat().st_size)
    raw = bytearray(path.read_bytes())
    at, end = flipped % len(raw), min(cut, len(raw))
    raw[at] ^= 1 << bit
    path.write_bytes(bytes(raw[:end]))
    spans = list(itertools.pairwise(ends))
    whole = {i for i, (start, stop) in enumerate(spans) if stop <= end and not start <= at < stop}
    glued = {i + 1 for i, (_, stop) in enumerate(spans) if at == stop - 1}  # its newline is no newline any more
    found = read_notes(once).all
    assert {made[i] for i in whole - glued} <= set(found) <= set(made)
    last = add_note(once, 1, "after")
    assert read_notes(once).all == (*found, last)


def test_many_who_write_at_once_lose_nothing(done: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom tachograph.engine.journal import add_note\n"
        "for i in range(25): add_note(Path(sys.argv[1]), 1, f'{sys.argv[2]} {i} ' + 'x' * 3000)"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(done), str(n)]) for n in range(3)]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    notes = read_notes(done)
    assert notes.unread == ()
    assert sorted(note.text.rstrip("x ") for note in notes.all) == sorted(
        f"{n} {i}" for n in range(3) for i in range(25)
    )


# -- withdrawing -------------------------------------------------------------------------------------------


def test_a_withdrawn_note_stays_in_the_file_and_counts_no_more(done: Path) -> None:
    first, second = (add_note(done, 2, text) for text in ("one", "two"))
    before = (done / NOTES).read_bytes()
    gone = withdraw_note(done, first.id[:5])
    assert gone.withdrawn is not None
    assert (done / NOTES).read_bytes().startswith(before)
    assert Journal(done).notes() == (second,)
    assert read_notes(done).all == (gone, second)


def test_what_is_not_there_or_was_withdrawn_already_cannot_be(done: Path) -> None:
    note = add_note(done, 2, "one")
    with pytest.raises(JournalError, match=r"isn't there: `tachograph note .* --list` says what there is"):
        withdraw_note(done, "zz")
    with pytest.raises(JournalError, match="isn't there"):
        withdraw_note(done, "")
    withdraw_note(done, note.id)
    with pytest.raises(JournalError, match="was withdrawn already"):
        withdraw_note(done, note.id)


# -- the command, and show ---------------------------------------------------------------------------------


def test_the_command_writes_lists_and_withdraws(done: Path) -> None:
    said = cli("note", done, "4", "the loss jumps")
    (note,) = Journal(done).notes()
    assert said.out == f"noted at transition 4, as {note.id}: the loss jumps\n"
    cli("note", done, "9", "later")
    listed = cli("note", done, "--list")
    assert [line.split()[0] for line in listed.lines[1:]] == ["4", "9"]
    assert [found["text"] for found in cli("note", done, "--list", "--json").json_lines()] == [
        "the loss jumps",
        "later",
    ]
    assert len(cli("note", done, "9", "--list").lines) == 2
    assert cli("note", done, "--withdraw", note.id).out.startswith("withdrawn at transition 4")
    assert len(cli("note", done, "--list").lines) == 2
    assert "the loss jumps  (withdrawn " in cli("note", done, "--list", "--all").out


def test_show_has_a_section_of_notes_and_prints_those_of_a_transition(done: Path) -> None:
    assert "Notes" not in cli("show", done).out
    add_note(done, 4, "the loss jumps")
    add_note(done, 5, "elsewhere")
    assert [line.split("  ")[-1] for line in cli("show", done).section("Notes")] == ["the loss jumps", "elsewhere"]
    assert [note["seq"] for note in cli("show", done, "--json").json()["notes"]] == [4, 5]
    page = cli("show", done, "--at", "4").out
    assert "the loss jumps" in page
    assert "elsewhere" not in page
    assert cli("show", done, "--at", "4", "--json").json()["notes"][0]["text"] == "the loss jumps"


def test_control_characters_are_written_out(done: Path) -> None:
    add_note(done, 4, "\x1b[2J\r\nbell\x07")
    for said in (cli("show", done), cli("show", done, "--at", "4"), cli("note", done, "--list")):
        assert r"\x1b[2J\r\nbell\x07" in said.out
        assert "\x1b" not in said.out


def test_lines_that_cannot_be_read_are_named(done: Path) -> None:
    add_note(done, 4, "one")
    with open(done / NOTES, "ab") as file:
        file.write(b'{"note":"half')
    said = cli("note", done, "--list")
    assert (said.status, len(said.lines)) == (0, 2)
    assert said.err == f"line 2 of {done}/notes.jsonl can't be read, and is passed over\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([], "give the transition and the text"),
        (["4"], "give the transition and the text"),
        (["4", ""], "a note needs a text that says something"),
        (["99", "x"], "has no transition 99: it holds 1 to "),
        (["x", "x"], "invalid int value"),
        (["4", "x", "--list"], "take no text"),
        (["4", "--withdraw", "ab"], "take no text"),
        (["--withdraw", "ab"], "isn't there"),
        (["4", "x", "--all"], "--all belongs to --list"),
    ],
)
def test_what_cannot_be_noted_is_one_sentence(arguments: list[str], sentence: str, run_dir: Path) -> None:
    said = cli("note", failed(run_dir), *arguments)
    assert (said.status, said.out, len(said.err.splitlines())) == (2, "", 1)
    assert sentence in said.err


def test_no_notes_is_status_1_and_no_run_is_2(done: Path, tmp_path: Path) -> None:
    assert (cli("note", done, "--list").status, cli("note", done, "4", "--list").status) == (1, 1)
    assert cli("note", tmp_path / "nothing", "1", "x").status == 2
    assert cli("note", tmp_path, "1", "x").status == 2
