"""Which samples were in a batch: the journal keeps a hash of their ids, and the order they came in is a pure function.

So the ids are computed again from the run's settings and the position in the record, and the hash proves them. Where
the order is a sampler's of the user's own, the trainer's loader is asked. Importing this needs no torch; asking does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import attrs

from tachograph.states import TachographError

from . import recording
from .journal import Journal, Record
from .losses import IN_A_RECORD, short

if TYPE_CHECKING:
    from tachograph.drivers.loaders import Spot

    from .trainer import Trainer

_ASIDE = ("init", "sanity_check", "epoch_begin", "fetch", "validate", "epoch_end")
"""States whose work is done with no training batch in hand."""
_BACK = 16
"""Transitions between a batch's fetch and the last one that is about it."""
_ASK = "--trainer module:function (in Python: samples_of(run_dir, seq, trainer=trainer)) asks your loader"


class SamplesUnknown(TachographError):
    """The sample ids of a batch can't be told; the message says why, and what would help."""


@attrs.frozen(kw_only=True)
class Samples:
    """The samples of a training batch.

    Attributes:
        ids: what the sampler called them, in their order.
        seq: the transition in which the batch was fetched.
        rank: whose batch.
        epoch: its epoch, from 0.
        batch: its number in the epoch, from 0.
        proof: what the journal has of the ids, and they agree with: their hash, as 8 hex digits; of a batch that failed
            while it was read, the first of them as text.
        told_by: who knew the order: "run.json" or "trainer".
    """

    ids: list[Any]
    seq: int
    rank: int
    epoch: int
    batch: int
    proof: str
    told_by: str


def samples_of(run_dir: Path | str, seq: int, *, rank: int | None = None, trainer: Trainer | None = None) -> list[Any]:
    """Return the sample ids of the training batch that a transition is about, in their order.

    They are the indices that the loader's sampler gave. For `Stepped` it is the batch fetched before it.

    Args:
        run_dir: the run directory.
        seq: a `Fetched`, a `Stepped`, or another transition out of *step*.
        rank: whose batch; None: that of the lowest rank there is a journal of.
        trainer: one that is built as the run's was, whose loader is asked where the order is a sampler's of your own.
            It isn't run.

    Raises:
        SamplesUnknown: they can't be told, or what was found doesn't have the hash in the record.
        JournalError: there is no such transition.
    """
    return find_samples(run_dir, seq, rank=rank, trainer=trainer).ids


def find_samples(run_dir: Path | str, seq: int, *, rank: int | None = None, trainer: Trainer | None = None) -> Samples:
    """Return the same as `samples_of`, with what is known of the batch."""
    journal = _journal(Path(run_dir), rank)
    record = _record_of_batch(journal, journal.seek(seq))
    about = recording.in_force(recording.load(journal.run_dir), journal, record.incarnation)
    told = record.data["ids"]
    if not told:
        raise SamplesUnknown(
            f"the batch of transition {record.seq:,} came without sample ids: the data ({about.get('data')}) has no "
            "index, so nothing names what was read. A DataLoader over a map-style dataset has one"
        )
    ids, by = _found(about, _spot(about, record), told, trainer)
    state = record.state
    proof = told if isinstance(told, str) else f"{told:08x}"
    where = {"epoch": state.cur_epoch_idx, "batch": state.batch_idx_in_epoch}
    return Samples(ids=ids, seq=record.seq, rank=record.rank, proof=proof, told_by=by, **where)


def _journal(run_dir: Path, rank: int | None) -> Journal:
    from .journal.segments import ranks_of

    return Journal(run_dir, rank=ranks_of(run_dir)[0] if rank is None else rank)


# -- the record --------------------------------------------------------------------------------------------


