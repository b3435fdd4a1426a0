"""`tachograph report`: what is in the page equals the journal value by value, and a browser shows it."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import math
import random
import re
import struct
import sys
import zlib
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tachograph.engine import Engine, Journal, diff, recording
from tachograph.engine.journal import JournalWriter, rank_directory
from tachograph.engine.journal.notes import add_note
from tachograph.engine.report import Written, page, prints, records, report
from tachograph.engine.report.boxes import Box
from tachograph.engine.report.drawing import drawing
from tachograph.engine.report.outline import MOST_CURVES
from tachograph.states import (
    EpochBegan,
    EpochEnded,
    Event,
    Exhausted,
    Failed,
    Fetched,
    Machine,
    Row,
    Started,
    Stepped,
    TrainerState,
    Validated,
    training_machine,
)
from tachograph.states.table import Plan
from tests import browser
from tests.browser import Browser
from tests.test_cli_ranks import Run as Ranks
from tests.test_cli_support import cli, failed, in_a_process, killed, resumed, validating
from tests.test_journal_support import run as transitions
from tests.toys import stub

HOSTILE = (
    "</script><script>window.hurt = 1</script><img src=x onerror='window.hurt = 2'>\"'&amp;<!-- \u2028\u2029"
    "\u202egnp.exe \u2066\x00\x1b[31m ${window.hurt=3} javascript:alert(1)"
)


# -- runs ----------------------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Game:
    state: str = "play"
    seq: int = 0
    games: int = 0
    word: str = ""


@attrs.frozen(kw_only=True)
class Played(Event):
    reward: float
    moves: tuple[int, ...] = ()
    told: dict[str, Any] = attrs.field(factory=dict)
    word: str = ""

    def fold(self, state: Game, dest: str) -> Game:
        return attrs.evolve(state, state=dest, seq=state.seq + 1, games=state.games + 1, word=self.word)


def enough(state: Game, event: Played) -> bool:
    """twelve games"""
    return state.games >= 11


def played(run_dir: Path, play: Any, state: str = "play") -> Path:
    """A run of a machine of one's own: twelve games."""
    rows = [Row(state, Played, "done", enough), Row(state, Played, state), Row(state, Failed, "exception")]
    Engine(Machine(rows, initial=state), {state: play}, state=Game(state=state), run_dir=run_dir).run()
    return run_dir


def written(run_dir: Path, transitions: int, batches: int = 50, seed: int = 0) -> Path:
    """A training run's journal with numbers as training makes them, written without training."""
    machine, noise = training_machine(), random.Random(seed)
    state = TrainerState(state="init", num_batches_per_epoch=batches)
    about = recording.create(run_dir, {"machine": machine.digest, "seed": seed}, {})
    with JournalWriter.create(run_dir, run_id=about["run"]) as writer:
        while state.seq < transitions:
            event = _next(state, batches, noise)
            source, state = state.state, event.fold(state, machine.next_state(state, event))
            writer.append(source, event, state)
    return run_dir


def _next(state: TrainerState, batches: int, noise: random.Random) -> Event:
    if state.state == "fetch":
        more = state.batch_idx_in_epoch < batches
        return Fetched(ids=noise.getrandbits(32)) if more else Exhausted(validate_due=True)
    if state.state == "step":
        (loss,) = struct.unpack("f", struct.pack("f", 2 * math.exp(-state.seq / 1e5) + noise.gauss(0, 0.1)))
        return Stepped(loss=loss, lr=[1e-3 / (1 + state.seq)], samples=32, rng=noise.getrandbits(53))
    if state.state == "validate":
        return Validated(results={"acc#acc#dev": noise.random()})
    return {"init": Started, "epoch_begin": EpochBegan, "epoch_end": EpochEnded}[state.state]()


def done(run_dir: Path, **settings: Any) -> Path:
    stub(run_dir=run_dir, **validating(**settings)).run()
    return run_dir


# -- reading a page without a browser -------------------------------------------------------------------------


