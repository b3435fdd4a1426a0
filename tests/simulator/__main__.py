"""`python -m tests.simulator --seed N` tells the story of one run; `--runs M` looks for seeds that fail."""

from __future__ import annotations

import argparse
import logging
import sys

from . import Broken, simulate


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulator", description=__doc__)
    parser.add_argument("--seed", type=int, default=None, help="tell the story of this run")
    parser.add_argument("--runs", type=int, default=2000, help="how many runs to simulate")
    parser.add_argument("--first", type=int, default=0, help="the first one's seed")
    parser.add_argument("--go-on", action="store_true", help="don't end at the first failure")
    given = parser.parse_args()
    logging.disable()  # what a life has to say of its errors is in its story
    failed = 0
    for seed in [given.seed] if given.seed is not None else range(given.first, given.first + given.runs):
        try:
            story = simulate(seed)
        except Broken as broken:
            failed += 1
            print(broken, f"\nagain: python -m tests.simulator --seed {seed}\n", flush=True)
            if not given.go_on:
                break
        else:
            if given.seed is not None:
                print("\n".join(story))
    if given.seed is None:
        print(f"{failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
