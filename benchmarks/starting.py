"""How soon a command answers, and what an import takes.

Each command is started anew, and the clock stops at the first byte of its output; the run that they read has a million
transitions. Of an import the processor's time of a whole process is measured, above one that imports nothing. Medians
over the rounds are shown. The modules were compiled before, as those of an installed package are. That no reading
command imports torch is asserted.

    python benchmarks/starting.py --rounds 11
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from figures import Figure, finish, parser
from work import stub_run

MAIN = "from tachograph.engine.cli import main; main()"
LOADED = """
import atexit, sys
from tachograph.engine.cli import main
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
main()
"""
COMMANDS = (
    "--help",
    "show RUN",
    "show RUN --at 5",
    "show RUN --at 500000",
    "note RUN 5 slow",
    "note RUN --list",
    "snapshots ls RUN",
    "graph",
    "diff RUN COPY",
)
"""What is typed after `tachograph`; RUN is the run directory, COPY one of a run that is equal."""
IMPORTS = {
    "tachograph.states": "import tachograph.states",
    "tachograph.drivers": "import tachograph.drivers",
    "tachograph.engine": "import tachograph.engine",
    "Journal, replay and diff": "from tachograph.engine import Journal, diff, replay",
    "Trainer": "from tachograph.engine import Trainer",
}
ANSWER = 0.3


@contextmanager
def compiled() -> Iterator[None]:
    """Have processes keep what they compile, wherever the environment forbids it or puts it."""
    before = dict(os.environ)
    with tempfile.TemporaryDirectory() as folder:
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = folder
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def first_output(command: Sequence[str]) -> float:
    """Return the seconds until the first byte; the rest of the output is let fall."""
    began = time.perf_counter()
    with subprocess.Popen([sys.executable, "-c", MAIN, *command], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.read(1), f"{command} said nothing"
        spent = time.perf_counter() - began
        process.communicate()
    return spent


def imports_torch(code: str, command: Sequence[str] = ()) -> bool:
    done = subprocess.run([sys.executable, "-c", code, *command], capture_output=True, text=True, check=False)
    loaded = done.stderr.split()
    assert "sys" in loaded, done.stderr
    return "torch" in loaded


def cpu_of(code: str) -> float:
    """Return the seconds of the processor that a process takes."""
    before = cpu_of_children()
    subprocess.run([sys.executable, "-c", code], check=True)
    return cpu_of_children() - before


def cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(options: argparse.Namespace) -> list[Figure]:
    rounds, transitions = (1, 4_000) if options.quick else (options.rounds, options.transitions)
    with compiled(), tempfile.TemporaryDirectory() as folder:
        return [*_of_commands(Path(folder), rounds, transitions), *_of_imports(rounds)]


def _of_commands(folder: Path, rounds: int, transitions: int) -> Iterator[Figure]:
    run, copy = folder / "run", folder / "copy"
    length = stub_run(run, transitions)
    shutil.copytree(run, copy)
    given = {"RUN": str(run), "COPY": str(copy), "500000": str(length // 2)}
    for typed in COMMANDS:
        command = [given.get(word, word) for word in typed.split()]
        assert not imports_torch(LOADED, command), f"{typed} imports torch"  # it compiles as well
        before = cpu_of_children()
        spent = [first_output(command) for _ in range(rounds)]
        cpu = (cpu_of_children() - before) / rounds
        note = f"fastest {min(spent):.2f}; {cpu:.2f} of the processor until it ends; imports no torch"
        yield Figure(f"tachograph {typed}", statistics.median(spent), "s", ANSWER, note=note)


def _of_imports(rounds: int) -> Iterator[Figure]:
    told = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
    for name, code in IMPORTS.items():
        assert not imports_torch(told + code), f"{name} imports torch"
        above = statistics.median(cpu_of(code) - cpu_of("pass") for _ in range(rounds))
        yield Figure(f"import of {name}", above * 1e3, "ms", note="of the processor, above a bare process; no torch")


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=11, help="times that each is started (11)")
    options.add_argument("--transitions", type=int, default=1_000_000, help="of the run that is read (1000000)")
    finish(measure, options.parse_args())


if __name__ == "__main__":
    main()