class Elements(html.parser.HTMLParser):
    """The scripts of a page: by id what is in them; the program's id is "program"."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.held: dict[str, str] = {}
        self.policy = self._name = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        told = dict(attributes)
        if told.get("http-equiv") == "Content-Security-Policy":
            self.policy = told["content"] or ""
        self._name = told.get("id") or "program" if tag in ("script", "style") else ""
        self._name = "style" if tag == "style" else self._name

    def handle_endtag(self, tag: str) -> None:
        self._name = ""

    def handle_data(self, data: str) -> None:
        if self._name:
            self.held[self._name] = self.held.get(self._name, "") + data


def unpacked(text: str) -> tuple[Any, list[Any]]:
    """What goes with a box, and its columns."""
    raw = zlib.decompress(base64.b64decode(text))
    size = int.from_bytes(raw[:4], "little")
    header, at, columns = json.loads(raw[4 : 4 + size]), 4 + size, []
    for kind, count, length in header["columns"]:
        columns.append(column(kind, count, raw[at : at + length]))
        at += length
    assert at == len(raw)
    return header["told"], columns


def column(kind: str, count: int, raw: bytes) -> list[Any]:
    if kind == "b":
        return list(raw)
    if kind == "t":
        return list(json.loads(raw))
    whole = b"".join(raw[i::count] for i in range(count)) if count else b""
    values = array("d" if kind == "f" else "q", whole).tolist()
    if kind == "d":
        for i in range(1, count):
            values[i] += values[i - 1]
    return values


class Page:
    """A page that was written, read back."""

    def __init__(self, *run_dirs: Path, **options: Any) -> None:
        self.path = run_dirs[0].parent / "report.html"
        self.told: Written = report(list(run_dirs), self.path, **options)
        self.text = self.path.read_text(encoding="utf-8")
        self.elements = Elements(self.text)
        self.facts = json.loads(self.elements.held["facts"])

    def outline(self, run: int = 0) -> list[tuple[int, float, list[str]]]:
        told, columns = unpacked(self.elements.held[f"outline-{run}"])
        rows = self.facts["runs"][run]["rows"]
        seqs, times, took = (columns[told[name]] for name in ("seq", "time", "took"))
        return [(seq, time / 1e6, rows[row]) for seq, time, row in zip(seqs, times, took, strict=True)]

    def curves(self, run: int = 0) -> dict[str, list[tuple[int, float]]]:
        told, columns = unpacked(self.elements.held[f"curves-{run}"])
        return {c["name"]: list(zip(*(columns[i] for i in c["columns"]), strict=True)) for c in told}

    def records(self, run: int = 0) -> Iterator[tuple[dict[str, Any], dict[str, Any], str | None] | None]:
        facts = self.facts["runs"][run]["records"]
        for number, there in enumerate(facts["there"]):
            if not there:
                yield from [None] * facts["size"]
                continue
            records, chains = self.elements.held[f"records-{run}-{number}"].split(" ")
            yield from told_records(*unpacked(records), unpacked(chains)[1][0], facts["chain_every"])


def told_records(told: Any, columns: list[Any], chains: list[int], every: int) -> Iterator[Any]:
    taken: dict[int, int] = {}
    read: dict[int, int] = {}
    for i, template in enumerate(columns[told["order"]]):
        parts, held = told["templates"][template]
        place = taken[template] = taken.get(template, -1) + 1
        text = parts[0]
        for column, part in zip(held, parts[1:], strict=True):
            text += numeral(columns, column, place, read) + part
        chain = None if i % every else f"{chains[i // every] % (1 << 64):016x}"
        yield (*map(json.loads, text.split("\n")), chain)


def numeral(columns: list[Any], column: Any, place: int, read: dict[int, int]) -> str:
    if not isinstance(column, list):
        return str(columns[column][place])
    lengths, numbers = (columns[i] for i in column)
    begin = read.get(column[1], 0)
    read[column[1]] = end = begin + abs(lengths[place])
    text = ",".join(map(str, numbers[begin:end]))
    return text if lengths[place] < 0 else f"[{text}]"


def same(a: Any, b: Any) -> bool:
    """Equal, NaN to itself and 1 to 1.0 as well: in the page's language they are one number."""
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


def check(shown: Page, run_dir: Path, run: int = 0) -> int:
    """Hold a page against the journal, value by value; return the number of records."""
    outline, held, count = shown.outline(run), shown.records(run), 0
    for record, (seq, time, row), told in zip(Journal(run_dir), outline, held, strict=True):
        assert (seq, row) == (record.seq, [record.source, record.event, record.dest])
        assert time == pytest.approx(record.meta["time"], abs=2e-6)
        assert told is not None
        data, state, chain = told
        assert same(data, json.loads(bytes(record.raw_data)))
        assert same(state, json.loads(bytes(record.raw_state)))
        assert chain in (None, record.chain)
        count += 1
    assert count == len(outline)
    return count


# -- the data in the page --------------------------------------------------------------------------------------


def test_every_record_in_the_page_equals_the_journals_value_by_value(run_dir: Path) -> None:
    assert check(Page(written(run_dir, 9000)), run_dir) == 9000  # more than a box


@pytest.mark.parametrize(
    "make", [done, failed, lambda path: resumed(failed(path), n_epochs=3)], ids=["done", "failed", "resumed"]
)
def test_it_does_for_runs_that_ended_failed_or_were_resumed(make: Any, run_dir: Path) -> None:
    assert check(Page(make(run_dir)), run_dir) == len(Journal(run_dir))


def test_it_does_for_any_data_that_a_record_can_hold(run_dir: Path) -> None:
    words = ['5,"a":6', '\\":7,', "[1,2]", "nan", "", HOSTILE, '"":3}', "1", "\ud800", "é", "\\", ':1.0,":2.0,']
    numbers = [0.1, -0.0, math.nan, math.inf, 2**60, -(2**60), 10**30, 1e-300, 5, -5, 0.5, 2**53]
    lists: list[tuple[Any, ...]] = [(1, 2.5), (), (3,), (2**60, 1), (1, -2, 3), ([1], 2), *[(1, 2)] * 6]
    turn = iter(range(12))

    def play(state: Game) -> Played:
        i = next(turn)
        told = {"n": numbers[i], words[i]: i, "in": {'"': numbers[-i], "list": [0.5, i], "s": f'":{i},'}}
        return Played(reward=numbers[i], moves=lists[i], told=told, word=words[i])

    assert check(Page(played(run_dir, play)), run_dir) == 12


@given(st.lists(st.integers(-(2**80), 2**80) | st.integers(-100, 100)))
def test_integers_of_any_size_come_back_from_a_box(values: list[int]) -> None:
    box = Box()
    box.add_integers(values)
    told, (found,) = unpacked(box.packed("told"))
    assert told == "told"
    assert list(map(int, found)) == values


@given(st.lists(st.floats()))
def test_floats_come_back_from_a_box_with_every_bit(values: list[float]) -> None:
    box = Box()
    box.add_floats(values)
    (found,) = unpacked(box.packed())[1]
    assert array("d", found).tobytes() == array("d", values).tobytes()


def test_curves_are_the_losses_learning_rates_and_results_of_the_journal(run_dir: Path) -> None:
    shown = Page(written(run_dir, 500)).curves()
    steps = [record for record in Journal(run_dir) if record.event == "Stepped"]
    results = [record for record in Journal(run_dir) if record.event == "Validated"]
    assert shown["loss"] == [(record.seq, record.data["loss"]) for record in steps]
    assert shown["lr"] == [(record.seq, record.data["lr"][0]) for record in steps]
    assert shown["acc#acc#dev"] == [(record.seq, record.data["results"]["acc#acc#dev"]) for record in results]
    assert shown.keys() == {"loss", "lr", "acc#acc#dev"}


