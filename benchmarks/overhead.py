"""What a training step costs above a bare loop: ours with the journal on and off, and that of other libraries.

All do the same work (a 32-64-2 MLP with Adam, batch 16, one thread, shuffled `DataLoader` over a plain map-style
dataset), each in a process and an environment of its own, which `python benchmarks/peers` makes; a library without one
is left out. The processes are asked in random order, one at a time, for one run each: the bare loop, the library, and
the library with ten listeners that do nothing (ours with a hundred as well). A library's difference to the bare loop of
its own process in the same round is taken. Medians over the rounds are shown; single rounds scatter by more than the
differences. Time of the processor, of all threads, is told beside that of the clock: other work disturbs it less.

    python benchmarks/peers                   once
    python benchmarks/overhead.py             all, in eight minutes on a machine that does nothing else
    python benchmarks/overhead.py --only tachograph,ignite --rounds 100
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import attrs
from figures import Figure, finish, parser, quartiles
from peers.environments import ENVIRONMENTS, OURS, python_of, setting_of, wanted
from work import stub_trainer

HERE = Path(__file__).parent
ON, OFF, BARE, IGNITE = "journal on", "journal off", "bare loop", "ignite"
BY_HAND = ("ignite, Engine", "torchtnt, TrainUnit", "Accelerate")  # the step, or the loop too, is the user's own code
TIGHT = (0, 10, 100)

Key = tuple[str, int]  # a contender, and how many listeners it has


class Worker:
    """A process that runs contenders when it is asked to.

    Attributes:
        name: the library's.
        runs: what it can be asked for.
        versions: of what it imports.
        seconds: what it has answered: key -> one pair a round, by the clock and of the processor.

    Raises:
        RuntimeError: it ended before it had said what it can run.
    """

    def __init__(self, name: str, python: Path, steps: int, told: Any) -> None:
        self.name = name
        self._told = told
        self.process = subprocess.Popen(
            [python, "-m", "peers.worker", name, str(steps)],
            cwd=HERE,
            env=setting_of(name),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=told,
            text=True,
            bufsize=1,
        )
        self.seconds: dict[Key, list[tuple[float, float]]] = defaultdict(list)

    def greet(self) -> None:
        """Wait until it has said what it can run."""
        said = self._read()
        self.versions: dict[str, str] = said["versions"]
        self.failed: dict[str, str] = said["failed"]
        self.runs: list[Key] = [(BARE, 0), *product(said["contenders"][1:], said["listeners"])]

    def ask(self, key: Key) -> None:
        """Have it run a contender once."""
        assert self.process.stdin is not None
        print(json.dumps(key), file=self.process.stdin, flush=True)
        wall, cpu = self._read()
        self.seconds[key].append((wall, cpu))

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self._told.seek(0)
            last = self._told.read().strip().splitlines()[-1:] or ["without a word"]
            raise RuntimeError(f"{self.name} ended: {last[0]}")
        return json.loads(line)

    def end(self) -> None:
        """End it, and wait until it is gone."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def workers(names: Sequence[str], steps: int) -> Iterator[list[Worker]]:
    """Start a process for each library that can be run here; say which can't, and why."""
    with ExitStack() as stack:
        started = []
        for name in names:
            if (python := python_of(name)) is None:
                continue
            worker = Worker(name, python, steps, stack.enter_context(tempfile.TemporaryFile("w+")))
            stack.callback(worker.end)
            started.append(worker)
        ready = []
        for worker in started:
            try:
                worker.greet()
            except RuntimeError as error:
                print(f"left out: {error}")
                continue
            for title, why in worker.failed.items():
                print(f"left out: {title}: {why}")
            ready.append(worker)
        yield ready


def rounds(running: Sequence[Worker], count: int) -> list[Worker]:
    """Have every process run all it can once a round, one at a time; return those that came to the end."""
    left = list(running)
    for done in range(count):
        for worker in random.sample(left, len(left)):
            try:
                for key in random.sample(worker.runs, len(worker.runs)):
                    worker.ask(key)
            except (RuntimeError, BrokenPipeError) as error:
                print(f"left out: {error}")
                left.remove(worker)
        if sys.stderr.isatty():
            print(f"\r{done + 1} of {count} rounds", end="\n" if done + 1 == count else "", file=sys.stderr)
    return left


