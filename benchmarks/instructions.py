"""How many instructions a training step takes above a bare loop's: ours with the journal on and off, and others'.

The work is that of `overhead.py`, and so are the environments; the processes run under callgrind, which counts what all
of their threads execute, but not what the kernel does for them. The same steps take the same instructions, within a few
thousand, whatever else the machine does. An instruction isn't a time: what waits for memory costs more than others.
Needs valgrind; a library needs its environment, which `python benchmarks/peers` makes.

    python benchmarks/instructions.py                 ours, ignite's and the cheapest peer's: two minutes
    python benchmarks/instructions.py --only tachograph,ignite,fastnlp,skorch,torchtnt
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from figures import Figure, finish, parser
from overhead import BARE, BY_HAND, IGNITE, OFF, ON
from peers.environments import OURS, python_of, setting_of, wanted

HERE = Path(__file__).parent
COUNT = ["--tool=callgrind", "--instr-atstart=no", "--dump-before=getppid"]


def counted(name: str, python: Path, steps: int) -> dict[str, float]:
    """Run a library's contenders under callgrind; return the instructions of a step of each.

    Raises:
        RuntimeError: it ended with an error.
    """
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            ["valgrind", *COUNT, f"--callgrind-out-file={folder}/out", python, "-m", "peers.counted", name, str(steps)],
            cwd=HERE,
            env={**setting_of(name), "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{name} ended: {' '.join(done.stderr.strip().splitlines()[-1:])}")
        contenders = json.loads(done.stdout)
        totals = [total_of(Path(f"{folder}/out.{number}")) for number in range(2, 2 * len(contenders) + 1, 2)]
    return {title: total / steps for title, total in zip(contenders, totals, strict=True)}


def total_of(path: Path) -> int:
    """Return how many instructions callgrind wrote down in a file."""
    found = re.search(r"^totals: (\d+)$", path.read_text(encoding="utf-8"), re.M)
    if found is None:
        raise RuntimeError(f"{path} has no line 'totals: ...', which callgrind writes at its end")
    return int(found[1])


def figures(found: Mapping[str, float], bare: Mapping[str, float]) -> Iterator[Figure]:
    """Yield what was counted.

    Args:
        found: contender -> instructions of a step.
        bare: contender -> those of the bare loop in its process.
    """
    above = {title: count - bare[title] for title, count in found.items()}
    peers = [title for title in above if title not in (ON, OFF, *BY_HAND)]
    cheapest = min(peers, key=lambda title: above[title], default=IGNITE)
    compared = (
        (ON, IGNITE, "ignite's", 1 / 2),
        (ON, cheapest, "the cheapest peer's", 1 / 2),
        (OFF, IGNITE, "ignite's", 1 / 5),
    )
    for ours, theirs, told, budget in compared:
        if ours in above and above.get(theirs, 0) > 0:
            note = f"{above[ours] / 1000:,.0f} thousand of {above[theirs] / 1000:,.0f} of {theirs}"
            name = f"instructions of a step with the {ours}, of {told}"
            yield Figure(name, above[ours] / above[theirs], "", budget, note=note)
    for title, more in sorted(above.items(), key=lambda pair: pair[1]):
        note = f"{more / bare[title]:+.1%} of the bare loop's {bare[title] / 1000:,.0f}"
        yield Figure(f"instructions of a step, {title}", more / 1000, "thousand", note=note)


def measure(options: argparse.Namespace) -> list[Figure]:
    """Count all that was asked for."""
    if shutil.which("valgrind") is None:
        print("nothing was counted: there's no valgrind here (apt-get install valgrind)")
        return []
    found: dict[str, float] = {}
    bare: dict[str, float] = {}
    for name in wanted(options.only):
        if (python := python_of(name)) is None:
            continue
        try:
            counts = counted(name, python, 3 if options.quick else options.steps)
        except RuntimeError as error:
            print(f"left out: {error}")
            continue
        loop = counts.pop(BARE)
        found.update(counts)
        bare.update(dict.fromkeys(counts, loop))
    return list(figures(found, bare))


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--steps", type=int, default=100, help="steps that are counted (100)")
    options.add_argument("--only", metavar="A,B", default=f"{OURS},ignite,fastnlp", help="which (%(default)s)")
    finish(measure, options.parse_args())


if __name__ == "__main__":
    main()
