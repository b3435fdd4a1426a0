"""Where a run is cut, so that every kind of place in it is among the cuts."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import attrs

from tachograph.states import CallerError

from ..journal import Record


@attrs.frozen
class Cut:
    """A point after a transition of a run.

    Attributes:
        seq: the transition.
        where: what kind of place that is, in words.
    """

    seq: int
    where: str

    def __str__(self) -> str:
        return f"transition {self.seq} ({self.where})"


def cuts_of(
    records: Sequence[Record], at: int | str | Collection[int] | None = None, most: int | None = None
) -> list[Cut]:
    """Choose where to cut a run.

    Args:
        records: its transitions, to the one that ended it.
        at: after these; "all": after each; None: of every kind of place that the run has, one from the middle of it.
        most: how many at most; those that are left out are spread over the run.

    Raises:
        CallerError: the run has no such transition, or it is the one that ends it.
    """
    last = records[-1].seq - 1
    if isinstance(at, str):
        if at != "all":
            raise CallerError(f"at must be transitions, 'all' or None, not {at!r}")
        return [Cut(record.seq, _where(record)) for record in records[:last]]
    if at is not None:
        wanted = [at] if isinstance(at, int) else sorted(set(at))
        for seq in wanted:
            if not 1 <= seq <= last:
                raise CallerError(f"the run can't be cut after transition {seq}: it has 1 to {last}")
        return [Cut(seq, _where(records[seq - 1])) for seq in wanted]
    kinds: dict[tuple[object, ...], list[Record]] = {}
    for record in records[:last]:
        kinds.setdefault(_kind(record), []).append(record)
    chosen = sorted((held[len(held) // 2] for held in kinds.values()), key=lambda record: record.seq)
    if most is not None and len(chosen) > most:
        chosen = [chosen[(2 * n + 1) * len(chosen) // (2 * most)] for n in range(most)]
    return [Cut(record.seq, _where(record)) for record in chosen]


def _kind(record: Record) -> tuple[object, ...]:
    return record.source, record.event, record.dest, bool(getattr(record.state, "accumulated", 0))


def _where(record: Record) -> str:
    state = record.state
    where = f"after {record.event}, in state '{record.dest}'"
    if hasattr(state, "cur_epoch_idx"):
        where += f", epoch {state.cur_epoch_idx}, batch {state.batch_idx_in_epoch}"
    opened = getattr(state, "accumulated", 0)
    return f"{where}, with {opened} micro-batches in an open window" if opened else where