@attrs.frozen
class Cost:
    """What a contender costs, in µs a step.

    Attributes:
        name: the contender.
        median: a step of it.
        above: each round's difference to the bare loop, by the clock.
        fastest: the difference of the fastest rounds.
        cpu: each round's difference, in time of the processor.
        calls: each round's cost of one listener's call; empty where there are none.
        calls_cpu: the same, in time of the processor.
        releases: of the libraries.
    """

    name: str
    median: float
    above: list[float]
    fastest: float
    cpu: list[float]
    calls: list[float]
    calls_cpu: list[float]
    releases: str = ""

    @property
    def middle(self) -> float:
        """The median of the differences."""
        return statistics.median(self.above)

    @property
    def middle_cpu(self) -> float:
        """The same, in time of the processor."""
        return statistics.median(self.cpu)


def costs(worker: Worker, steps: int) -> Iterator[Cost]:
    """Yield what each of a process's contenders costs."""

    def micro(key: Key, clock: int) -> list[float]:
        return [pair[clock] / steps * 1e6 for pair in worker.seconds[key]]

    def less(a: Iterable[float], b: Iterable[float], share: int = 1) -> list[float]:
        return [(x - y) / share for x, y in zip(a, b, strict=True)]

    bare, bare_cpu = micro((BARE, 0), 0), micro((BARE, 0), 1)
    own = {name: release for name, release in worker.versions.items() if name not in ("python", "torch", "numpy")}
    for name in dict.fromkeys(name for name, _ in worker.runs if name != BARE):
        wall, cpu = micro((name, 0), 0), micro((name, 0), 1)
        many = max(listeners for title, listeners in worker.runs if title == name)
        yield Cost(
            name,
            statistics.median(wall),
            less(wall, bare),
            min(wall) - min(bare),
            less(cpu, bare_cpu),
            less(micro((name, many), 0), wall, many) if many else [],
            less(micro((name, many), 1), cpu, many) if many else [],
            "" if worker.name == OURS else ", ".join(f"{name} {release}" for name, release in own.items()),
        )


def show(found: Sequence[Cost], running: Sequence[Worker], steps: int) -> None:
    """Print a row for each contender."""
    for worker in running:
        print(f"{worker.name}: {', '.join(f'{name} {release}' for name, release in worker.versions.items())}")
    bare = {worker.name: [wall / steps * 1e6 for wall, _ in worker.seconds[BARE, 0]] for worker in running}
    spread = f"{min(map(statistics.median, bare.values())):.0f} to {max(map(statistics.median, bare.values())):.0f}"
    print(
        f"\nµs a step; the bare loop takes {spread} in the middle, {min(map(min, bare.values())):.0f} at its fastest\n"
    )
    heads = ("", "median", "above bare", "quartiles", "fastest", "processor", "quartiles", "a listener", "processor")
    print("{:20s} {:>9s} {:>11s} {:>17s} {:>9s} {:>10s} {:>17s} {:>11s} {:>10s}".format(*heads))
    for cost in found:
        (low, middle, high), (cpu_low, cpu, cpu_high) = quartiles(cost.above), quartiles(cost.cpu)
        listener = [f"{statistics.median(held):.2f}" if held else "" for held in (cost.calls, cost.calls_cpu)]
        print(
            f"{cost.name:20s} {cost.median:9.1f} {middle:11.1f} {f'{low:.1f} to {high:.1f}':>17s} {cost.fastest:9.1f} "
            f"{cpu:10.1f} {f'{cpu_low:.1f} to {cpu_high:.1f}':>17s} {listener[0]:>11s} {listener[1]:>10s}"
        )
    print()


