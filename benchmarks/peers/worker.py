"""A contender's process: it is asked for one run at a time, and answers how long that took.

    python -m peers.worker ignite 200       from `benchmarks/`, with the peer's Python

It says first what it can run and with which releases, then reads lines such as `["ignite", 10]`, a contender and how
many listeners, and answers each with `[seconds, seconds of the processor]`. A contender that can't be run is told of at
the beginning, with the reason.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import platform
import sys
import tempfile
from importlib.metadata import version

from .work import Work, answering, bare

LISTENERS = 10
SHARED = ("torch", "numpy")


def main() -> None:
    name, steps = sys.argv[1], int(sys.argv[2])
    said = answering()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        work = Work(steps, folder)
        peer = importlib.import_module(f"{__package__}.{name}")
        contenders, failed = {"bare loop": bare}, {}
        work.timed(bare, 0)
        for title, run in peer.CONTENDERS.items():
            try:
                work.timed(run, 0)
                if peer.LISTENER is not None:
                    work.checked(run, LISTENERS, peer.LISTENER.__code__)
                contenders[title] = run
            except Exception as error:
                failed[title] = f"{type(error).__name__}: {error}"
        releases = {package: version(package) for package in (*SHARED, *peer.PACKAGES)}
        about = {"versions": {"python": platform.python_version(), **releases}, "failed": failed}
        counts = [0] if peer.LISTENER is None else [0, LISTENERS, *getattr(peer, "MORE_LISTENERS", ())]
        print(json.dumps({**about, "contenders": [*contenders], "listeners": counts}), file=said)
        for line in sys.stdin:
            title, listeners = json.loads(line)
            gc.collect()
            print(json.dumps(work.timed(contenders[title], listeners)), file=said)
        os.chdir("/")


if __name__ == "__main__":
    main()
