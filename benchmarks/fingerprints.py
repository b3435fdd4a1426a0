"""What a fingerprint costs: bytes per second of a tensor, and microseconds of a step.

Tensors of several sizes are hashed, against a copy of the same bytes and against blake2b of them. Then two MLPs are
trained with Adam, batch 16, without fingerprints, with one every 100 updates and with one at each, interleaved in one
process; the difference to the run without any is taken within each round, in seconds of the thread's processor. One
thread; medians.

    python benchmarks/fingerprints.py --rounds 20
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator

import torch
from figures import Figure, curve, finish, parser
from torch.utils.data import DataLoader, TensorDataset
from work import BATCH, QUIET, WIDTHS, model, samples

from tachograph.drivers import fingerprints
from tachograph.engine import Fingerprints, Trainer

SIZES = (4, 1 << 12, 1 << 20, 1 << 24, 1 << 28)  # bytes
MODELS = {"32-64-2": WIDTHS, "512-1024-1024-512": (512, 1024, 1024, 512)}


def seconds_of(act: Callable[[], object], rounds: int) -> float:
    """Return the median time of a call."""
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        act()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def rates(sizes: tuple[int, ...], rounds: int) -> Iterator[Figure]:
    """Tell what a tensor's fingerprint takes."""
    seen: dict[str, dict[float, float]] = {"a fingerprint": {}, "a copy": {}, "blake2b": {}}
    taken: dict[float, float] = {}
    for size in sizes:
        tensor = torch.randn(size // 4)
        raw, place = tensor.numpy().data, torch.empty_like(tensor)
        n = max(3, rounds if size > 1 << 22 else 10 * rounds)
        acts: dict[str, Callable[[], object]] = {
            "a fingerprint": lambda t=tensor: fingerprints.of_trees({"": t}),
            "a copy": lambda p=place, t=tensor: p.copy_(t),
            "blake2b": lambda r=raw: hashlib.blake2b(r).digest(),
        }
        for name, act in acts.items():
            spent = seconds_of(act, n)
            seen[name][size] = size / spent / 1e9
            if name == "a fingerprint":
                taken[size] = spent * 1e6
    yield from curve("a fingerprint of one tensor", taken, "µs", "bytes")
    for name, points in seen.items():
        yield from curve(name, points, "GB/s", "bytes")
    largest = max(sizes)
    ratio = seen["a fingerprint"][largest] / seen["blake2b"][largest]
    yield Figure("a fingerprint's speed, of blake2b's", ratio, "times", note=f"{largest >> 20} MiB")


def epoch(widths: tuple[int, ...], steps: int, every: int | None) -> float:
    """Train an epoch, with a journal; return µs a step."""
    net = model(widths)
    callbacks = [] if every is None else [Fingerprints(every)]
    loader = DataLoader(TensorDataset(*samples(BATCH * steps, widths)), BATCH, shuffle=True)
    optimizer = torch.optim.Adam(net.parameters())
    times: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        settings = {"n_epochs": 1, "callbacks": callbacks, "run_dir": f"{folder}/run", **QUIET}
        trainer = Trainer(net, "torch", loader, optimizer, **settings)
        trainer.on("on_train_epoch_begin", lambda trainer: times.append(time.thread_time()))
        trainer.on("on_train_epoch_end", lambda trainer: times.append(time.thread_time()))
        trainer.run()
    return (times[1] - times[0]) / steps * 1e6


def steps(rounds: int, n: int) -> Iterator[Figure]:
    """Tell what fingerprints add to a step."""
    for name, widths in MODELS.items():
        taken: dict[int | None, list[float]] = {None: [], 100: [], 1: []}
        for _ in range(rounds + 1):
            for every in random.sample(list(taken), 3):
                gc.collect()
                taken[every].append(epoch(widths, n, every))
        bare = taken[None][1:]  # the first round warms up
        yield Figure(f"{name}: a step without", statistics.median(bare), "µs", note="journal on")
        for every, told in ((100, "every 100 updates"), (1, "at each update")):
            above = statistics.median(a - b for a, b in zip(taken[every][1:], bare, strict=True))
            yield Figure(f"{name}: {told}", above, "µs", note="fingerprints add this to a step; medians of pairs")


def measure(options: argparse.Namespace) -> list[Figure]:
    sizes = SIZES
    if options.quick:
        sizes, options.rounds, options.steps = SIZES[:3], 1, 5
    torch.set_num_threads(1)
    return [*rates(sizes, options.rounds), *steps(options.rounds, options.steps)]


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=10, help="rounds of each (10)")
    options.add_argument("--steps", type=int, default=100, help="steps of a round (100)")
    finish(measure, options.parse_args())


if __name__ == "__main__":
    main()