def tight(transitions: int, count: int) -> list[float]:
    """Return, for each round, µs a call of listeners that do nothing, in a loop that does nothing else."""

    def seconds(listeners: int) -> float:
        trainer = stub_trainer(None, transitions)
        for _ in range(listeners):
            trainer.on("on_train_batch_end", lambda trainer: None)
        began = time.process_time()  # of one thread, which never waits
        steps = trainer.run().global_forward_batches
        return (time.process_time() - began) / steps

    seconds(TIGHT[1])
    slopes = []
    for _ in range(count):
        held = {listeners: seconds(listeners) for listeners in random.sample(TIGHT, len(TIGHT))}
        slopes.append((held[TIGHT[-1]] - held[0]) / TIGHT[-1] * 1e6)
    return slopes


def cheapest(found: Iterable[Cost]) -> Cost:
    """Return the one whose steps take the processor the least."""
    return min(found, key=lambda cost: cost.middle_cpu)


def compared(what: str, ours: Cost, theirs: Cost, budget: float | None) -> Iterator[Figure]:
    """Yield the share of ours in theirs, by the clock and in time of the processor."""
    for told, a, b in (
        ("", ours.middle, theirs.middle),
        (", in time of the processor", ours.middle_cpu, theirs.middle_cpu),
    ):
        note = f"{a:.1f} µs of {b:.1f} of {theirs.name}"
        yield Figure(f"a step with the {what}{told}", a / b if b > 0 else float("inf"), "", budget, note=note)


def figures(found: Sequence[Cost], slopes: Sequence[float]) -> Iterator[Figure]:
    """Yield what was found, and how it stands to what is asked for."""
    named = {cost.name: cost for cost in found}
    on, off, ignite = named.get(ON), named.get(OFF), named.get(IGNITE)
    peers = [cost for cost in found if cost.name not in (ON, OFF, *BY_HAND)]
    by_hand = [cost for cost in found if cost.name in BY_HAND]
    if on and ignite:
        yield from compared("journal on, of ignite's", on, ignite, 1 / 2)
    if on and peers:
        yield from compared("journal on, of the cheapest peer's", on, cheapest(peers), 1 / 2)
    if on and by_hand:
        yield from compared("journal on, of the cheapest loop's by hand", on, cheapest(by_hand), None)
    if off and ignite:
        yield from compared("journal off, of ignite's", off, ignite, 1 / 5)
    heard = [cost for cost in (on, off) if cost and cost.calls]
    for told, calls in (
        ("", [call for cost in heard for call in cost.calls]),
        (", in time of the processor", [call for cost in heard for call in cost.calls_cpu]),
    ):
        if calls:
            name = f"a listener that does nothing, in a training run{told}"
            yield Figure(name, statistics.median(calls), "µs", 0.2, note=f"{TIGHT[0]} against {TIGHT[-1]}")
    note = f"{TIGHT[0]} against {TIGHT[-1]}, and no other work"
    yield Figure("a listener that does nothing, in a tight loop", statistics.median(slopes), "µs", 0.2, note=note)
    for cost in found:
        low, middle, high = quartiles(cost.above)
        note = f"quartiles {low:.1f} and {high:.1f}; fastest rounds {cost.fastest:.1f}; processor {cost.middle_cpu:.1f}"
        note = f"{note}; {cost.releases}" if cost.releases else note
        yield Figure(f"a step, {cost.name}", middle, "µs", note=note)
        if cost.calls and cost.name not in (ON, OFF):
            note = f"in time of the processor {statistics.median(cost.calls_cpu):.2f}"
            yield Figure(f"a listener, {cost.name}", statistics.median(cost.calls), "µs", note=note)


def measure(options: argparse.Namespace) -> list[Figure]:
    """Run all that was asked for."""
    count, steps = (1, 3) if options.quick else (options.rounds, options.steps)
    with workers(wanted(options.only), steps) as running:
        running = rounds(running, count)
        found = sorted((cost for worker in running for cost in costs(worker, steps)), key=lambda cost: cost.middle)
    if running:
        show(found, running, steps)
    return list(figures(found, tight(2000 if options.quick else 20_000, 1 if options.quick else 15)))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=36, help="each contender runs once in each (36)")
    options.add_argument("--steps", type=int, default=200, help="steps that are timed in a run (200)")
    options.add_argument("--only", metavar="A,B", help=f"of {', '.join([OURS, *ENVIRONMENTS])}")
    finish(measure, options.parse_args())


if __name__ == "__main__":
    main()
