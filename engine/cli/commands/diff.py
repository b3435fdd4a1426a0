"""`tachograph diff`: where two runs part, why, and what to type next."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tachograph.engine import recording
from tachograph.states import CallerError

from ..damaged import naming_the_way
from ..options import rank_or_all
from ..screen import Screen, exact, printable

if TYPE_CHECKING:
    from tachograph.engine.comparison import Comparison

_MANY = 4
"""Names of tensors, and values of one setting, that are printed."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument("a", metavar="A", type=Path, help="a run directory")
    parser.add_argument("b", metavar="B", type=Path, help="another")
    parser.add_argument(
        "--rank", metavar="N", type=rank_or_all, default="all", help="compare the journals of this rank only (all)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Compare two runs and print what was found; 0: they don't part, 1: they do."""
    a, b = str(arguments.a), str(arguments.b)
    for path in (arguments.a, arguments.b):
        recording.load(path)
    screen = Screen()
    if not arguments.json:
        screen.line(f"Comparing {printable(a)} and {printable(b)}")
        sys.stdout.flush()  # what comes next may take a while: the journals of long runs are searched
    from tachograph.engine.comparison import compare

    with naming_the_way():
        found = compare(a, b, rank=arguments.rank)
    if found.outcome == "apart":
        raise CallerError(_apart(found, a, b))
    if arguments.json:
        screen.json(_as_data(found, a, b), indent=2)
    else:
        _print(found, a, b, screen)
    return 1 if found.outcome == "parted" else 0


def _apart(found: Comparison, a: str, b: str) -> str:
    for name, end in zip((a, b), found.ends, strict=True):
        if not end:
            return f"{name} holds no transition yet, so there is nothing to compare"
    first, last = found.first, min(found.ends)
    return f"{a} and {b} have no transition in common: the one begins at {first:,}, the other ends at {last:,}"


# -- for a person ------------------------------------------------------------------------------------------


def _print(found: Comparison, a: str, b: str, screen: Screen) -> None:
    if found.outcome == "parted":
        _print_parting(found, a, b, screen)
        return
    screen.line(screen.style(_no_parting(found, a, b), "bold"))
    compared = f"transitions {found.first:,} to {found.last:,}"
    rows = [("compared", compared), ("agree", ", ".join(found.agree))]
    screen.pairs([*rows, *_ends(found, (a, b)), *_differing(found)])


def _no_parting(found: Comparison, a: str, b: str) -> str:
    a, b = printable(a), printable(b)
    if found.outcome == "equal":
        return f"{a} and {b} are equal"
    (short, end), (long, more) = sorted(zip((a, b), found.ends, strict=True), key=lambda side: side[1])
    if end == more:
        return f"{a} and {b} are equal, but for how they ended"
    return f"{short} is the beginning of {long}, which goes on to transition {more:,}"


def _ends(found: Comparison, names: tuple[str, str]) -> list[tuple[str, str]]:
    """Return a row for each run that didn't end by its limits."""
    if found.known is None:
        return []
    ended = zip(names, found.known.events, found.known.reasons, strict=True)
    words = {"Failed": "failed", "Stopped": "was stopped"}
    return [("ended", printable(f"{name} {words[event]}: {why}")) for name, event, why in ended if event in words]


def _print_parting(found: Comparison, a: str, b: str, screen: Screen) -> None:
    divergence = found.divergence
    assert divergence is not None
    whose = f" of rank {divergence.rank}" if divergence.rank else ""
    where = screen.style(f"They part at transition {divergence.seq:,}{whose}", "bold")
    screen.line(f"{where}  {printable(divergence.field)}, in {divergence.state}")
    screen.line()
    _print_side_by_side(found, a, b, screen)
    screen.line()
    screen.pairs(
        [
            ("cause", printable(divergence.cause) or "nothing that was recorded tells"),
            ("agree", _agreeing(found)),
            ("snapshots", _snapshots(found)),
            *_differing(found),
            *(("not known", printable(sentence)) for sentence in found.unknown),
            ("next", printable(divergence.hint)),
        ]
    )


def _print_side_by_side(found: Comparison, a: str, b: str, screen: Screen) -> None:
    """Print what differs in the two records, and in what was compared beside them."""
    rows = [(name, exact(one), exact(other)) for name, (one, other) in _fields(found).items()]
    screen.table(
        ["", f"<{printable(a)}", f"<{printable(b)}"], [(printable(name), one, other) for name, one, other in rows]
    )


def _fields(found: Comparison) -> dict[str, tuple[Any, Any]]:
    """Return what differs at the transition, field by field, causes first, which is what the divergence names."""
    from tachograph.engine.comparison.causes import ORDER, kind_of

    from ..records import as_data

    divergence = found.divergence
    assert divergence is not None
    assert found.records is not None
    told: dict[str, tuple[Any, Any]] = {divergence.field: (divergence.a, divergence.b)}
    for part, pair in found.fingerprints.items():
        told.setdefault(f"fingerprint.{part}", pair)
    one, other = (_leaves(as_data(record)) for record in found.records)
    for name in {**one, **other}:
        if name.split(".")[0] in ("from", "event", "to", "data", "state") and one.get(name) != other.get(name):
            told.setdefault(name, (one.get(name), other.get(name)))
    places = {kind: place for place, kind in enumerate(ORDER)}
    ordered = sorted(told, key=lambda name: (name != divergence.field, places.get(kind_of(name), len(ORDER))))
    return {name: told[name] for name in ordered}


def _leaves(value: Mapping[str, Any], path: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, part in value.items():
        found |= _leaves(part, f"{path}{name}.") if isinstance(part, dict) else {f"{path}{name}": part}
    return found


def _agreeing(found: Comparison) -> str:
    assert found.divergence is not None
    until = found.divergence.seq - 1
    if not found.agree:
        return ""
    *others, last = found.agree
    return f"{', '.join(others)} and {last}, up to transition {until:,}" if others else f"{last}, up to {until:,}"


def _differing(found: Comparison) -> list[tuple[str, str]]:
    """Return rows of the settings, files and libraries that differ, whatever they have to do with it."""
    known = found.known
    if known is None:
        return []
    rows = []
    for name, pairs in (("settings", known.settings), ("environment", known.environment)):
        told = [f"{key} {exact(a)} and {exact(b)}" for key, (a, b) in pairs.items()]
        rows.append((name, "; ".join([*told[:_MANY], *([f"{len(told) - _MANY} more"] if told[_MANY:] else [])])))
    return [*rows, ("code", ", ".join(map(printable, known.code[:_MANY])))]


def _snapshots(found: Comparison) -> str:
    assert found.divergence is not None
    agree, differ, names = found.snapshots
    told = [f"equal at transition {agree:,}"] if agree else []
    if names and (agree or differ <= found.divergence.seq):
        more = f" and {len(names) - _MANY} more" if len(names) > _MANY else ""
        told.append(f"at {differ:,} differ {printable(', '.join(names[:_MANY]))}{more}")
    return "; ".join(told)


# -- for a program -----------------------------------------------------------------------------------------


def _as_data(found: Comparison, a: str, b: str) -> dict[str, Any]:
    from ..records import as_data

    told: dict[str, Any] = {
        "a": a,
        "b": b,
        "outcome": found.outcome,
        "first": found.first,
        "last": found.last,
        "ends": list(found.ends),
        "agree": list(found.agree),
        "divergence": None,
    }
    if found.known is not None:
        told |= {name: getattr(found.known, name) for name in ("settings", "code", "environment")}
    if found.divergence is None or found.records is None or found.known is None:
        return told
    import attrs

    agree, differ, names = found.snapshots
    return {
        **told,
        "differ": list(found.known.differ),
        "fingerprints": dict(found.fingerprints),
        "divergence": attrs.asdict(found.divergence, recurse=False),
        "records": [as_data(record) for record in found.records],
        "snapshots": {"agree": agree, "differ": differ, "names": list(names)},
        "unknown": list(found.unknown),
    }
