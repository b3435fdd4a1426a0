"""The batches of a run, read again by its trainer's loader: tensors and plain data, proven by what the journal has.

That is the hash of their sample ids; and of those batches that a `Fingerprints` callback has looked at, what they held.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tachograph.drivers import NO_BATCH
from tachograph.states import CallerError

from .. import recording
from ..journal import Journal, Record
from .contents import Contents, fetched

if TYPE_CHECKING:
    from ..trainer import Trainer


def write(contents: Contents, trainer: Trainer, folder: Path) -> Iterator[Path]:
    """Write the batches that were asked for, a file each, and yield the files as they are there.

    The trainer isn't run: its loader is opened where the batches are. Each file is `torch.save`'s, and holds `seq`,
    `epoch`, `batch`, `ids` and `data`.

    Raises:
        CallerError: several processes trained; the trainer isn't the run's; or a batch isn't tensors and plain data.
    """
    from tachograph.drivers import storage

    for record, ids, data in _read(contents, trainer):
        if not storage.is_plain(data):
            raise CallerError(
                f"the batch of transition {record.seq:,} is a {type(data).__name__} that holds more than tensors, "
                "containers and plain data, so it can't be written: leave out --batches, the ids are in the file anyway"
            )
        state = record.state
        path = folder / f"{record.seq:012d}.pt"
        where = {"seq": record.seq, "epoch": state.cur_epoch_idx, "batch": state.batch_idx_in_epoch}
        storage.write({**where, "ids": ids if storage.is_plain(ids) else None, "data": storage.copied(data)}, path)
        yield path


def _read(contents: Contents, trainer: Trainer) -> Iterator[tuple[Record, Any, Any]]:
    journal = Journal(contents.run_dir)
    about = recording.load(contents.run_dir)
    if max(about.get("world", 1), trainer.ranks.world_size) > 1:
        raise CallerError(
            "batches are read again in one process, and this run was made by several: leave out --batches"
        )
    held = recording.in_force(about, journal)
    trainer.take_settings({**about, "settings": held})
    driver = trainer.driver
    assert driver is not None
    driver.set_dataloader(trainer.train_dataloader, held.get("num_train_batch_per_epoch", -1))
    trainer._prepare(fresh=False)
    try:
        at: tuple[int, int] | None = None
        looked_at = _fingerprints(contents, journal)
        for record in fetched(contents, 0):
            state = record.state
            place = state.cur_epoch_idx, state.batch_idx_in_epoch
            if place != at:
                driver.open_epoch(*place, state.place if state.place or not state.batch_idx_in_epoch else None)
            data = driver.next_batch()
            if data is NO_BATCH or driver.ids_digest() != record.data["ids"]:
                raise CallerError(
                    f"the loader of this trainer makes another batch than the one of transition {record.seq:,}: "
                    "its data isn't the run's"
                )
            if looked_at.get(record.seq + 1) not in (None, driver.fingerprint_of(data)):
                raise CallerError(
                    f"the batch of transition {record.seq:,} has the run's sample ids, and other values than it had: "
                    "the data was changed, or doesn't follow from seed, epoch and sample alone"
                )
            yield record, driver.batch_ids, data
            at = place[0], place[1] + 1
    finally:
        driver.close()


def _fingerprints(contents: Contents, journal: Journal) -> dict[int, str | None]:
    """Return the fingerprints of batches, by the transitions that trained on them."""
    held = (side.data for side in journal.sides("fingerprint") if contents.asked <= side.seq <= contents.last)
    return {told["at"]: told.get("batch") for told in held}
