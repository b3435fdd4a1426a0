"""What grows, and what doesn't: the cost of a step in a long run, with many listeners, with a large journal.

A run of a million steps of the stub driver, which does next to nothing, and one of a hundred thousand steps of a small
torch model. After 10^3, 10^4, ... steps, some epochs are measured; right after each, an epoch of a run that has just
begun, and one of a run without a journal. Ratios are taken of such pairs, and medians over them, so that what else the
machine does at the time counts for both. Seconds are those of the thread's processor. At the same points another
process opens the journal, reads its last record and seeks one in its middle.

Before that, so many listeners that do nothing are subscribed, and the slope is taken of what a step costs.

    python benchmarks/growth.py --steps 1000000
    python benchmarks/growth.py --plot docs/performance.svg    (draws what benchmarks/figures.json holds)
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
from figures import Figure, curve, finish, parser
from work import QUIET, Forgetful, model, resident, samples

from tachograph.engine import Callback, Events, Journal, Trainer

EPOCH = 250  # steps
COUNTS = (0, 1, 3, 10, 30, 100)
SEALED = 400_000  # transitions: the first file of a journal has been compressed by then
FLAT = 1.1

Make = Callable[[Path | None, int], Trainer]


def stubbed(run_dir: Path | None, epochs: int) -> Trainer:
    return Trainer(None, Forgetful(), list(range(EPOCH)), None, n_epochs=epochs, run_dir=run_dir, **QUIET)


def trained(run_dir: Path | None, epochs: int) -> Trainer:
    import torch
    from torch.utils.data import DataLoader, TensorDataset

    torch.set_num_threads(1)
    net = model()
    loader = DataLoader(TensorDataset(*samples(16 * EPOCH)), batch_size=16, shuffle=True)
    optimizer = torch.optim.Adam(net.parameters())
    return Trainer(net, "torch", loader, optimizer, n_epochs=epochs, run_dir=run_dir, **QUIET)


# -- long runs ---------------------------------------------------------------------------------------------


@attrs.frozen
class Sample:
    """Three epochs, one right after the other: µs a step each.

    Attributes:
        long: of the long run.
        young: of a run that has just begun.
        off: of a run without a journal.
    """

    long: float
    young: float
    off: float


@attrs.define
class Long:
    """A long run, and what was seen of it.

    Attributes:
        make: makes a trainer.
        steps: how long it is.
        each: epochs that are measured at each length.
        samples: by length in steps.
        reads: by the same, what another process saw of the journal: see `look`.
        memory: (transition, resident MB, blocks that Python has allocated), a hundred times.
    """

    make: Make
    steps: int
    each: int
    samples: dict[int, list[Sample]] = attrs.field(factory=dict)
    reads: dict[int, list[float]] = attrs.field(factory=dict)
    memory: list[tuple[int, float, int]] = attrs.field(factory=list)
    _began: float = 0.0

    def run(self, folder: Path) -> None:
        lengths = [10**n for n in range(3, 10) if 10**n <= self.steps]
        at = {length // EPOCH + n: length for length in lengths for n in range(self.each)}
        trainer = self.make(folder / "long", max(at) + 1)
        trainer.on("on_train_epoch_begin", lambda trainer: self._begins())
        trainer.on("on_train_epoch_end", lambda trainer: self._ended(trainer, at, folder))
        trainer.run()

    def _begins(self) -> None:
        self._began = time.thread_time()

    def _ended(self, trainer: Trainer, at: dict[int, int], folder: Path) -> None:
        spent = (time.thread_time() - self._began) / EPOCH * 1e6
        state = trainer.trainer_state
        length = at.get(state.cur_epoch_idx - 1)  # epochs before this one
        if state.cur_epoch_idx % max(self.steps // EPOCH // 100, 1) == 0:
            self._weigh(state.seq)
        if length is None:
            return
        taken = self.samples.setdefault(length, [])
        if not taken:
            self.reads[length] = look_of(folder / "long", state.seq)
        with tempfile.TemporaryDirectory(dir=folder) as other:
            young, off = self._epoch(Path(other) / "run"), self._epoch(None)
        taken.append(Sample(spent, young, off))

    def _weigh(self, seq: int) -> None:
        gc.collect()
        self.memory.append((seq, resident(), sys.getallocatedblocks()))

    def _epoch(self, run_dir: Path | None) -> float:
        """The second epoch of a new run."""
        times: list[float] = []
        trainer = self.make(run_dir, 2)
        trainer.on("on_train_epoch_begin", lambda trainer: times.append(time.thread_time()))
        trainer.on("on_train_epoch_end", lambda trainer: times.append(time.thread_time()))
        trainer.run()
        return (times[3] - times[2]) / EPOCH * 1e6


def look_of(run_dir: Path, seq: int) -> list[float]:
    """Have a new process open a journal."""
    command = [sys.executable, __file__, "--look", str(run_dir), "--steps", str(seq)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [float(part) for part in json.loads(told)]


def look(run_dir: Path, seq: int) -> None:
    """Print what the last record takes, a seek far back and one beside it: seconds of the processor; bytes a record.

    The bytes are the mean of the last thousand records.
    """

    def spent(act: Callable[[], object]) -> float:
        began = time.process_time()
        act()
        return time.process_time() - began

    last = min(spent(lambda: Journal(run_dir).last) for _ in range(5))
    journal = Journal(run_dir)
    seeks = [spent(lambda place=place: journal.seek(place)) for place in (seq // 3, seq // 3 + 1)]
    sizes = [len(record.line) + 1 for record in journal.since(seq - 1000)]
    print(json.dumps([last, *seeks, statistics.mean(sizes)]))


def of_long(name: str, long: Long) -> Iterator[Figure]:
    """Tell of a long run."""
    held = long.samples
    against = {n: statistics.median(s.long / s.young for s in taken) for n, taken in held.items()}
    for what, part in (("a step", "long"), ("a step without a journal", "off")):
        points = {n: statistics.median(getattr(s, part) for s in taken) for n, taken in held.items()}
        yield from curve(f"{name}, {what}", points, "µs", "steps")
    yield from curve(f"{name}, against a run that has just begun", against, "", "steps", "median of pairs")
    first, last = min(held), max(held)
    pairs = f"each against a run that has just begun, {long.each} pairs"
    title = f"{name}: a step after {last:,} of them, against one after {first:,}"
    yield Figure(title, against[last] / against[first], "", FLAT, note=pairs)
    note = f"mean of a thousand after {last:,} steps"
    yield Figure(f"{name}: bytes a record", long.reads[last][-1], "B", 450, note=note)


def of_journal(long: Long) -> Iterator[Figure]:
    """Tell what a journal's size costs: the stub's run, whose steps are two records each."""
    appended = {2 * n: statistics.median((s.long - s.off) / 2 for s in taken) for n, taken in long.samples.items()}
    young = {2 * n: statistics.median((s.young - s.off) / 2 for s in taken) for n, taken in long.samples.items()}
    yield from curve("an append", appended, "µs", "records", "above the same without a journal")
    for number, series in enumerate(("opening it and its last record", "a first seek", "a seek beside it")):
        points = {2 * n: spent[number] * 1e3 for n, spent in long.reads.items()}
        yield from curve(series, points, "ms", "records", "by another process, while the run goes on")
    first, last = min(appended), max(appended)
    flat = (appended[last] / young[last]) / (appended[first] / young[first])
    title = f"an append into a journal of {last:,} records, against one into {first:,}"
    yield Figure(title, flat, "", FLAT, note="each against a journal that has just begun")


def of_memory(long: Long) -> Iterator[Figure]:
    """Tell what a transition adds to the process: between the first compressed file and the end."""
    settled = [held for held in long.memory if held[0] >= SEALED] or long.memory
    (began, least, blocks), (ended, most, left) = settled[0], settled[-1]
    n = max(ended - began, 1)
    yield from curve("resident memory", {seq: held for seq, held, _ in long.memory[::10]}, "MB", "transitions")
    note = f"from transition {began:,} to {ended:,}: {least:.1f} MB, {most:.1f} MB"
    yield Figure(
        "memory that a transition adds to a long run", max(round((most - least) * 1e6 / n), 0), "B", 0, note=note
    )
    yield Figure(
        "objects that a transition adds to a long run",
        max(round((left - blocks) / n, 3), 0),
        "",
        0,
        note="Python's count",
    )


# -- listeners ---------------------------------------------------------------------------------------------


class Idle(Callback):
    """Hears each batch's end."""

    def on_train_batch_end(self, trainer: Any) -> None:
        pass