def test_a_loss_that_arrived_late_stands_at_its_own_step(run_dir: Path) -> None:
    state, about = TrainerState(state="init"), recording.create(run_dir, {}, {})
    with JournalWriter.create(run_dir, run_id=about["run"]) as writer:
        for source, event, dest in [
            ("init", Started(), "epoch_begin"),
            ("epoch_begin", EpochBegan(), "fetch"),
            ("fetch", Fetched(), "step"),
            ("step", Stepped(lr=[0.1, 0.2]), "fetch"),
            ("fetch", Fetched(), "step"),
            ("step", Stepped(loss=0.5, late=[4, math.nan], lr=[0.1, 0.3]), "fetch"),
            ("fetch", Fetched(), "step"),
            ("step", Stepped(), "fetch"),
            ("fetch", Exhausted(late=[[8, 0.25]]), "epoch_end"),
        ]:
            state = event.fold(state, dest)
            writer.append(source, event, state)
    shown = Page(run_dir).curves()
    assert [seq for seq, _ in shown["loss"]] == [4, 6, 8]
    assert math.isnan(shown["loss"][0][1])
    assert [value for _, value in shown["loss"][1:]] == [0.5, 0.25]
    assert shown["lr[1]"] == [(4, 0.2), (6, 0.3)]


def test_a_users_events_have_curves_of_their_own(run_dir: Path) -> None:
    shown = Page(
        played(run_dir, lambda state: Played(reward=state.games / 2, moves=(1, 2), told={"depth": 3}))
    ).curves()
    assert shown["reward"] == [(i + 1, i / 2) for i in range(12)]
    assert shown["depth"] == [(i + 1, 3.0) for i in range(12)]
    assert shown["moves[1]"][0] == (1, 2.0)


def test_there_are_so_many_curves_and_the_page_says_how_much_was_left_out(run_dir: Path) -> None:
    shown = Page(played(run_dir, lambda state: Played(reward=1, told={f"k{i}": i for i in range(2 * MOST_CURVES)})))
    assert len(shown.curves()) == MOST_CURVES
    assert shown.facts["runs"][0]["curves_left_out"] == 12 * (2 * MOST_CURVES + 1 - MOST_CURVES)


