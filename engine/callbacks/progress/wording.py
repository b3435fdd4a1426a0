"""Numbers and events as text, and what of a line is left out where it is too narrow. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import msgspec

from tachograph.engine.journal.codec import plain

from .status import Said, Status

to_json = msgspec.json.Encoder(enc_hook=str).encode


@attrs.frozen
class Words:
    """How numbers are written.

    Args:
        digits: of a loss, behind the point.
        as_json: results are written as JSON.
    """

    digits: int = 6
    as_json: bool = False

    def loss(self, value: float) -> str:
        """Write a loss, rounded; one that rounding would make 0 keeps its first digits."""
        rounded = round(value, self.digits) if value - value == 0.0 else value
        return f"{value:.2g}" if rounded == 0.0 != value else f"{rounded:.12g}"

    def results(self, results: dict[str, Any]) -> str:
        """Write results; those whose names begin with an underscore are left out."""
        held = {key: value for key, value in results.items() if not key.startswith("_")}
        return to_json(plain(held)).decode() if self.as_json else "  ".join(f"{k} {number(v)}" for k, v in held.items())

    def where(self, status: Status) -> str:
        """Say where a run is."""
        parts = [epoch_of(status), batch_of(status), counters_of(status)]
        if status.loss is not None:
            parts.append(f"loss {self.loss(status.loss)}")
        return "  ".join(filter(None, parts))

    def sentence(self, said: Said) -> str:
        """Say an event in a line for a person; "" where there is nothing to say."""
        say = _SENTENCES.get(said.event)
        return "" if say is None else say(self, said.status, said.facts)

    def fields(self, status: Status) -> dict[str, str]:
        """Return what a live line shows, from left to right; what isn't known isn't there."""
        evaluated = "" if status.evaluated is None else f"evaluation {status.evaluated}{_of(status.to_evaluate)}"
        return {
            "state": f"{status.state} again" if status.again else status.state,
            "epoch": epoch_of(status),
            "batch": batch_of(status) or counters_of(status),
            "evaluated": evaluated,
            "loss": "" if status.loss is None else f"loss {self.loss(status.loss)}",
            "results": "  ".join(f"{key} {number(value)}" for key, value in status.results.items()),
            "rate": rate_of(status),
            "eta": left_of(status),
            "saved": "" if status.snapshot_age is None else f"saved {duration(status.snapshot_age)} ago",
        }


FIRST = ("epoch", "batch", "evaluated", "loss", "rate", "eta", "state", "saved", "results")
"""The fields of a live line, from the one that is left out last to the one that is left out first."""
GAP = "  "
MARGIN = 3
"""Columns that stay empty at the right: the last one may wrap, and Ctrl-C writes "^C" behind the line."""
_STATE = len("fetch")


def fit(fields: dict[str, str], width: int, size: Callable[[str], int] = len) -> dict[str, str]:
    """Return the fields that fit into a line together, in their order.

    Args:
        fields: as `Words.fields` returns them.
        width: columns there are.
        size: how many columns a text takes.
    """
    room = width
    kept: set[str] = set()
    for name in FIRST:
        need = size(fields.get(name, "")) + (len(GAP) if kept else 0)
        if fields.get(name) and need <= room:
            room -= need
            kept.add(name)
    return {name: text for name, text in fields.items() if name in kept}


class Columns:
    """Keeps the fields of a live line from jumping: each is as wide as it has been once.

    The state isn't: a long name would take its place from the others for the rest of the run.
    """

    def __init__(self) -> None:
        self._widths: dict[str, int] = {}

    def padded(self, fields: dict[str, str]) -> dict[str, str]:
        """Return the fields, padded with blanks."""
        for name, text in fields.items():
            self._widths[name] = _STATE if name == "state" else max(len(text), self._widths.get(name, 0))
        return {name: text.ljust(self._widths[name]) if text else text for name, text in fields.items()}


def number(value: Any) -> str:
    """Write a value of the results, a float with six digits."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def duration(seconds: float) -> str:
    """Write a time as minutes and seconds, with hours and days where there are any."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}d {hours:02d}:{minutes:02d}:{rest:02d}"
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def epoch_of(status: Status) -> str:
    """Write the epoch."""
    return "" if status.epoch is None else f"epoch {status.epoch}{_of(status.n_epochs)}"


def batch_of(status: Status) -> str:
    """Write the batch of the epoch, as wide as the last one will be."""
    if status.batch is None:
        return ""
    wide = 0 if status.n_batches is None else len(str(status.n_batches))
    return f"batch {status.batch:>{wide}}{_of(status.n_batches)}"


def counters_of(status: Status) -> str:
    """Write where a run is that counts no batches: its transition, and what its state counts."""
    if status.batch is not None or status.epoch is not None or not status.seq:
        return ""
    return GAP.join([f"transition {status.seq:,}", *(f"{key} {number(held)}" for key, held in status.counters.items())])


def rate_of(status: Status) -> str:
    """Write the rate; a slow one as seconds a batch."""
    rate = status.rate
    if not rate:
        return ""
    return f"{rate:.1f} batch/s" if rate >= 1 else f"{1 / rate:.1f} s/batch"


def left_of(status: Status) -> str:
    """Write the time that is left."""
    return "" if status.eta is None else f"{duration(status.eta)} left"


def bar(status: Status, width: int) -> tuple[int, int] | None:
    """Return how many of a bar's columns are full, and how many are empty; None where the length isn't known."""
    if not status.n_batches or status.batch is None:
        return None
    full = min(width * status.batch // status.n_batches, width)
    return full, width - full


def _of(most: int | None) -> str:
    return "" if most is None else f"/{most}"


def _stepped(words: Words, status: Status, facts: dict[str, Any]) -> str:
    return "  ".join(filter(None, (words.where(status), rate_of(status), left_of(status))))


def _validated(words: Words, status: Status, facts: dict[str, Any]) -> str:
    text = f"validation {facts['validation']} after batch {status.global_batch:,}: {words.results(facts['results'])}"
    if "better" not in facts:
        return text
    before = facts["before"]
    which = f" {facts['monitor']}" if len(facts["results"]) > 1 else ""
    if facts["better"]:
        return f"+++ {text}  (best{which} so far{'' if before is None else f', before {number(before)}'})"
    best = "none so far" if before is None else f"{number(before)} at validation {facts['before_at']}"
    return f"--- {text}  (best{which}: {best})"


def _epoch_ended(words: Words, status: Status, facts: dict[str, Any]) -> str:
    return f"{_stepped(words, attrs.evolve(status, batch=None), facts)}  done"


def _stopped(words: Words, status: Status, facts: dict[str, Any]) -> str:
    return f"stopped at {words.where(status)}: {facts['reason']}"


def _failed(words: Words, status: Status, facts: dict[str, Any]) -> str:
    if facts["kind"] == "KeyboardInterrupt":
        return f"interrupted at {words.where(status)}"
    return f"failed at {words.where(status)}: {facts['kind']}"


def _noticed(words: Words, status: Status, facts: dict[str, Any]) -> str:
    return str(facts["text"])


def _ended(words: Words, status: Status, facts: dict[str, Any]) -> str:
    if facts.get("best") is None:
        own = counters_of(status)
        return f"{status.state} at {own}" if own else ""
    at = f"at validation {facts['best_at']} after batch {facts['best_batch']:,}"
    return f"best {facts['monitor']}: {number(facts['best'])} {at}"


_SENTENCES: dict[str, Callable[[Words, Status, dict[str, Any]], str]] = {
    "stepped": _stepped,
    "validated": _validated,
    "epoch_ended": _epoch_ended,
    "stopped": _stopped,
    "failed": _failed,
    "noticed": _noticed,
    "ended": _ended,
}
"""event -> the sentence it is said in. Others are for machines only."""


def joined(fields: dict[str, str] | Sequence[str]) -> str:
    """Join the fields of a line."""
    return GAP.join(fields.values() if isinstance(fields, dict) else fields)
