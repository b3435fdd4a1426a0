"""One record of a journal, in words: as a line, as a page, as plain data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tachograph.engine.journal import Record, SideRecord

from .screen import Screen, clock, exact, printable, results, text

if TYPE_CHECKING:
    from tachograph.engine.journal import Note
    from tachograph.engine.samples import Samples

_FINGERPRINTS = ("ids", "rng", "closed", "samples")
"""Fields of an ordinary step that a line leaves out: `--at` shows them."""


def as_data(item: Record | SideRecord) -> dict[str, Any]:
    """Return a record as plain data, with the journal's own keys."""
    where = {"incarnation": item.incarnation, "rank": item.rank}
    if isinstance(item, SideRecord):
        return {"side": item.kind, "seq": item.seq, "data": item.data, "meta": item.meta, **where}
    named = {"seq": item.seq, "from": item.source, "event": item.event, "to": item.dest}
    return {**named, "data": item.data, "state": state_of(item), "chain": item.chain, "meta": item.meta, **where}


def state_of(record: Record) -> dict[str, Any]:
    """Return the state after a record as plain data."""
    state = record.state
    return dict(state) if isinstance(state, dict) else state.to_dict()  # type: ignore[no-any-return]


def losses_of(record: Record) -> list[tuple[int, float]]:
    """Return the losses that a record brings, each with the seq of its step: its own, and those that arrived late."""
    data = record.data
    late = data.get("late") or []
    pairs = [late] if late and not isinstance(late[0], list) else late
    found = [(seq, loss) for seq, loss in pairs if loss is not None]
    own = data.get("loss")
    return found if own is None else [*found, (record.seq, own)]


def as_line(item: Record | SideRecord, screen: Screen, *, whose: bool = False) -> str:
    """Return a record as one line: number, time, event, transition, what it brought.

    Args:
        item: the record.
        screen: where.
        whose: say whose it is, after the number.
    """
    rank = f"  rank {item.rank:<3}" if whose else ""
    when = screen.style(f"{item.seq:>9,}{rank}  {clock(item.meta['time'], date=False)}", "dim")
    if isinstance(item, SideRecord):
        return f"{when}  {screen.style(f'{item.kind:<10}  {fact(item.kind, item.data)}'.rstrip(), 'dim')}"
    what = f"{item.event:<10}  {f'{item.source} -> {item.dest}':<21}"
    told = f"{what}  {_brought(item)}".rstrip()
    return f"{when}  {screen.style(told, 'red') if item.event == 'Failed' else told}"


def _brought(record: Record) -> str:
    data = record.data
    if record.event == "Failed":
        ids = f"  samples {printable(str(data['ids']))}" if data.get("ids") else ""
        error = f": {printable(data['error'])}" if data.get("error") else ""
        return f"{data.get('kind')}{error}{ids}"
    hidden = _FINGERPRINTS if record.event in ("Fetched", "Stepped") else ()
    shown = [_field(name, value) for name, value in data.items() if name not in hidden and _says_something(value)]
    if record.event == "Stepped":
        shown.insert(0, f"batch {state_of(record).get('global_forward_batches')}")
        shown += ["window open"] if data.get("closed") is False else []
    return "  ".join(shown)


def _says_something(value: Any) -> bool:
    return value not in ("", None, [], {}) and value is not False


def _field(name: str, value: Any) -> str:
    if value is True:
        return name
    return results(value) if name == "results" else f"{name} {text(value)}"


def fact(kind: str, data: Mapping[str, Any]) -> str:
    """Say a side record's data."""
    try:
        return _FACTS[kind](data)
    except (KeyError, TypeError, IndexError):  # a kind of the user's own, or of another version
        return "  ".join(f"{name} {text(value)}" for name, value in data.items())


def _opened(data: Mapping[str, Any]) -> str:
    parent = data["parent"]
    if parent is None or parent["seq"] == 0:
        return f"incarnation {data['incarnation']}, from the start"
    if parent["incarnation"] < 0 < data["incarnation"]:
        return f"incarnation {data['incarnation']}, which this rank joined at {parent['seq']:,}"
    whose = f"incarnation {parent['incarnation']}" if parent["incarnation"] >= 0 else "another run"
    return f"incarnation {data['incarnation']}, from {whose} at {parent['seq']:,}"


