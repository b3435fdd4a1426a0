"""A contender's process under callgrind: it says where its steps begin and end, and callgrind counts in between.

    valgrind --tool=callgrind --instr-atstart=no --dump-before=getppid ... -m peers.counted ignite 20

Counting is turned on when all is imported and has run once. `getppid`, which nobody else calls, is where callgrind is
told to write what it has counted since the last time: before the first of the timed steps, and after the last of them.
Prints the contenders in the order in which they were counted.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import subprocess
import sys
import tempfile

from .work import Samples, Work, answering, bare


def main() -> None:
    name, steps = sys.argv[1], int(sys.argv[2])
    said = answering()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        work = Work(steps, folder)
        contenders = {"bare loop": bare, **importlib.import_module(f"{__package__}.{name}").CONTENDERS}
        for run in contenders.values():
            work.timed(run, 0)
        Samples.clock = staticmethod(lambda: (os.getppid(), 0))
        subprocess.run(["callgrind_control", "-i", "on", str(os.getpid())], check=True, stdout=subprocess.DEVNULL)
        for run in contenders.values():
            gc.collect()
            work.timed(run, 0)
        os.chdir("/")
    print(json.dumps([*contenders]), file=said)


if __name__ == "__main__":
    main()
