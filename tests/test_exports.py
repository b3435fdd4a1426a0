"""A run in other formats: read back, and compared value by value with the journal."""

from __future__ import annotations

import csv
import gzip
import json
import math
import os
import signal
import sqlite3
import subprocess
import sys
import tracemalloc
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tachograph.drivers import StubDriver
from tachograph.engine import Journal
from tachograph.engine.exports import FORMATS, export
from tachograph.engine.exports.flat import row_of
from tachograph.engine.journal import JournalError, Record, SideRecord
from tachograph.engine.journal.codec import plain
from tachograph.states import CallerError, TachographError
from tests.test_journal_ranks import ranks
from tests.test_journal_support import in_child
from tests.toys import Sum, stub

NAN, INF = math.nan, math.inf
SUFFIX = {"csv": "run.csv", "parquet": "run.parquet", "sqlite": "run.db", "tensorboard": "board", "trace": "run.json"}


def losses(batch: Any, n: int) -> float:
    return {1: NAN, 2: INF, 3: -INF, 4: 0.1 + 0.2}.get(n, 1.0 / (n + 1))


def trained(run_dir: Path, **settings: Any) -> Any:
    """A run with validations, losses that no JSON number is, and a result that is none."""
    settings = {"validate_dataloaders": [1, 2], "metrics": {"sum": Sum()}, "validate_every": 2, **settings}
    return stub([1, 2, 3, 4, 5], StubDriver(loss=losses), run_dir=run_dir, **settings)


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("exported") / "run"
    trained(folder).run()
    return folder


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed in its first epoch and resumed: two incarnations."""
    folder = tmp_path_factory.mktemp("killed") / "run"

    def die() -> None:
        trainer = trained(folder, snapshot_every=2)
        trainer.on("Stepped", lambda t: t.trainer_state.seq >= 12 and os.kill(os.getpid(), signal.SIGKILL))
        trainer.run()

    assert os.waitpid(in_child(die), 0)[1] == signal.SIGKILL
    trained(folder, snapshot_every=2).run(resume_from="auto")
    assert len(Journal(folder).incarnations) == 2
    return folder


@pytest.fixture(scope="module")
def ranked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = ranks(tmp_path_factory.mktemp("ranked"), 20, 20)
    (folder / "run.json").write_text(json.dumps({"format": 1, "run": "several", "settings": {}, "environment": {}}))
    return folder


def same(a: Any, b: Any) -> bool:
    return type(a) is type(b) and (a == b or (a != a and b != b))


# -- tables ------------------------------------------------------------------------------------------------


def typed(text: str, value: Any) -> Any:
    """Read a cell back as a value of the same kind as the one it was written of."""
    if value is None:
        return None if text == "" else text
    if isinstance(value, bool):
        return {"true": True, "false": False}[text]
    return type(value)(text)


@pytest.mark.parametrize("which", ["run_dir", "killed", "ranked"])
def test_a_csv_file_holds_every_value_of_every_transition(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = request.getfixturevalue(which)
    done = export(source, "csv", tmp_path / "run.csv")
    records = list(Journal(source, rank="all"))
    with (tmp_path / "run.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert done.transitions == len(rows) == len(records)
    for row, record in zip(rows, records, strict=True):
        held = row_of(record)
        assert all(same(typed(row[name], value), value) for name, value in held.items()), record
        assert all(row[name] == "" for name in row.keys() - held.keys())
        assert float(row["data.loss"] or 0) is not None
        assert held["from"] == record.source
        assert same(held.get("data.loss"), record.data.get("loss"))
        state = record.state.to_dict()
        assert all(same(held[f"state.{name}"], v) for name, v in state.items() if f"state.{name}" in held)
        assert set(state) - {name.partition(".")[2] for name in held} <= {"state", "seq", "results"}
    assert {"nan", "-inf"} <= {row["data.loss"] for row in rows}


@pytest.mark.parametrize("which", ["run_dir", "killed", "ranked"])
def test_a_parquet_file_holds_every_value_in_typed_columns(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    source = request.getfixturevalue(which)
    export(source, "parquet", tmp_path / "run.parquet")
    table = parquet.read_table(tmp_path / "run.parquet")
    records = list(Journal(source, rank="all"))
    assert len(table) == len(records)
    types = {field.name: str(field.type) for field in table.schema}
    assert (types["seq"], types["event"], types["time"]) == ("int64", "string", "double")
    assert (types["data.loss"], types["data.closed"], types["data.rng"]) == ("double", "bool", "int64")
    for row, record in zip(table.to_pylist(), records, strict=True):
        held = row_of(record)
        for name, value in row.items():
            there = held.get(name)
            same_type = float(there) if types[name] == "double" and there is not None else there
            assert same(value, same_type), (record, name)


def test_a_column_takes_the_type_that_holds_all_its_values(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")

    class Odd(Sum):
        def compute(self) -> Any:
            number = len(Odd.given)
            Odd.given.append(number)
            values = [(1, 2.5, 1 << 63, 1), ("a text", 2, 7, True), (2, 3, 3, False), (4, 4, 4, None)]
            return dict(zip(("mixed", "float", "large", "flag"), values[number % 4], strict=True))

    Odd.given: list[int] = []  # type: ignore[misc]
    trained(tmp_path / "run", metrics={"odd": Odd()}).run(num_eval_sanity_batch=0)
    export(tmp_path / "run", "parquet", tmp_path / "run.parquet")
    table = parquet.read_table(tmp_path / "run.parquet")
    found = {n.split(".")[2].split("#")[0]: n for n in table.column_names if n.startswith("data.results")}
    kinds = {name: str(table.schema.field(column).type) for name, column in found.items()}
    assert kinds == {"mixed": "string", "float": "double", "large": "uint64", "flag": "string"}
    values = {name: [v for v in table.column(column).to_pylist() if v is not None] for name, column in found.items()}
    assert values["mixed"] == ["1", "a text", "2", "4", "1"]
    assert values["large"] == [1 << 63, 7, 3, 4, 1 << 63]
    assert values["flag"] == ["1", "true", "false", "1"]


@pytest.mark.parametrize("which", ["run_dir", "killed", "ranked"])
@pytest.mark.parametrize("every_life", [False, True])
def test_a_database_holds_every_record(
    which: str, every_life: bool, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = request.getfixturevalue(which)
    export(source, "sqlite", tmp_path / "run.db", every_life=every_life)
    db = sqlite3.connect(tmp_path / "run.db")
    db.row_factory = sqlite3.Row
    items = list(Journal(source, rank="all", history="all" if every_life else "live").everything())
    records = [item for item in items if isinstance(item, Record)]
    rows = db.execute("SELECT * FROM transitions ORDER BY rowid").fetchall()
    assert len(rows) == len(records)
    for row, record in zip(rows, records, strict=True):
        named = record.rank, record.incarnation, record.seq, record.source, record.event, record.dest, record.chain
        assert tuple(row[n] for n in ("rank", "incarnation", "seq", "from", "event", "to", "chain")) == named
        assert json.loads(row["data"]) == plain(record.data)
        assert json.loads(row["state"]) == plain(record.state.to_dict())
        assert row["time"] == record.meta["time"]
        loss = record.data.get("loss")
        assert row["loss"] == (None if loss is None or loss != loss else loss)
        assert (row["epoch"], row["batch"]) == (record.state.cur_epoch_idx, record.state.global_forward_batches)
    sides = db.execute("SELECT * FROM sides ORDER BY rowid").fetchall()
    held = [item for item in items if isinstance(item, SideRecord)]
    assert [(s["kind"], s["seq"], json.loads(s["data"])) for s in sides] == [
        (side.kind, side.seq, plain(side.data)) for side in held
    ]
    about = json.loads((source / "run.json").read_text())
    assert {name: json.loads(value) for name, value in db.execute("SELECT * FROM run")} == about
    plan = db.execute("EXPLAIN QUERY PLAN SELECT * FROM transitions WHERE event = 'Stepped' AND seq > 3").fetchall()
    assert "USING INDEX transitions_by_event" in plan[0]["detail"]
    assert db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
    db.close()


def test_a_database_holds_the_notes_that_stand(tmp_path: Path) -> None:
    trained(tmp_path / "run").run()
    for arguments in ((4, "here the loss jumps"), (6, "größer")):
        assert tachograph("note", tmp_path / "run", *arguments).returncode == 0
    export(tmp_path / "run", "sqlite", tmp_path / "run.db")
    with closing(sqlite3.connect(tmp_path / "run.db")) as db:
        rows = db.execute("SELECT seq, text FROM notes").fetchall()
    assert rows == [(4, "here the loss jumps"), (6, "größer")]


def test_a_query_finds_the_step_that_made_nan(run_dir: Path, tmp_path: Path) -> None:
    export(run_dir, "sqlite", tmp_path / "run.db")
    db = sqlite3.connect(tmp_path / "run.db")
    (found,) = db.execute("SELECT seq FROM transitions WHERE json_extract(data, '$.loss') = 'nan'").fetchall()
    db.close()
    assert found == tuple(r.seq for r in Journal(run_dir) if r.data.get("loss") != r.data.get("loss"))


# -- curves ------------------------------------------------------------------------------------------------


def curves_of(run_dir: Path, rank: int = 0) -> dict[str, list[tuple[int, float, float]]]:
    """The curves that a journal holds, by hand: (batches done, time, value)."""
    found: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
    for record in Journal(run_dir, rank=rank):
        where = record.state.global_forward_batches, record.meta["time"]
        if record.event == "Stepped":
            found["loss"].append((*where, record.data["loss"]))
            rates = record.data["lr"]
            for i, rate in enumerate(rates):
                found["lr" if len(rates) == 1 else f"lr/{i}"].append((*where, rate))
        if record.event == "Validated":
            for name, value in record.data["results"].items():
                if isinstance(value, (int, float)):
                    found[f"validate/{name}"].append((*where, float(value)))
    return dict(found)


def scalars_in(folder: Path) -> dict[str, list[Any]]:
    """What TensorBoard itself reads in a folder."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    held = accumulator(str(folder), size_guidance={"scalars": 0})
    held.Reload()
    return {tag: held.Scalars(tag) for tag in held.Tags()["scalars"]}


