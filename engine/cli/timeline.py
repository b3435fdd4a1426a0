"""`tachograph show RUN` for a person: the run, section by section, and only those that have something to say."""

from __future__ import annotations

import datetime
import shlex
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import noted
from .abreast import print_ranks
from .related import print_tree
from .screen import GLUE, Screen, clock, duration, ended, printable, results, size, text

if TYPE_CHECKING:
    from .overview import Report
    from .rows import Rows

_COUNTERS = {
    # field of the state -> (its name here, the field that holds its limit)
    "cur_epoch_idx": ("epochs done", "n_epochs"),
    "global_forward_batches": ("batches", "total_batches"),
    "optimizer_steps": ("optimizer steps", ""),
    "samples": ("samples", ""),
    "validations": ("validations", ""),
}


def print_header(run_dir: Path, about: Mapping[str, Any], screen: Screen) -> None:
    """Print what `run.json` says; it can be there before the journal is read."""
    settings = _dict(about.get("settings"))
    screen.line(screen.style(f"Run {printable(str(run_dir))}", "bold"))
    rows = [
        ("id", printable(str(about.get("run", "")))),
        ("created", _created(about.get("created"))),
        ("command", _command(about.get("command"))),
        ("parent", _parent(_dict(about.get("parent")))),
        ("ranks", "" if about.get("world") in (None, 1) else text(about["world"])),
        ("seed", _seed(settings)),
        ("settings", _listed({k: v for k, v in settings.items() if k not in ("seed", "seed_given", "order")})),
        ("environment", _listed(_dict(about.get("environment")))),
    ]
    screen.pairs(rows)


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _listed(held: dict[str, Any]) -> str:
    return "; ".join(f"{printable(str(name))} {text(value)}" for name, value in held.items())


def _created(created: Any) -> str:
    try:
        return datetime.datetime.fromisoformat(created).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    except (TypeError, ValueError):
        return "" if created is None else printable(str(created))


def _command(command: Any) -> str:
    return printable(shlex.join(map(str, command)) if isinstance(command, list) else str(command or ""))


def _parent(parent: dict[str, Any]) -> str:
    return f"run {text(parent.get('run'))}, from transition {text(parent.get('seq'))} on" if parent else ""


def _seed(settings: dict[str, Any]) -> str:
    if "seed" not in settings:
        return ""
    return text(settings["seed"]) + ("" if settings.get("seed_given", True) else " (none was given)")


def print_report(report: Report, screen: Screen, *, everything: bool = False) -> None:
    """Print the sections below the header.

    Args:
        report: what there is to tell.
        screen: where.
        everything: it counts superseded transitions as well, so say whose each row is.
    """
    several = len(report.incarnations) > 1
    print_tree(report.tree, screen, str(report.run.get("run", "")))
    _print_standing(report, screen)
    if report.ranks is not None:
        print_ranks(report.ranks, screen)
    _print_incarnations(report, screen)
    _print_states(report, screen)
    _print_epochs(report, screen, everything and several)
    _print_validations(report, screen, everything and several)
    _print_snapshots(report, screen, several)
    _print_errors(report, screen, several)
    _section("Notes", noted.COLUMNS, [noted.row(note) for note in report.notes], report.notes, screen)
    _print_sides(report, screen, several)
    _print_damage(report, screen)


def _print_standing(report: Report, screen: Screen) -> None:
    stands = report.stands
    if stands is None:
        screen.title("No transition was recorded")
        return
    running = any(life["ended"] == "running" for life in report.incarnations)
    since = f", {duration(max(time.time() - stands['time'], 0))} ago" if running else ""
    screen.title(f"Stands in {stands['state']}", f"after transition {stands['seq']:,}, {clock(stands['time'])}{since}")
    screen.pairs([*_counters(stands), ("stop asked", printable(str(stands.get("stop_asked", ""))))])