def functions(trainer: Trainer) -> None:
    trainer.on("on_train_batch_end", lambda trainer: None)


def callbacks(trainer: Trainer) -> None:
    trainer.add_callback(Idle())


def inside(trainer: Trainer) -> None:
    trainer.on("on_before_backward", lambda trainer, outputs: None)


def events(trainer: Trainer) -> None:
    trainer.on("Stepped", lambda trainer, event: None)


def filtered(trainer: Trainer) -> None:
    trainer.on(Events.on_train_batch_end(every=100), lambda trainer: None)


KINDS: dict[str, tuple[Callable[[Trainer], None], float | None]] = {
    "a listener at each batch's end": (functions, 0.2),
    "a callback at each batch's end": (callbacks, 0.2),
    "a listener that is given the event": (events, None),
    "a listener inside a step": (inside, 0.2),
    "a listener with every=100": (filtered, None),
}


def heard(subscribe: Callable[[Trainer], None], count: int, trainer: Trainer) -> float:
    """Return µs a step of a trainer, with so many listeners: its fastest epoch."""
    for _ in range(count):
        subscribe(trainer)
    times: list[float] = []
    trainer.on("on_train_epoch_begin", lambda trainer: times.append(time.thread_time()))
    trainer.on("on_train_epoch_end", lambda trainer: times.append(time.thread_time()))
    trainer.run()
    return min(end - begin for begin, end in zip(times[::2], times[1::2], strict=True)) / EPOCH * 1e6