def _resumed(data: Mapping[str, Any]) -> str:
    where = f"from snapshot {data['snapshot']}" if data["snapshot"] else "from the beginning: there was no snapshot"
    inexact = "" if data.get("exact", True) else ", which is inexact"
    changed = "".join(f"; {name} {text(a)} -> {text(b)}" for name, (a, b) in data.get("changed", {}).items())
    passed = "".join(f"; {printable(sentence)}" for sentence in data.get("passed_over", []))
    return f"{where}{inexact}{changed}{passed}"


def _diverged(data: Mapping[str, Any]) -> str:
    before = f"after {data['matched']:,} that match, " if data.get("matched") else ""
    differs = f"{data['field']} was {printable(data['recorded'])}, now {printable(data['found'])}"
    return f"{before}transition {data['at']:,} differs: {differs}"


def _forked(data: Mapping[str, Any]) -> str:
    changed = "".join(f"; {name} {text(a)} -> {text(b)}" for name, (a, b) in (data.get("changed") or {}).items())
    by_hand = data.get("by_hand") or ""
    told = [by_hand] if isinstance(by_hand, str) else by_hand
    return f"from {printable(str(data['run_dir']))} at {data['seq']:,}{changed}" + "".join(
        f"; {printable(str(what))}" for what in told if what
    )


_FACTS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "opened": _opened,
    "resumed": _resumed,
    "matched": lambda data: f"{data['matched']:,} of {data['of']:,} re-executed transitions match",
    "diverged": _diverged,
    "pruned": lambda data: f"snapshot{'s' if len(data['snapshots']) > 1 else ''} {', '.join(data['snapshots'])}",
    "not_pruned": lambda data: printable(data["error"]),
    "not_saved": lambda data: printable(data["error"]),
    "rng_not_restored": lambda data: f"snapshot {data['snapshot']}: {printable(data['reason'])}",
    "saved": lambda data: f"snapshot {data['snapshot']}{'' if data.get('exact', True) else ', inexact'}",
    "forked": _forked,
    "noted": lambda data: printable(data["text"]),
    "sealed": lambda data: f"{data['records']:,} transitions",
    "closed": lambda data: f"{data['records']:,} transitions",
}


def print_page(record: Record, before: Record | None, screen: Screen) -> None:
    """Print a record whole, and what its state was before it where that differs."""
    title = screen.style(f"Transition {record.seq:,}", "bold")
    screen.line(f"{title}  {record.source} -> {record.dest}  {record.event}")
    whose = f"{record.incarnation}" + (f", rank {record.rank}" if record.rank else "")
    meta = [(name, clock(value) if name == "time" else exact(value)) for name, value in record.meta.items()]
    screen.pairs([*meta, ("incarnation", whose), ("chain", record.chain)])
    _print_fields("Data", record.data, {}, screen)
    _print_fields("State", state_of(record), state_of(before) if before is not None else {}, screen)


def _print_fields(title: str, held: Mapping[str, Any], before: Mapping[str, Any], screen: Screen) -> None:
    screen.title(title, "" if held else "none")
    rows = []
    for name, value in held.items():
        changed = name in before and name != "seq" and exact(before[name]) != exact(value)
        rows.append((name, exact(value) + (f"  (was {exact(before[name])})" if changed else "")))
    screen.pairs(rows)


def print_notes(notes: Sequence[Note], screen: Screen) -> None:
    """Print what people noted at a transition."""
    if notes:
        screen.title("Notes")
        screen.pairs([(f"{note.id}  {clock(note.time)}", printable(note.text)) for note in notes])


def print_samples(batch: Samples, screen: Screen) -> None:
    """Print the samples of a batch, and how it is known that they are these."""
    known = "run.json's order" if batch.told_by == "run.json" else "the trainer's loader"
    proof = f"the hash of these is {batch.proof}" if len(batch.proof) == 8 else "these are the ids"
    screen.title("Samples", f"{len(batch.ids):,} in batch {batch.batch:,} of epoch {batch.epoch:,}")
    screen.pairs(
        [
            ("ids", ", ".join(exact(held) for held in batch.ids)),
            ("found by", f"{known}; and {proof}, as recorded in transition {batch.seq:,}"),
        ]
    )
