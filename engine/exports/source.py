"""`Source`: the run that is exported, as its writers read it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from tachograph.engine import recording
from tachograph.engine.journal import Damage, Journal, Record, SideRecord
from tachograph.engine.journal.codec import from_json, restored
from tachograph.states import TrainerState
from tachograph.states.trainer_state import SCHEMA


class Source:
    """A run's records, in a stream.

    Args:
        run_dir: a run directory.
        rank: whose journal, or "all".
        every_life: all incarnations' records; else the live history.
        salvage: pass over damage.

    Attributes:
        about: its `run.json`.
        ranks: the ranks that are exported.
        notes: what people noted at transitions, and didn't take back.
        damage: what the last reading that went to the end passed over.

    Raises:
        NotARun, JournalError: it isn't a run directory, or has no such rank.
    """

    def __init__(self, run_dir: str | Path, *, rank: int | Literal["all"], every_life: bool, salvage: bool) -> None:
        self.about: dict[str, Any] = recording.load(Path(run_dir))
        self._journal = Journal(run_dir, rank=rank, history="all" if every_life else "live", salvage=salvage)
        self.ranks = list(self._journal.ranks)
        self.notes = self._journal.notes()
        self.damage: list[Damage] = []

    def items(self) -> Iterator[Record | SideRecord]:
        """Read transitions and side records."""
        yield from self._journal.everything()
        self.damage = self._journal.damage

    def records(self) -> Iterator[Record]:
        """Read the transitions."""
        yield from self._journal
        self.damage = self._journal.damage


def state_of(record: Record) -> dict[str, Any]:
    """Return the state after a record as plain data; one that this version writes isn't validated again."""
    header = record.header
    if header.state == TrainerState.__name__ and header.schema != SCHEMA:
        return record.state.to_dict()  # type: ignore[no-any-return]
    held = restored(from_json(record.raw_state))
    return {"state": record.dest, "seq": record.seq, **header.defaults_of(header.state), **held}


def losses_of(record: Record, data: dict[str, Any]) -> list[tuple[int, Any]]:
    """Return the losses that a record brings, each with the seq of its step: those that arrived late, and its own."""
    late = data.get("late") or []
    pairs = [late] if late and not isinstance(late[0], list) else late
    found = [(int(seq), loss) for seq, loss in pairs if loss is not None]
    own = data.get("loss")
    return found if own is None else [*found, (record.seq, own)]


__all__ = ["Source", "losses_of", "state_of"]