def _counters(stands: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the counters, each with its limit; those of another class of state by their own names."""
    known = {name: shown for name, shown in _COUNTERS.items() if name in stands}
    own = {n: (n, "") for n, v in stands.items() if type(v) in (int, float) and n not in ("seq", "time")}
    rows = []
    for field, (name, limit) in (known or own).items():
        value, most = stands[field], stands.get(limit)
        shown = f"{value:,}" if isinstance(value, int) else text(value)
        rows.append((name, f"{shown} of {most:,}" if isinstance(most, int) else shown))
    return rows


def _print_incarnations(report: Report, screen: Screen) -> None:
    rows = []
    for life in report.incarnations:
        first, last, until = life["first_seq"], life["last_seq"], life["live_until"]
        empty = last < first
        live = "" if until is None or until >= last else "none" if until < first else f"to {until:,}"
        rows.append(
            (
                f"i{life['incarnation']}",
                clock(life["began"]),
                "" if empty else duration(life["seconds"]),
                _origin(life["parent"], life["incarnation"]),
                "none" if empty else f"{first:,}-{last:,}",
                live,
                _ending(life, report.torn is not None),
            )
        )
    if rows:
        screen.title("Incarnations")
        screen.table(["<", "<began", "lived", "<from", "<seq", "<live", "~ended"], rows)


def _origin(parent: Mapping[str, Any] | None, incarnation: int) -> str:
    if parent is None or parent["seq"] == 0:
        return "start"
    if parent["incarnation"] < 0 < incarnation:  # a rank that the run hadn't got before
        return f"joined at {parent['seq']:,}"
    whose = f"i{parent['incarnation']}" if parent["incarnation"] >= 0 else "parent run"
    return f"{whose} at {parent['seq']:,}"


def _ending(life: Mapping[str, Any], torn: bool) -> str:
    unclosed, newest = life["ended"] in ("killed", "unknown"), life["live_until"] is None
    return ended(life) + (", its last record torn" if torn and newest and unclosed else "")


def _print_states(report: Report, screen: Screen) -> None:
    rows = []
    for s in report.states:
        share = "" if s["share"] is None else f"{100 * s['share']:.1f} %"
        rows.append((s["state"], f"{s['visits']:,}", duration(s["seconds"]), duration(s["mean"]), share))
    if rows:
        screen.title("States", f"{duration(sum(s['seconds'] for s in report.states))} in all")
        screen.table(["<", "visits", "total", "mean", "share"], rows)


def _print_epochs(report: Report, screen: Screen, whose: bool) -> None:
    rows = [
        (
            str(e["epoch"]),
            f"i{e['incarnation']}" if whose else "",
            f"{e['batches']:,}",
            _number(e["loss_first"]),
            _number(e["loss_last"]),
            duration(e["seconds"]),
            "" if e["ended"] else "open",
            _not_finite(e),
            results(e["results"], GLUE),
        )
        for e in report.epochs
    ]
    columns = ["epoch", "<", "batches", "first loss", "last loss", "time", "<", "<not finite", "~results"]
    _section("Epochs", columns, rows, report.epochs, screen)


def _number(value: float | None) -> str:
    return "" if value is None else text(value)


def _not_finite(epoch: Mapping[str, Any]) -> str:
    count, first = epoch["not_finite"], epoch["first_not_finite"]
    if count < 2:
        return f"at {first:,}" if count else ""
    return f"{count:,} from {first:,} on"


def _print_validations(report: Report, screen: Screen, whose: bool) -> None:
    rows = [
        (
            f"{v['seq']:,}",
            f"i{v['incarnation']}" if whose else "",
            "" if v["epoch"] is None else str(v["epoch"]),
            "" if v["batch"] is None else f"{v['batch']:,}",
            duration(v["seconds"]),
            "sanity check" if v["sanity"] else "",
            results(v["results"], GLUE),
        )
        for v in report.validations
    ]
    columns = ["seq", "<", "epoch", "after batch", "time", "<", "~results"]
    _section("Validations", columns, rows, report.validations, screen)


def _print_snapshots(report: Report, screen: Screen, several: bool) -> None:
    rows, faulty, checked = [], 0, "size"
    for held in report.snapshots:
        faulty += bool(held["fault"])
        checked = held["checked"] if "seq" in held else checked
        rows.append(_snapshot(held, several))
    remarks = [f"{faulty:,} can't be used" if faulty else f"intact by their {checked}s"]
    if report.saves > report.snapshots.count:
        remarks.append(f"{report.saves:,} were saved")
    columns = ["<", "seq", "<", "<state", "size", "<saved", "~"]
    _section("Snapshots", columns, rows, report.snapshots, screen, ", ".join(remarks))


def _snapshot(held: Mapping[str, Any], several: bool) -> tuple[str, ...]:
    if "seq" not in held:
        return held["snapshot"], "", "", "", "", "", printable(held["fault"])
    inexact = "" if held["exact"] else "inexact"
    saved = "" if held["saved"] is None else clock(held["saved"])
    whose = f"i{held['incarnation']}" if several else ""
    numbers = (f"{held['seq']:,}", whose, held["state"] or "", size(held["bytes"]))
    return held["snapshot"], *numbers, saved, printable(held["fault"]) or inexact


def _print_errors(report: Report, screen: Screen, several: bool) -> None:
    rows = []
    for e in report.errors:
        samples = f", with the samples {printable(e['ids'])}" if e["ids"] else ""
        what = f"{printable(e['kind'])}: {printable(e['error'])}{samples}"
        rows.append((f"{e['seq']:,}", f"i{e['incarnation']}" if several else "", clock(e["time"]), e["state"], what))
    _section("Errors", ["seq", "<", "<when", "<state", "~error"], rows, report.errors, screen)


def _print_sides(report: Report, screen: Screen, several: bool) -> None:
    from .records import fact  # it imports the journal, which the header doesn't wait for

    rows = []
    for item in report.sides:
        whose = f"i{item['incarnation']}" if several else ""
        told = fact(item["side"], item["data"])
        rows.append((f"{item['seq']:,}", whose, clock(item["meta"]["time"]), item["side"], told))
    _section("Side records", ["after", "<", "<when", "<", "~"], rows, report.sides, screen)


def _print_damage(report: Report, screen: Screen) -> None:
    rows = []
    for d in report.damage:
        rows.append((d["file"], f"{d['offset']:,}", f"{d['bytes']:,}" if d["bytes"] else "", d["reason"]))
    if rows:
        screen.title("Damage", "passed over")
        screen.table(["<file", "from byte", "bytes", "~what"], rows)


def _section(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], kept: Rows[Any], screen: Screen, remark: str = ""
) -> None:
    if not rows:
        return
    lines: list[Sequence[str] | str] = list(rows)
    if kept.omitted:
        lines.insert(len(kept.first), "...")
        remark = ", ".join(filter(None, (remark, f"{kept.omitted:,} of {kept.count:,} left out: --rows 0 shows all")))
    screen.title(title, remark)
    screen.table(columns, lines)