def first(rounds: int, folder: Path) -> Figure:
    """Tell what the first listener costs where there is a journal, in a torch run.

    A transition that somebody hears is written before they hear of it; others are written several at a time.
    """
    taken: dict[int, list[float]] = {0: [], 1: []}
    for number in range(rounds):
        for count in random.sample((0, 1), 2):
            run_dir = folder / f"{number}-{count}"
            taken[count].append(heard(functions, count, trained(run_dir, 3)))
            shutil.rmtree(run_dir)
    spent = statistics.median(one - none for none, one in zip(taken[0], taken[1], strict=True))
    return Figure(
        "the first listener at each batch's end, with a journal", spent, "µs", note="a step; torch, small MLP"
    )


def of_listeners(rounds: int) -> Iterator[Figure]:
    """Tell what listeners cost."""
    for name, (subscribe, budget) in KINDS.items():
        taken: dict[int, list[float]] = {count: [] for count in COUNTS}
        for _ in range(rounds):
            for count in random.sample(COUNTS, len(COUNTS)):
                taken[count].append(heard(subscribe, count, stubbed(None, 4)))
        slopes = [slope({count: held[n] for count, held in taken.items()}) for n in range(rounds)]
        points = {count: statistics.median(held) for count, held in taken.items()}
        yield from curve(f"with so many: {name}", points, "µs", "number", "a step of the stub, no journal")
        yield Figure(
            name,
            statistics.median(slopes),
            "µs",
            budget,
            note="that does nothing: the slope of 0 to 100 of them, a call",
        )


def slope(points: dict[int, float]) -> float:
    """Return the slope of the straight line that lies nearest to some points."""
    return statistics.linear_regression(list(points), list(points.values())).slope


# -- all of it ---------------------------------------------------------------------------------------------


@contextmanager
def folder_of(options: argparse.Namespace) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        yield Path(folder)


def measure(options: argparse.Namespace) -> list[Figure]:
    if options.quick:
        options.steps, options.torch_steps, options.pairs, options.rounds = 10_000, 1000, 2, 1
    figures = list(of_listeners(options.rounds))
    with folder_of(options) as folder:
        long = Long(stubbed, options.steps, options.pairs)
        long.run(folder)
    figures += [*of_memory(long), *of_long("stub", long), *of_journal(long)]
    if options.torch_steps:  # last, so that what came before was measured in a process without torch
        with folder_of(options) as folder:
            figures.append(first(options.rounds, folder))
            other = Long(trained, options.torch_steps, options.pairs)
            other.run(folder)
        figures += of_long("torch", other)
    return figures


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=1_000_000, help="of the stub's run (1000000)")
    options.add_argument("--torch-steps", type=int, default=100_000, help="of the torch run (100000); 0: none")
    options.add_argument("--pairs", type=int, default=20, help="epochs that are measured at each length (20)")
    options.add_argument("--rounds", type=int, default=15, help="with each number of listeners (15)")
    options.add_argument("--folder", type=Path, help="where the runs are kept while it lasts")
    options.add_argument("--plot", type=Path, metavar="FILE", help="measure nothing; draw what is kept")
    options.add_argument("--look", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.look is not None:
        look(given.look, given.steps)
    elif given.plot is not None:
        from plot import draw

        draw(given.plot)
    else:
        finish(measure, given)


if __name__ == "__main__":
    main()