@pytest.mark.parametrize("which", ["run_dir", "killed"])
def test_event_files_hold_the_curves_at_their_steps_and_times(
    which: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = request.getfixturevalue(which)
    pytest.importorskip("tensorboard")
    export(source, "tensorboard", tmp_path / "board")
    held, wanted = scalars_in(tmp_path / "board"), curves_of(source)
    tags = {name: name if name.startswith("validate/") else f"train/{name}" for name in wanted}
    assert set(held) == set(tags.values())
    for name, points in wanted.items():
        got = held[tags[name]]
        assert [(e.step, e.wall_time) for e in got] == [(step, time) for step, time, _ in points]
        assert [e.value for e in got] == pytest.approx([value for *_, value in points], nan_ok=True)


def test_of_several_ranks_each_has_a_folder_of_event_files(ranked: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    export(ranked, "tensorboard", tmp_path / "board")
    for rank in (0, 1):
        held, wanted = scalars_in(tmp_path / "board" / f"rank-{rank}"), curves_of(ranked, rank)
        assert [e.value for e in held["train/loss"]] == pytest.approx([v for *_, v in wanted["loss"]], nan_ok=True)
        assert {"train/lr_0", "train/lr_1"} <= set(held)
    export(ranked, "tensorboard", tmp_path / "one", rank=1)
    assert scalars_in(tmp_path / "one").keys() == held.keys()


def test_a_loss_that_arrived_late_is_put_where_its_step_was(tmp_path: Path) -> None:
    class Late(StubDriver):
        def __init__(self) -> None:
            super().__init__()
            self.waits: list[Any] = []

        def measure(self, loss: Any, seq: int) -> tuple[Any, Any]:
            self.waits.append([seq, float(loss)])
            return None, self.waits.pop(0) if len(self.waits) > 1 else ()

        def measured_late(self) -> Any:
            late, self.waits = self.waits, []
            return late

    stub([1, 2, 3, 4, 5], Late(), run_dir=tmp_path / "late", snapshot_every=None).run()
    stub([1, 2, 3, 4, 5], run_dir=tmp_path / "straight", snapshot_every=None).run()
    seen = []
    for name in ("late", "straight"):
        events = traced(tmp_path / name, tmp_path / f"{name}.json")["traceEvents"]
        steps = {e["ts"] + e["dur"]: e["args"]["seq"] for e in events if e["ph"] == "X" and e["name"] == "step"}
        points = [(steps[e["ts"]], e["args"]["value"]) for e in events if e["ph"] == "C" and e["name"] == "loss"]
        seen.append(sorted(points))
    assert seen[0] == seen[1]
    assert len(seen[0]) == 10


# -- traces ------------------------------------------------------------------------------------------------

KEYS = {
    "X": {"name", "cat", "ph", "ts", "dur", "pid", "tid", "args"},
    "C": {"name", "ph", "ts", "pid", "args"},
    "i": {"name", "cat", "ph", "s", "ts", "pid", "tid", "args"},
    "M": {"name", "ph", "ts", "pid", "tid", "args"},
}
"""What the Trace Event Format wants of each phase that is used."""


def traced(run_dir: Path, path: Path, **settings: Any) -> dict[str, Any]:
    export(run_dir, "trace", path, **settings)
    data = path.read_bytes()
    held: dict[str, Any] = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data, parse_constant=refuse)
    return held


def refuse(constant: str) -> None:
    raise AssertionError(f"{constant} is no JSON")


def check_format(trace: dict[str, Any]) -> None:
    """Hold a trace against the format: keys and types by phase, slices that nest, counters that are numbers."""
    named = {(e["pid"], e["tid"]) for e in trace["traceEvents"] if e["name"] == "thread_name"}
    tracks = defaultdict(list)
    for event in trace["traceEvents"]:
        assert set(event) == KEYS[event["ph"]], event
        assert type(event["ts"]) is int
        assert event["ts"] >= 0
        assert type(event["pid"]) is int
        assert isinstance(event["name"], str)
        assert event["name"]
        if event["ph"] == "X":
            assert type(event["dur"]) is int
            assert event["dur"] >= 0
            assert (event["pid"], event["tid"]) in named
            tracks[event["pid"], event["tid"]].append(event)
        if event["ph"] == "C":
            assert all(type(value) in (int, float) and math.isfinite(value) for value in event["args"].values())
        if event["ph"] == "i":
            assert event["s"] in ("g", "p", "t")
    for events in tracks.values():
        check_nested(events)


def check_nested(events: list[dict[str, Any]]) -> None:
    """Slices of a track follow one another, or one lies within the other."""
    open_: list[int] = []
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        end = event["ts"] + event["dur"]
        while open_ and open_[-1] <= event["ts"]:
            open_.pop()
        assert not open_ or end <= open_[-1], event
        open_.append(end)


@pytest.mark.parametrize("which", ["run_dir", "killed", "ranked"])
@pytest.mark.parametrize("every_life", [False, True])
@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_a_trace_keeps_the_format_and_tells_of_every_transition(
    which: str, every_life: bool, name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source = request.getfixturevalue(which)
    trace = traced(source, tmp_path / name, every_life=every_life)
    check_format(trace)
    states = [e for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] == "state"]
    records = list(Journal(source, rank="all", history="all" if every_life else "live"))
    began = trace["otherData"]["began"]
    for event, record in zip(states, records, strict=True):
        assert (event["pid"], event["tid"]) == (record.rank + 1, record.incarnation + 1)
        assert event["name"] == record.source
        assert event["args"]["seq"] == record.seq
        assert abs(event["ts"] + event["dur"] - (record.meta["time"] - began) * 1e6) < 2
    epochs = [e["name"] for e in trace["traceEvents"] if e["ph"] == "X" and e["cat"] == "epoch"]
    assert {"epoch 0", "epoch 1"} <= set(epochs)
    processes = {e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"}
    assert processes == {f"rank {rank}" for rank in Journal(source, rank="all").ranks}


def test_a_trace_counts_the_curves_and_marks_what_json_has_no_number_for(run_dir: Path, tmp_path: Path) -> None:
    trace = traced(run_dir, tmp_path / "run.json")
    counted = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "C":
            counted[event["name"]].append(event["args"]["value"])
    wanted = curves_of(run_dir)
    finite = {name: [v for *_, v in points if math.isfinite(v)] for name, points in wanted.items()}
    assert counted == {name: values for name, values in finite.items() if values}
    marks = [e["name"] for e in trace["traceEvents"] if e["ph"] == "i" and e["cat"] == "value"]
    assert marks == ["loss is nan", "loss is inf", "loss is -inf"]
    sides = [e["name"] for e in trace["traceEvents"] if e["ph"] == "i" and e["cat"] == "side"]
    quiet = ("opened", "sealed", "closed")
    assert sides == [s.kind for s in Journal(run_dir).sides() if s.kind not in quiet]


def test_a_trace_goes_on_where_a_clock_was_set_back(tmp_path: Path) -> None:
    trainer = stub(run_dir=tmp_path / "run")
    times: Iterator[float] = iter([100.0, 101.0, 102.0, 50.0, 51.0, 52.0, *(103.0 + n for n in range(200))])
    from tachograph.engine.world import World

    trainer.world = World(clock=lambda: next(times))
    trainer.run()
    check_format(traced(tmp_path / "run", tmp_path / "run.json"))


# -- whole or not at all, and what can't be used -------------------------------------------------------------


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_there_is_replaced_on_demand_only(name: str, run_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / SUFFIX[name]
    export(run_dir, name, path)
    before = sorted(p.name for p in tmp_path.rglob("*"))
    with pytest.raises(CallerError, match="is there already: give another path"):
        export(run_dir, name, path)
    assert export(run_dir, name, path, force=True).transitions == len(Journal(run_dir))
    assert sorted(p.name for p in tmp_path.rglob("*")) == before, "no temporary file is left"


@pytest.mark.parametrize("name", FORMATS)
def test_a_journal_that_is_damaged_leaves_nothing_behind_unless_it_is_salvaged(name: str, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    trained(run_dir).run()
    total = len(Journal(run_dir))
    (journal,) = (run_dir / "journal" / "rank-0").glob("*.jsonl")
    lines = journal.read_bytes().split(b"\n")
    lines[9] = lines[9].replace(b'"seq":', b'"SEQ":')
    journal.write_bytes(b"\n".join(lines))
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(JournalError, match=r"is damaged at byte .* \(--salvage\) what can be read is exported"):
        export(run_dir, name, out / SUFFIX[name])
    assert list(out.iterdir()) == []
    done = export(run_dir, name, out / SUFFIX[name], salvage=True)
    assert len(done.damage) == 1
    assert total - 3 < done.transitions < total


def test_what_can_not_be_exported_is_refused_in_a_sentence(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(CallerError, match=r"there is no format 'tarce'. Did you mean 'trace'"):
        export(run_dir, "tarce", tmp_path / "x")
    with pytest.raises(CallerError, match="there is no folder"):
        export(run_dir, "csv", tmp_path / "no" / "x")
    with pytest.raises((TachographError, FileNotFoundError), match="there is no run at"):
        export(tmp_path / "none", "csv", tmp_path / "x")
    with pytest.raises(JournalError, match="has no journal of rank 7"):
        export(run_dir, "csv", tmp_path / "x", rank=7)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(CallerError, match="holds more than an export has written"):
        export(run_dir, "tensorboard", tmp_path / "mine", force=True)
    with pytest.raises(CallerError, match="is a folder, which isn't replaced by the other kind"):
        export(run_dir, "csv", tmp_path / "mine", force=True)
    assert (tmp_path / "mine" / "thesis.tex").exists()


@pytest.mark.parametrize(("name", "module"), [("parquet", "pyarrow"), ("tensorboard", "tensorboard")])
def test_a_library_that_is_missing_is_named_with_the_way_to_get_it(
    name: str, module: str, run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for held in [m for m in sys.modules if m.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, held)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(CallerError, match=rf"needs {module}.*: pip install 'tachograph\[{name}\]'"):
        export(run_dir, name, tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_an_export_that_is_interrupted_leaves_what_was_there(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.csv"
    path.write_text("the one before")
    from tachograph.engine.exports import csv as writer

    def strike(row: Any) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(writer, "_cell", strike)
    with pytest.raises(KeyboardInterrupt):
        export(run_dir, "csv", path, force=True)
    assert [p.name for p in tmp_path.iterdir()] == ["run.csv"]
    assert path.read_text() == "the one before"


@pytest.mark.parametrize("name", ["csv", "sqlite", "trace"])
def test_memory_does_not_grow_with_the_run_that_is_exported(name: str, tmp_path: Path) -> None:
    peaks = []
    for batches in (600, 3000):
        stub([1] * batches, run_dir=tmp_path / str(batches), snapshot_every=None).run()
        tracemalloc.start()
        export(tmp_path / str(batches), name, tmp_path / f"{batches}.out")
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    size = (tmp_path / "3000.out").stat().st_size
    assert peaks[1] < max(peaks[0] * 1.5, 8_000_000), f"{peaks} bytes, for a file of {size}"


# -- the commands ------------------------------------------------------------------------------------------


def tachograph(*arguments: Any, given: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    script = "import sys; from tachograph.engine.cli import main; main(sys.argv[1:])"
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, input=given, capture_output=True, text=True, timeout=60, cwd=cwd)


def test_the_command_exports(run_dir: Path, tmp_path: Path) -> None:
    done = tachograph("export", run_dir, "--to", "trace", "-o", tmp_path / "run.json.gz")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{len(Journal(run_dir))} transitions as trace in {tmp_path}/run.json.gz\n"
    again = tachograph("export", run_dir, "--to", "trace", "-o", tmp_path / "run.json.gz")
    assert again.returncode == 2
    assert again.stderr.count("\n") == 1
    assert "is there already" in again.stderr
    forced = tachograph("export", run_dir, "--to", "trace", "-o", tmp_path / "run.json.gz", "--force", "--rank", "0")
    assert forced.returncode == 0


def test_the_command_fills_in_the_curves_of_an_old_run(run_dir: Path, tmp_path: Path) -> None:
    """C4: as its logger would have written them, at the times when they were measured."""
    pytest.importorskip("tensorboard")
    done = tachograph("replay", run_dir, "--to", "csv", tmp_path / "csv", "--to", "tensorboard", tmp_path / "board")
    assert done.returncode == 0, done.stderr
    steps = [r for r in Journal(run_dir) if r.event == "Stepped"]
    with (tmp_path / "csv" / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    logged = {int(row["step"]): float(row["train/loss"]) for row in rows if row["train/loss"]}
    wanted = {r.state.optimizer_steps: r.data["loss"] for r in steps}
    assert logged.keys() == wanted.keys()
    assert all(same(logged[step], wanted[step]) for step in wanted)
    scalars = scalars_in(tmp_path / "board")["train/loss"]
    assert [e.value for e in scalars] == pytest.approx([wanted[e.step] for e in scalars], nan_ok=True)
    recorded = [r.meta["time"] for r in Journal(run_dir)]
    assert all(recorded[0] <= e.wall_time <= recorded[-1] for e in scalars)
    assert "transitions were heard, up to" in done.stdout


def test_the_command_drives_a_callback_of_the_user_s(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from tachograph.engine import Callback, Timer\n"
        "class Loud(Callback):\n"
        "    def on_train_batch_end(self, trainer): print('loss', trainer.last_loss)\n"
        "def build(): return Timer()\n"
        "def broken(): raise OSError('no')\n"
    )
    heard = tachograph("replay", run_dir, "--with", "mine:Loud", "--until", "Validated", cwd=tmp_path)
    assert heard.returncode == 0, heard.stderr
    assert heard.stdout.splitlines()[:2] == ["loss 1.0", "loss nan"]
    assert heard.stdout.count("loss") == 2
    after = tachograph("replay", run_dir, "--with", "mine.py:Loud", "--from", 9, "--until", 11, cwd=tmp_path)
    assert after.stdout.splitlines() == ["loss inf", "1 transitions were heard, up to 11"]
    left = tachograph("replay", run_dir, "--with", "mine:build", cwd=tmp_path)
    assert "left out: Timer (it hears on_train_batch_begin" in left.stdout
    unmet = tachograph("replay", run_dir, "--with", "mine:Loud", "--until", "Never", cwd=tmp_path)
    assert unmet.returncode == 1
    assert "'Never' wasn't met" in unmet.stderr
    for text, said in (
        ("mine:broken", "it failed with OSError: no"),
        ("mine:nothing", "holds no function 'nothing'"),
        ("os:getcwd", "it made str, not a Callback"),
    ):
        refused = tachograph("replay", run_dir, "--with", text, cwd=tmp_path)
        assert refused.returncode == 2
        assert said in refused.stderr
        assert refused.stderr.count("\n") == 1


def test_the_command_goes_by_hand(run_dir: Path) -> None:
    done = tachograph(
        "replay", run_dir, "--step", given="n\n\nb\nj 9\ns\nr Validated\nx\nj no\nj 999\nr 99999\nn\nj 0\n"
    )
    assert (done.returncode, done.stderr) == (0, "")
    seqs = [line.split()[0] for line in done.stdout.splitlines() if "->" in line and line.split()[0].isdigit()]
    validated = next(r.seq for r in Journal(run_dir) if r.event == "Validated" and r.seq > 9)
    assert seqs == ["1", "2", "1", "9", str(validated), str(len(Journal(run_dir)))]
    for said in ("Transition 9", "'x' is none of", "j takes the number", "has no transition 999", "end of the journal"):
        assert said in done.stdout
    assert done.stdout.rstrip().endswith("before the first transition\n>")


def test_the_command_is_given_the_machine_of_a_run_with_rows_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import attrs\n"
        "from tachograph.states import Event, Row, Stepped, training_machine\n"
        "from tachograph.engine import Callback\n"
        "@attrs.frozen(kw_only=True)\n"
        "class Distilled(Event):\n"
        "    heat: float = 1.0\n"
        "rows = [Row('step', Stepped, 'distill'), Row('distill', Distilled, 'fetch')]\n"
        "def machine(): return training_machine(rows)\n"
        "class Hot(Callback):\n"
        "    def subscribe(self, listeners): listeners.add(Distilled, self.told, owner=self)\n"
        "    def told(self, run, event): print('heat', event.heat)\n"
    )
    script = (
        "import own; from tests.toys import stub; "
        "stub(run_dir='run', rows=own.rows, perform={'distill': lambda state: own.Distilled(heat=2.5)}).run()"
    )
    root = str(Path(__file__).parent.parent)
    path = os.pathsep.join([str(tmp_path), root, os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, check=True, timeout=60)
    done = tachograph("replay", "run", "--machine", "own:machine", "--with", "own:Hot", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:6] == ["heat 2.5"] * 6
    lost = tachograph("replay", "run", "--with", "mine:Loud", cwd=tmp_path)
    assert lost.returncode == 2
    other = tachograph("replay", "run", "--with", "tachograph.engine:ThroughputMonitor", cwd=tmp_path)
    assert (other.returncode, other.stderr.count("\n")) == (2, 1)
    assert "give replay() the machine of the run (--machine)" in other.stderr
    looked = tachograph("replay", "run", "--step", given="r Distilled\n", cwd=tmp_path)
    assert "distill -> fetch" in looked.stdout, "without listeners there is nothing to know of it"
    assert tachograph("export", "run", "--to", "csv", "-o", "run.csv", cwd=tmp_path).returncode == 0


def test_the_command_says_how_a_damaged_journal_can_be_replayed(tmp_path: Path) -> None:
    trained(tmp_path / "run").run()
    (journal,) = (tmp_path / "run" / "journal" / "rank-0").glob("*.jsonl")
    lines = journal.read_bytes().split(b"\n")
    lines[9] = lines[9].replace(b'"seq":', b'"SEQ":')
    journal.write_bytes(b"\n".join(lines))
    refused = tachograph("replay", tmp_path / "run", "--to", "csv", tmp_path / "csv")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "--salvage` passes over what is damaged" in refused.stderr
    done = tachograph("replay", tmp_path / "run", "--to", "csv", tmp_path / "again", "--salvage")
    assert done.returncode == 0
    assert "passed over at byte" in done.stderr


def test_bad_input_of_the_commands_is_one_sentence(run_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for arguments in (
        ("replay", run_dir),
        ("replay", tmp_path / "none", "--step"),
        ("replay", tmp_path / "empty", "--step"),
        ("replay", run_dir, "--to", "cvs", tmp_path / "x"),
        ("replay", run_dir, "--step", "--from", 9999),
        ("replay", run_dir, "--step", "--rank", 5),
        ("replay", run_dir, "--step", "--until", "("),
        ("export", tmp_path / "empty", "--to", "csv", "-o", tmp_path / "x"),
        ("export", run_dir, "--to", "csv", "-o", tmp_path / "x", "--rank", "9"),
    ):
        done = tachograph(*arguments)
        assert done.returncode == 2, arguments
        assert done.stdout == ""
        assert done.stderr.startswith("tachograph: ")
        assert done.stderr.count("\n") == 1