def _record_of_batch(journal: Journal, asked: Record) -> Record:
    """Return the record that has the place and the proof of the batch that a transition is about.

    It is the one that brought the batch; or, where the run failed while it was read, that of the failure.

    Raises:
        SamplesUnknown: the transition is about no training batch.
    """
    if asked.event == "Fetched" or (asked.event == "Failed" and asked.source == "fetch" and asked.data.get("ids")):
        return asked
    first = journal.beginning.seq + 1
    if asked.source not in _ASIDE:
        for seq in range(asked.seq - 1, max(first, asked.seq - _BACK) - 1, -1):
            record = journal.seek(seq)
            if record.event == "Fetched":
                return record
            if record.dest == "fetch":
                break
        else:
            if first > 1 and asked.seq - _BACK <= first:
                raise SamplesUnknown(_in_the_parent(journal, asked))
    raise SamplesUnknown(
        f"transition {asked.seq:,} ({asked.source} --{asked.event}--> {asked.dest}) is about no training batch"
        f"{_nearest(journal, asked.seq, first)}"
    )


def _in_the_parent(journal: Journal, asked: Record) -> str:
    told = recording.load(journal.run_dir).get("parent")
    parent, before = told if isinstance(told, dict) else {}, journal.beginning.seq
    where = parent.get("run_dir") or f"the run directory of {parent.get('run')}"
    return (
        f"the batch of transition {asked.seq:,} was in hand when this run began, after transition {before:,} of its "
        f"parent: `tachograph show {where} --at {before} --samples`"
    )


def _nearest(journal: Journal, seq: int, first: int) -> str:
    for before in range(seq - 1, max(first, seq - _BACK) - 1, -1):
        if journal.seek(before).event == "Fetched":
            return f"; the last one before it was fetched in {before:,}"
    return ""


# -- the order ---------------------------------------------------------------------------------------------


def _spot(about: Mapping[str, Any], record: Record) -> Spot:
    """Return the place of a batch in the order, from the settings that were in force there."""
    from tachograph.drivers.loaders import Spot

    state, size = record.state, about.get("batch_size")
    overfit = bool(about.get("overfit_batches"))  # every epoch reads the beginning of the first one
    counted = state.place or not state.batch_idx_in_epoch
    return Spot(
        seed=about.get("seed", 0),
        epoch=0 if overfit else state.cur_epoch_idx,
        done=state.batch_idx_in_epoch,
        place=state.place if counted else None,
        rank=record.rank,
        world=about.get("world", 1),
        batch_size=size if isinstance(size, int) else None,
    )


def _found(about: Mapping[str, Any], spot: Spot, told: Any, trainer: Trainer | None) -> tuple[list[Any], str]:
    """Find the ids that the record proves, and say who told them."""
    from tachograph.drivers.loaders import ids_asked, ids_remembered, knows

    order = about.get("order")
    if isinstance(order, dict) and knows(order):
        ids = _tried(lambda: ids_remembered(order, spot))
        if _agree(ids, told):
            return ids, "run.json"
        why = "what run.json tells of the order leads to other samples than the record has"
    elif isinstance(order, dict):
        why = f"run.json doesn't tell the order of a {order.get('sampler')}"
    else:
        why = "run.json tells nothing of the order: an older version wrote it, or a driver that doesn't know it"
    if trainer is None:
        raise SamplesUnknown(f"{why}; {_ASK}")
    for found in ids_asked(trainer.train_dataloader, getattr(trainer.driver, "_share", None), spot):
        if _agree(found, told):
            return found, "trainer"
    raise SamplesUnknown(
        f"{why}, and the trainer's loader leads to other samples as well: the data or the sampler isn't the run's, or "
        f"draws from something else than (seed, epoch)"
    )


def _agree(ids: list[Any] | None, told: Any) -> TypeGuard[list[Any]]:
    """Say whether ids are those of a record, by the hash or the text that it has of them."""
    from tachograph.drivers.loaders import hash_ids

    if ids is None:
        return False
    return short(ids, IN_A_RECORD) == told if isinstance(told, str) else hash_ids(ids) == told


def _tried(find: Any) -> list[Any] | None:
    """Ask an order that may not hold what it is asked for, since the settings are another version's or were edited."""
    try:
        return find()  # type: ignore[no-any-return]
    except (KeyError, TypeError, ValueError):
        return None


__all__ = ["Samples", "SamplesUnknown", "find_samples", "samples_of"]