def test_what_has_no_room_is_left_out_but_errors_and_ends_and_is_told_of(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(records, "SIZE", 4)
    monkeypatch.setattr("tachograph.engine.report.telling.SIZE", 4)
    monkeypatch.setattr(records, "ROOM", 1)
    shown = Page(failed(run_dir, step=5))
    facts, held = shown.facts["runs"][0], list(shown.records())
    assert facts["records"]["there"] == [True] + [False] * (len(facts["records"]["there"]) - 2) + [True]
    assert shown.told.left_out == facts["records"]["there"].count(False) > 1
    last = Journal(run_dir).last
    assert last is not None
    assert held[last.seq - 1][0]["error"] == last.data["error"]  # type: ignore[index]
    assert len(shown.outline()) == last.seq  # where it stood is known of all of them


def test_of_a_long_run_so_many_chains_are_kept(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LONG", 100)
    monkeypatch.setattr("tachograph.engine.report.telling.LONG", 100)
    shown = Page(written(run_dir, 300))
    assert check(shown, run_dir) == 300
    assert sum(record is not None and record[2] is not None for record in shown.records()) == 300 // 64 + 1


def test_a_huge_text_is_cut_and_that_is_told(run_dir: Path) -> None:
    shown = Page(failed(run_dir, text="x" * 200_000))
    assert shown.facts["runs"][0]["records"]["cut"] == 1
    error = list(shown.records())[-1][0]["error"]  # type: ignore[index]
    assert error == f"{'x' * 4096} … ({200_000 - 4096:,} more characters)"
    assert len(shown.text) < 600_000


def test_notes_snapshots_errors_and_lives_are_told(run_dir: Path) -> None:
    failed(run_dir)
    add_note(run_dir, 5, "it began here")
    facts = Page(resumed(run_dir, n_epochs=3)).facts["runs"][0]
    assert [(note["seq"], note["text"]) for note in facts["notes"]["rows"]] == [(5, "it began here")]
    assert [life["ended"] for life in facts["incarnations"]] == ["failed", "closed"]
    assert [place for place, *_ in facts["lives"]] == [0, facts["incarnations"][1]["first_seq"] - 1]
    assert facts["snapshots"]["count"] == len(list((run_dir / "snapshots").iterdir()))
    assert facts["errors"]["rows"][0]["kind"] == "ValueError"
    assert {row["kind"] for row in facts["sides"]["rows"]} >= {"resumed"}
    assert facts["in_force"]["n_epochs"] == 3


def with_prints(run_dir: Path, gradients: str) -> Path:
    """A run that took a fingerprint of each of its three updates."""
    state, about = TrainerState(state="init"), recording.create(run_dir, {}, {})
    with JournalWriter.create(run_dir, run_id=about["run"]) as writer:
        for source, event, dest in [
            ("init", Started(), "epoch_begin"),
            ("epoch_begin", EpochBegan(), "fetch"),
            *[("fetch", Fetched(), "step"), ("step", Stepped(loss=0.5), "fetch")] * 3,
        ]:
            state = event.fold(state, dest)
            writer.append(source, event, state)
            if source == "step":
                batch = f"{state.seq:016x}"
                writer.side("fingerprint", at=state.seq, batch=batch, gradients=gradients, scaler=None)
    return run_dir


def test_fingerprints_are_in_the_page(run_dir: Path) -> None:
    shown = Page(with_prints(run_dir, "0123456789abcdef"))
    told, columns = unpacked(shown.elements.held["prints-0"])
    assert columns[told["at"]] == [4, 6, 8]
    assert columns[told["parts"]["batch"]] == [f"{seq:016x}" for seq in (4, 6, 8)]
    assert columns[told["parts"]["gradients"]] == ["0123456789abcdef"] * 3
    assert columns[told["parts"]["scaler"]] == [""] * 3
    assert shown.facts["runs"][0]["sides"]["count"] == 0


def test_of_many_fingerprints_some_are_kept_evenly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prints, "MOST", 10)
    held = prints.Prints()
    for seq in range(100):
        held.add({"at": seq})
    told, columns = unpacked(held.packed())
    assert columns[told["at"]] == list(range(0, 100, 16))
    assert (len(held), held.count) == (7, 100)


def test_two_runs_are_compared_with_the_first(tmp_path: Path) -> None:
    a, b, c = (written(tmp_path / name, 200, seed=seed) for name, seed in [("a", 0), ("b", 0), ("c", 1)])
    shown = Page(a, b, c)
    same, other = shown.facts["compared"]
    assert same == {"divergence": None, "fault": ""}
    assert (other["divergence"]["seq"], other["divergence"]["field"]) == (3, "data.ids")
    assert other["divergence"]["cause"]
    assert [check(shown, run, i) for i, run in enumerate((a, b, c))] == [200, 200, 200]
    assert shown.told.divergences[0] is None
    assert shown.told.divergences[1] is not None


def test_the_ranks_of_a_run_are_told_and_one_may_be_chosen(run_dir: Path) -> None:
    run = Ranks(run_dir, world=2)
    run.rank(0, transitions(9), close=True)
    run.rank(1, transitions(8), close=True)
    facts = Page(run_dir).facts["runs"][0]
    assert [row["seq"] for row in facts["ranks"]["rows"]] == [9, 8]
    other = Page(run_dir, rank=1)
    assert len(other.outline()) == 8
    assert other.facts["runs"][0]["ranks"] is None


# -- the drawing -------------------------------------------------------------------------------------------------


def test_the_training_machine_is_drawn_whole_and_no_state_lies_on_another() -> None:
    told = drawing([("step", "Failed", "exception")], Plan.of(training_machine()))
    assert {state["name"] for state in told["states"]} == set(training_machine().names)
    arrows = {(arrow["from"], arrow["to"]) for arrow in told["arrows"]}
    known = {(r.source, r.dest) for r in training_machine().rows if r.event.__name__ not in ("Stopped", "Failed")}
    assert arrows == known | {("step", "exception")}
    left, top, width, height = told["box"]
    boxes = [(state["x"], state["y"], state["half"]) for state in told["states"]]
    for i, (x, y, half) in enumerate(boxes):
        assert left + half <= x <= left + width - half
        assert top + 17 <= y <= top + height - 17
        assert all(abs(x - u) >= half + w or abs(y - v) >= 34 for u, v, w in boxes[:i])


names = st.sampled_from(
    ["a", "b", "collect", "learn", "done", "exception", "a state of a very long name indeed", "é<&"]
)


@given(st.lists(st.tuples(names, st.sampled_from(["Went", "Came"]), names), max_size=12))
@settings(max_examples=60)
def test_any_machine_is_laid_out_without_states_that_overlap(rows: list[tuple[str, str, str]]) -> None:
    told = drawing(rows, None)
    assert {s["name"] for s in told["states"]} == {name for source, _, dest in rows for name in (source, dest)}
    places = [(state["x"], state["y"]) for state in told["states"]]
    assert len(set(places)) == len(places)
    assert {(a["from"], a["to"]) for a in told["arrows"]} == {(source, dest) for source, _, dest in rows}


# -- the file ----------------------------------------------------------------------------------------------------


def test_the_policy_allows_the_one_program_by_its_digest_and_nothing_from_elsewhere(run_dir: Path) -> None:
    shown = Page(done(run_dir))
    allowed = dict(part.strip().split(" ", 1) for part in shown.elements.policy.split(";"))
    for name, what in [("script-src", "program"), ("style-src", "style")]:
        digest = base64.b64encode(hashlib.sha256(shown.elements.held[what].encode()).digest()).decode()
        assert allowed[name] == f"'sha256-{digest}'"
    assert allowed["default-src"] == "'none'"


def test_the_program_sets_text_only_and_puts_no_name_into_the_page() -> None:
    program = page._program()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|fetch\(|import\(", program
    )
    assert program.startswith('(() => {\n"use strict";\n')
    assert program.rstrip().endswith("})();")
    assert "</script" not in program


def test_what_comes_from_a_run_can_not_leave_its_element(run_dir: Path) -> None:
    path = run_dir.parent / "a <b> & 'run'"
    shown = Page(failed(path, text=HOSTILE))
    inner = shown.text.split('id="facts">')[1].split("</script>")[0]
    assert not set(inner) & set("<>&\u2028\u2029")
    assert inner.isascii()
    assert shown.facts["runs"][0]["errors"]["rows"][0]["error"].startswith("</script><script>window.hurt")
    assert "<title>a &lt;b&gt; &amp; &#x27;run&#x27; · tachograph</title>" in shown.text


def test_a_page_that_is_there_stays_until_the_new_one_is_whole(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Page(done(run_dir))
    monkeypatch.setattr(page, "_boxes", lambda told: iter([1]))
    with pytest.raises(TypeError):
        report(run_dir, shown.path)
    assert shown.path.read_text(encoding="utf-8") == shown.text
    assert [path.name for path in shown.path.parent.iterdir() if path.is_file()] == ["report.html"]


# -- the command -------------------------------------------------------------------------------------------------


def test_the_command_writes_the_page_and_says_what_is_in_it(run_dir: Path) -> None:
    path = run_dir.parent / "it.html"
    said = cli("report", done(run_dir), "-o", path)
    assert said.status == 0
    assert said.lines[0] == f"Reading {run_dir}"
    assert said.lines[1].startswith(f"{path} has {len(Journal(run_dir))} transitions in ")
    assert path.stat().st_size < 200_000


def test_the_command_says_where_two_runs_part(tmp_path: Path) -> None:
    a, b = written(tmp_path / "a", 100), written(tmp_path / "b", 100, seed=1)
    said = cli("report", a, b, "-o", tmp_path / "it.html")
    assert said.lines[2].startswith(f"{a} and {b} part at transition 3: data.ids is ")


def test_the_command_imports_no_torch(run_dir: Path) -> None:
    code = (
        "import sys; from tachograph.engine.cli.app import run\n"
        "status = run(sys.argv[1:]); sys.exit(status or 7 * ('torch' in sys.modules or 'rich' in sys.modules))"
    )
    assert in_a_process(code, "report", done(run_dir), "-o", run_dir.parent / "it.html").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nowhere"], "there is no run at nowhere"),
        (["."], "isn't a run directory: it has no run.json"),
        (["RUN", "RUN"], "compares different runs, and one of these was given twice"),
        (["RUN", "-o", "."], ". is a directory: name a file, report.html for example"),
        (["RUN", "-o", "RUN/run.json"], "is a part of the run: name another file"),
        (["RUN", "-o", "none/it.html"], "there is no folder"),
        (["RUN", "--rank", "7"], "no journal of rank 7"),
        (["RUN", "--rank", "x"], "'x' isn't the number of a rank"),
        ([], "the following arguments are required: RUN"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: list[str], sentence: str, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run_dir.parent)
    done(run_dir)
    said = cli("report", *(word.replace("RUN", str(run_dir)) for word in arguments))
    assert said.status == 2
    assert sentence in said.err
    assert len(said.err.splitlines()) == 1


def test_a_damaged_journal_is_refused_and_salvaged_when_asked(run_dir: Path) -> None:
    segment = next(rank_directory(done(run_dir), 0).glob("*.jsonl"))
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join([*lines[:5], lines[5].replace(b'"seq":', b'"sea":'), *lines[6:]]))
    path = run_dir.parent / "it.html"
    said = cli("report", run_dir, "-o", path)
    assert (said.status, len(said.err.splitlines()), path.exists()) == (2, 1, False)
    assert segment.name in said.err
    assert cli("report", run_dir, "-o", path, "--salvage").status == 0


def test_a_journal_with_a_hole_and_a_newer_run_are_refused_in_a_sentence(run_dir: Path) -> None:
    segment = next(rank_directory(written(run_dir, 60), 0).glob("*.jsonl"))
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join([*lines[:20], *lines[25:]]))
    said = cli("report", run_dir, "-o", run_dir.parent / "it.html")
    assert (said.status, len(said.err.splitlines())) == (2, 1)
    about = run_dir / "run.json"
    about.write_text(about.read_text().replace('"format": 1', '"format": 99'))
    assert "upgrade tachograph" in cli("report", run_dir).err


# -- in a browser ------------------------------------------------------------------------------------------------


in_browser = browser.needed


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser.opened() as held:
        yield held


@pytest.fixture
def view(chromium: Browser) -> Iterator[Browser]:
    """A browser of the usual size; what it shows must ask for nothing and complain of nothing."""
    chromium.size(1400)
    chromium.prefer("light")
    yield chromium
    assert chromium.complaints == []
    assert [url for url in chromium.requests if not url.startswith("file:") or not url.endswith(".html")] == []
    assert len(chromium.requests) <= 1


def show(view: Browser, *run_dirs: Path, before: str = "", **options: Any) -> Page:
    shown = Page(*run_dirs, **options)
    view.open(shown.path, before)
    settle(view)
    return shown


def settle(view: Browser) -> None:
    """Wait until every run's records of the transition are shown."""
    view.wait(
        "[...document.querySelectorAll('.card')].every((c) => !c.dataset.seq || c.dataset.shown === c.dataset.seq)"
    )


def seq_of(view: Browser) -> int:
    return int(view.run("document.getElementById('seq').value"))


def lit(view: Browser) -> list[str]:
    return list(view.run("[...document.querySelectorAll('.state.lit')].map((e) => e.dataset.state)"))


def jump(view: Browser, seq: int) -> None:
    """Write a number into the field, as a person does."""
    code = "(() => { const f = document.getElementById('seq'); f.value = SEQ; f.dispatchEvent(new Event('change')) })()"
    view.run(code.replace("SEQ", str(seq)))
    settle(view)


def fields(view: Browser, card: int = 0) -> dict[str, str]:
    """The names and values that a run's card shows."""
    code = f"[...document.querySelectorAll('.card')[{card}].querySelectorAll('dl > div')]"
    return dict(view.run(f"{code}.map((e) => [e.children[0].innerText, e.children[1].innerText])"))


def sight(view: Browser) -> list[float]:
    """The range of transitions that the curves show."""
    text = view.run("document.querySelector('.curves').dataset.sight")
    return [float(part) for part in text.split(" ")]


@in_browser
def test_the_page_stands_at_the_end_and_shows_what_the_journal_says_there(view: Browser, run_dir: Path) -> None:
    show(view, done(run_dir))
    last = Journal(run_dir).last
    assert last is not None
    assert (seq_of(view), lit(view)) == (last.seq, ["done"])
    assert "EpochEnded" in view.text(".card h3")
    assert fields(view)["global_forward_batches"] == str(last.state.global_forward_batches)


@in_browser
def test_every_transition_that_is_jumped_to_shows_its_state_and_its_data(view: Browser, run_dir: Path) -> None:
    show(view, written(run_dir, 9000))
    for seq in (1, 2, 55, 8191, 8192, 8193, 9000):
        jump(view, seq)
        record = Journal(run_dir).seek(seq)
        assert lit(view) == [record.dest]
        held = fields(view)
        assert held["seq"] == str(seq)
        assert held["samples"].split(" ")[0] == str(record.state.samples)
        if record.event == "Stepped":
            assert float(held["loss"]) == record.data["loss"]
        assert record.chain in view.text(".card .fields")
    jump(view, 10**9)
    assert seq_of(view) == 9000
    jump(view, -5)
    assert seq_of(view) == 1


@in_browser
def test_keys_step_leap_and_go_to_the_ends(view: Browser, run_dir: Path) -> None:
    show(view, written(run_dir, 1000))
    stepping = {"ArrowLeft": 999, "Home": 1, "ArrowRight": 2, "PageDown": 52, "PageUp": 2, "End": 1000}
    for key, seq in [*stepping.items(), ("Home", 1), ("ArrowLeft", 1), ("End", 1000), ("ArrowRight", 1000)]:
        view.press(key)
        assert seq_of(view) == seq, key
    view.run("document.getElementById('slider').focus()")
    view.press("ArrowLeft", "ArrowLeft")
    assert (seq_of(view), view.run("document.getElementById('slider').value")) == (998, "998")
    view.run("document.getElementById('first').click()")
    assert seq_of(view) == 1
    assert "transition 1: Started" in view.run("document.getElementById('aloud').textContent")


@in_browser
def test_typing_a_number_does_not_step(view: Browser, run_dir: Path) -> None:
    show(view, written(run_dir, 200))
    view.run("document.getElementById('seq').select(), document.getElementById('seq').focus()")
    view.press("4", "2", "Enter")
    view.run("document.getElementById('seq').blur()")
    assert (seq_of(view), lit(view)) == (42, [Journal(run_dir).seek(42).dest])


@in_browser
def test_a_state_leads_to_the_next_transition_into_it(view: Browser, run_dir: Path) -> None:
    show(view, written(run_dir, 500))
    jump(view, 1)
    into = [record.seq for record in Journal(run_dir) if record.dest == "validate"]
    view.run("document.querySelector('[data-state=validate]').dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    assert (seq_of(view), lit(view)) == (into[0], ["validate"])
    view.run("document.querySelector('[data-state=validate]').focus()")
    view.press("Enter")
    assert seq_of(view) == into[1]
    view.press("Enter", shift=True)
    assert seq_of(view) == into[0]


@in_browser
def test_curves_are_zoomed_by_wheel_drag_and_keys(view: Browser, run_dir: Path) -> None:
    show(view, written(run_dir, 2000))
    whole = sight(view)
    assert whole == [1, 2000]
    x, y, width, _ = view.box("figure canvas")
    left, right = x + 62, x + width - 10
    view.drag((left + (right - left) / 4, y + 50), (left + (right - left) / 2, y + 50))
    begin, end = sight(view)
    assert begin == pytest.approx(500, abs=20)
    assert end == pytest.approx(1000, abs=20)
    view.mouse("mouseWheel", (left + right) / 2, y + 50, deltaX=0, deltaY=-100)
    view.wait("document.querySelector('.curves').dataset.sight.split(' ')[0] > 510")
    begin, end = sight(view)
    assert 550 < begin < end < 950
    view.press("0")
    assert sight(view) == whole
    jump(view, 1000)
    view.press("+", "+")
    begin, end = sight(view)
    assert end - begin == pytest.approx(500, abs=10)
    view.press("-", "-", "[")
    assert sight(view) == whole
    view.mouse("mousePressed", left + (right - left) / 4, y + 50, button="left", clickCount=1)
    view.mouse("mouseReleased", left + (right - left) / 4, y + 50, button="left", clickCount=1)
    assert seq_of(view) == pytest.approx(500, abs=10)


@in_browser
def test_the_curve_is_drawn_where_the_values_are(view: Browser, run_dir: Path) -> None:
    """A curve of two values, first the lower one: it is drawn at the lower left and at the upper right only."""
    show(view, played(run_dir, lambda state: Played(reward=float(state.games >= 6))))
    view.wait("document.querySelector('figure canvas').width > 300")
    ink = view.run("""(() => {
      const canvas = document.querySelector('figure canvas'), { width: w, height: h } = canvas, m = 62 + (w - 72) / 2;
      const { data } = canvas.getContext('2d').getImageData(0, 0, w, h);
      const inked = (i) => [10, 106, 161].every((c, k) => Math.abs(data[4 * i + k] - c) < 12);
      const at = (x0, x1, y0, y1) => {
        let n = 0;
        for (let y = Math.round(y0); y < y1; y++) for (let x = Math.round(x0); x < x1; x++) n += inked(y * w + x);
        return n;
      };
      const left = [62, m - 40], right = [m + 40, w - 10], upper = [0, h / 2], lower = [h / 2, h - 20];
      return [at(...left, ...upper), at(...left, ...lower), at(...right, ...upper), at(...right, ...lower)];
    })()""")
    upper_left, lower_left, upper_right, lower_right = ink
    assert (upper_left, lower_right) == (0, 0)
    assert lower_left > 50
    assert upper_right > 50


@in_browser
def test_light_and_dark_follow_the_system_and_the_switch(view: Browser, run_dir: Path) -> None:
    show(view, done(run_dir))
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = view.run(ground)
    view.prefer("dark")
    dark = view.run(ground)
    assert light != dark
    view.run("document.getElementById('theme').click()")
    assert view.run(ground) == light
    view.run("document.getElementById('theme').click()")
    assert view.run(ground) == dark


@in_browser
def test_two_runs_stand_side_by_side_with_the_point_where_they_part(view: Browser, tmp_path: Path) -> None:
    """Where they part is a learning rate, from one step on."""
    a, b = tmp_path / "a", tmp_path / "b"
    for path, lr in [(a, 0.1), (b, 0.2)]:
        state, about = TrainerState(state="init"), recording.create(path, {"lr": lr, "same": 1}, {})
        with JournalWriter.create(path, run_id=about["run"]) as writer:
            for source, event, dest in [
                ("init", Started(), "epoch_begin"),
                ("epoch_begin", EpochBegan(), "fetch"),
                *[("fetch", Fetched(), "step"), ("step", Stepped(loss=0.5, lr=[0.1]), "fetch")] * 3,
                ("fetch", Fetched(), "step"),
                ("step", Stepped(loss=0.5, lr=[lr]), "fetch"),
            ]:
                state = event.fold(state, dest)
                writer.append(source, event, state)
    show(view, a, b)
    assert seq_of(view) == 10
    said = view.text(".banner")
    assert "A and B part at transition 10: data.lr is [0.1] in A and [0.2] in B." in said
    cause = diff(a, b)
    assert cause is not None
    assert cause.cause in said
    names = "[...c.querySelectorAll('.differs dt')].map((e) => e.innerText)"
    marked = f"[...document.querySelectorAll('.card')].map((c) => {names})"
    assert view.run(marked) == [["lr"], ["lr"]]
    jump(view, 9)
    assert view.run(marked) == [[], []]
    view.press("n")
    settle(view)
    assert seq_of(view) == 10
    assert [fields(view, i)["lr"] for i in range(2)] == ["[0.1]", "[0.2]"]
    differing = view.run("[...document.querySelectorAll('td b.differs')].map((e) => e.innerText)")
    assert differing == ["lr"]


@in_browser
def test_fingerprints_are_shown_and_parts_with_other_bits_are_marked(view: Browser, tmp_path: Path) -> None:
    show(view, with_prints(tmp_path / "a", "a" * 16), with_prints(tmp_path / "b", "b" * 16))
    jump(view, 6)
    assert fields(view, 1)["gradients"] == "b" * 16
    assert fields(view, 0)["batch"] == f"{6:016x}"
    assert view.run("[...document.querySelectorAll('.differs dt')].map((e) => e.innerText)") == ["gradients"] * 2
    jump(view, 5)
    assert "gradients" not in fields(view)


@in_browser
def test_a_failed_run_shows_its_error_and_the_state_it_struck(view: Browser, run_dir: Path) -> None:
    show(view, failed(run_dir))
    assert lit(view) == ["exception"]
    assert fields(view)["error"] == "the loss exploded"
    assert view.run("document.querySelectorAll('.arrow.lit').length") == 1
    assert "failed: ValueError" in view.text("header")
    assert "ValueError: the loss exploded" in view.text("section[aria-label=Errors]")
    view.press("Home", "n")
    view.wait("document.getElementById('seq').value != 1")


@in_browser
def test_a_run_of_a_users_machine_is_drawn_from_what_it_did_where_it_keeps_no_table(
    view: Browser, run_dir: Path
) -> None:
    played(run_dir, lambda state: Played(reward=1.5, word=f"w{state.games}"))
    about = recording.load(run_dir)
    del about["machine"]  # as versions before this one wrote it
    recording.write_json(run_dir / "run.json", about)
    show(view, run_dir)
    assert set(view.run("[...document.querySelectorAll('.state')].map((e) => e.dataset.state)")) == {"play", "done"}
    jump(view, 3)
    assert lit(view) == ["play"]
    assert {"reward": "1.5", "games": "3 was 2"}.items() <= fields(view).items()
    assert "Drawn from the transitions that the run took" in view.text(".card")


@in_browser
def test_a_run_of_a_users_machine_is_drawn_whole(view: Browser, run_dir: Path) -> None:
    show(view, played(run_dir, lambda state: Played(reward=1.5, word=f"w{state.games}")))
    drawn = view.run("[...document.querySelectorAll('.state')].map((e) => e.dataset.state)")
    assert set(drawn) == {"play", "done", "exception"}
    assert "Drawn from the transitions that the run took" not in view.text(".card")


@in_browser
def test_an_empty_run_and_a_killed_one_are_shown(view: Browser, tmp_path: Path) -> None:
    recording.create(tmp_path / "empty", {"seed": 3}, {})
    show(view, tmp_path / "empty")
    assert "no transition yet" in view.text("header")
    assert "seed" in view.text("section[aria-label='Settings and environment']")
    view.press("ArrowLeft", "End", "n", "+", "0")
    show(view, killed(tmp_path / "killed"))
    assert "killed" in view.text("header")
    assert seq_of(view) == len(Journal(tmp_path / "killed"))


@in_browser
def test_a_run_is_compared_with_an_empty_one(view: Browser, tmp_path: Path) -> None:
    recording.create(tmp_path / "empty", {}, {})
    show(view, written(tmp_path / "a", 20), tmp_path / "empty")
    view.press("ArrowLeft")
    assert seq_of(view) == 19
    assert "No transition yet" in view.run("document.querySelectorAll('.card')[1].innerText")


@in_browser
def test_ranks_and_incarnations_are_told(view: Browser, tmp_path: Path) -> None:
    run = Ranks(tmp_path / "ranks", world=2)
    run.rank(0, transitions(9), close=True)
    run.rank(1, transitions(8), close=True)
    show(view, tmp_path / "ranks")
    assert "1\tfetch\t8\t1" in view.text("section[aria-label=Ranks]") or "8" in view.text("section[aria-label=Ranks]")
    show(view, resumed(failed(tmp_path / "resumed"), n_epochs=3))
    assert "i0 at" in view.text("section[aria-label=Incarnations]")
    assert "incarnation 1" in view.text(".card .summary")


@in_browser
def test_nothing_that_comes_from_a_run_is_run_or_breaks_the_page(view: Browser, tmp_path: Path) -> None:
    path = tmp_path / "<img src=x onerror=window.hurt=4>"
    failed(path, text=HOSTILE + "\ud800" + "z" * 5000)
    add_note(path, 3, HOSTILE)
    about = json.loads((path / "run.json").read_text())
    about["settings"]["</script><script>window.hurt=5</script>"] = {"a": math.nan, HOSTILE: [HOSTILE]}
    about["command"] = [HOSTILE]
    (path / "run.json").write_text(json.dumps(about))
    other = played(tmp_path / "other", lambda state: Played(reward=1, told={HOSTILE: 1.0}, word=HOSTILE), state=HOSTILE)
    show(view, path, other)
    jump(view, 3)
    jump(view, 10**6)
    assert "</script><script>window.hurt = 1" in view.text("section[aria-label=Errors]")
    assert "more characters" in view.text("section[aria-label=Errors]")
    view.run("document.querySelector('section[aria-label=Errors] .wide button.link:last-child').click()")
    assert view.run("window.hurt") is None
    assert view.run("document.querySelectorAll('#page img, #page script, #page a').length") == 0
    assert view.run("getComputedStyle(document.querySelector('bdi')).unicodeBidi").startswith("isolate")


@in_browser
def test_a_browser_without_decompression_shows_the_same(view: Browser, run_dir: Path) -> None:
    show(view, written(run_dir, 3000))
    jump(view, 2500)
    expected = fields(view), view.text(".legend")
    show(view, run_dir, before="delete window.DecompressionStream")
    assert view.run("typeof DecompressionStream") == "undefined"
    jump(view, 2500)
    assert (fields(view), view.text(".legend")) == expected


@in_browser
def test_numbers_are_shown_exactly(view: Browser, run_dir: Path) -> None:
    values = iter([0.1, -0.0, math.nan, math.inf, 2**60 + 1, -(2**60) - 1, 10**30 + 1, 1e-300, 5, -5, 0.5, 2**53])
    show(view, played(run_dir, lambda state: Played(reward=next(values), moves=(2**60 + 1, 7), word=":1.0,")))
    for seq, text in enumerate(
        ["0.1", "-0.0", "nan", "inf", str(2**60 + 1), str(-(2**60) - 1), str(10**30 + 1), "1e-300", "5", "-5", "0.5",
         str(2**53)], 1
    ):  # fmt: skip
        jump(view, seq)
        assert fields(view)["reward"] == text
    assert fields(view)["word"] == ":1.0,"
    assert fields(view)["moves"] == f"[{2**60 + 1}, 7]"


@in_browser
@pytest.mark.parametrize("width", [390, 820, 1400])
def test_nothing_sticks_out_of_a_screen_of_any_width(view: Browser, tmp_path: Path, width: int) -> None:
    view.size(width)
    a, b = failed(tmp_path / "a", text="no" * 500), done(tmp_path / "b")
    show(view, a, b)
    assert view.run("document.documentElement.scrollWidth") <= width


@in_browser
def test_every_control_is_reached_by_tab_and_has_a_name(view: Browser, run_dir: Path) -> None:
    show(view, resumed(failed(run_dir), n_epochs=3))
    view.press(*["Tab"] * 6)
    assert view.run("document.activeElement.id") == "slider" or view.run("document.activeElement.id") == "seq"
    assert view.run("getComputedStyle(document.activeElement).outlineStyle") != "none"
    named = "e.getAttribute('aria-label') || e.innerText || e.labels?.length"
    every = "[...document.querySelectorAll('button, input, [tabindex], section, canvas')]"
    unnamed = f"{every}.filter((e) => !({named})).length"
    assert view.run(unnamed) == 0


LONG_TASKS = (
    "window.tasks = []; new PerformanceObserver((l) => window.tasks.push(...l.getEntries().map((e) => e.duration)))"
    ".observe({ type: 'longtask', buffered: true })"
)
STEPPING = """(async () => {
  window.tasks.length = 0;
  const frame = () => new Promise((done) => requestAnimationFrame(done));
  const began = performance.now();
  for (let i = 0; i < 60; i++) {
    document.dispatchEvent(new KeyboardEvent('keydown', { key: i < 40 ? 'ArrowLeft' : 'PageUp' }));
    await frame();
  }
  await new Promise((done) => setTimeout(done, 200));
  return [Math.max(0, ...window.tasks), (performance.now() - began) / 60];
})()"""


@in_browser
def test_stepping_through_a_run_of_many_transitions_never_freezes(view: Browser, run_dir: Path) -> None:
    show(view, written(run_dir, 30_000, batches=1000), before=LONG_TASKS)
    longest, _ = view.run(STEPPING)
    assert longest < 1000  # a busy machine is no fault; what it takes alone is measured in the sweep
    settle(view)
    assert lit(view) == [Journal(run_dir).seek(seq_of(view)).dest]


@pytest.mark.sweep
@in_browser
def test_a_million_transitions_are_all_reached(view: Browser, run_dir: Path) -> None:
    n = 1_000_000
    shown = Page(written(run_dir, n, batches=1000))
    assert shown.told.left_out == 0
    took = view.open(shown.path, LONG_TASKS)
    longest, step = view.run(STEPPING)
    size = shown.told.size / 1e6
    print(
        f"{n:,} transitions: {size:.1f} MB, open in {took:.2f} s, longest task {longest:.0f} ms, step {step:.1f} ms",
        file=sys.stderr,
    )
    assert size < 30
    for seq in (1, 123_456, 999_999, n):
        jump(view, seq)
        record = Journal(run_dir).seek(seq)
        assert lit(view) == [record.dest]
        assert fields(view)["global_forward_batches"].split(" ")[0] == str(record.state.global_forward_batches)


def test_the_page_of_a_run_that_noted_nothing_has_no_curve(run_dir: Path) -> None:
    recording.create(run_dir, {}, {})
    with JournalWriter.create(run_dir, run_id="0") as writer:
        writer.append("init", Started(), Started().fold(TrainerState(state="init"), "done"))
    assert Page(run_dir).curves() == {}
