"""Makes the environments of the peers that `overhead.py` measures: all that are missing, or those that are named.

    python benchmarks/peers                       those that are missing or outdated
    python benchmarks/peers ignite lightning      these, anew

They lie in `.venv-peers/`, about 1.5 GB; torch is the one of this Python, which is linked. Without them `overhead.py`
measures what is there.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from environments import ENVIRONMENTS, FOLDER, link_torch


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", nargs="*", help=f"one of {', '.join(ENVIRONMENTS)}")
    named = parser.parse_args().peer
    if unknown := sorted(set(named) - set(ENVIRONMENTS)):
        parser.error(f"no peer is called {', '.join(unknown)}; there are {', '.join(ENVIRONMENTS)}")
    wanted = [ENVIRONMENTS[name] for name in named] or [each for each in ENVIRONMENTS.values() if each.lacking]
    link_torch()
    failed = 0
    for environment in wanted:
        print(f"{environment.name}: {', '.join((*environment.alone, *environment.requires))}", flush=True)
        try:
            environment.make()
        except subprocess.CalledProcessError as error:
            failed += 1
            said = [line for line in (error.stderr or "").splitlines() if not line.startswith("WARNING")]
            print("  not installed, and left out: " + " ".join(said[-3:] or [str(error)]))
    print(f"{len(wanted) - failed} made in {FOLDER}" if wanted else f"nothing is missing in {FOLDER}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
