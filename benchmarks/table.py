"""Every benchmark in turn, and the tables of what they measured: what `make bench` calls.

Each script runs in a process of its own. Its figures go into `benchmarks/figures.json`, and from there into the tables
of benchmarks/README.md and docs/performance.md, and into the plot. What isn't measured keeps its last figures.

    python benchmarks/table.py                          all of them: about twenty minutes on a machine left alone
    python benchmarks/table.py --only overhead,growth   these; the others' last figures stay
    python benchmarks/table.py --quick                  as short as it can be; prints the budgets and keeps nothing
    python benchmarks/table.py --only ""                measures nothing: tables and plot of what is kept
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from figures import Figure, Run, keep, kept, load, rows_of
from plot import draw

HERE = Path(__file__).parent
PAGES = (HERE / "README.md", HERE.parent / "docs" / "performance.md")
PLOT = HERE.parent / "docs" / "performance.svg"
ORDER = ("overhead", "instructions", "snapshot", "resume", "reading", "starting", "growth", "ranks", "fingerprints")
"""Of the tables; a script that isn't here comes last."""
SCRIPTS = sorted(
    (path.stem for path in HERE.glob("*.py") if re.search(r"^def measure\(options", path.read_text("utf-8"), re.M)),
    key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), name),
)
MARKED = re.compile(r"(<!-- measured: ([^\n]*) -->\n)(.*?)(<!-- end of measured -->)", re.S)

COSTS = (
    ("a step with the journal, above a bare loop's", "overhead", "a step, journal on"),
    ("a step without a journal, above a bare loop's", "overhead", "a step, journal off"),
    ("a transition's record in the journal, in a loop that does nothing else", "growth", "an append, by records"),
    (
        "the first listener at each batch's end, with a journal, in a torch run",
        "growth",
        "the first listener at each batch's end, with a journal",
    ),
    ("a further one that does nothing", "growth", "a listener at each batch's end"),
    ("the same, a callback's method", "growth", "a callback at each batch's end"),
    ("the same, inside a step", "growth", "a listener inside a step"),
    ("the same, given the event", "growth", "a listener that is given the event"),
    ("the same, thinned by `every=100`, a batch", "growth", "a listener with every=100"),
    ("fingerprints of a small MLP every 100 updates, a step", "fingerprints", "32-64-2: every 100 updates"),
    ("fingerprints of it at each update", "fingerprints", "32-64-2: at each update"),
    ("fingerprints of 8 MB of weights at each update", "fingerprints", "512-1024-1024-512: at each update"),
    ("a vote of the most ranks, when one of them asks for something", "ranks", "a vote, by ranks"),
)
"""What a user can turn on and off: (title, script, figure or curve; of a curve, its last point)."""

HELD = (("host reads of a step, unless a listener asks", "tests/test_host_reads.py::test_a_step_reads_nothing"),)
"""What must be nought, and is counted by a test at every change: (title, test)."""

UNKNOWN = "what would close it isn't known."
CLOSES = (
    (
        "overhead",
        "journal on",
        "a step is two transitions, and what is left of them is Python between torch's operations, with cold caches. "
        "Folds and commits that are compiled would take less.",
    ),
    (
        "snapshot",
        "the stall",
        "the run waits for one copy, and where the page cache takes a `torch.save` at the speed of memory, a copy is "
        "more than 15 % of it. Less would take a copy that the run doesn't wait for: of each tensor before its update.",
    ),
    (
        "reading",
        "records read",
        "a record is made in Python for each line, beside a checksum and an unpacking in C, all on one core. "
        "Files that are unpacked and checked by other threads would overlap with it.",
    ),
    (
        "starting",
        "tachograph",
        "what is left is the start of Python and the imports that reading a journal takes.",
    ),
)
"""What would close a budget that is missed: (script, a part of the figure's name, sentences); the first that fits."""


def run(script: str, quick: bool) -> Run | None:
    """Run a script; None if it fails."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "figures.json"
        command = [sys.executable, str(HERE / f"{script}.py"), "--json", str(told), *(["--quick"] if quick else [])]
        print(f"-- {script}.py", flush=True)
        began = time.monotonic()
        status = subprocess.run(command, check=False).returncode
        print(f"   {time.monotonic() - began:.0f} s", flush=True)
        if status or not told.exists():
            print(f"   {script}.py ended with status {status}; its last figures stay", file=sys.stderr)
            return None
        return load(told)


# -- the tables --------------------------------------------------------------------------------------------


def budgets(runs: Mapping[str, Run]) -> str:
    """Return the table of all budgets, what closes those that are missed, and where it was measured."""
    asked = [(script, figure) for script in SCRIPTS if script in runs for figure in runs[script].figures]
    rows = [(script, figure) for script, figure in asked if figure.budget is not None]
    lines = ["| | measured | asked | | by |", "|---|---|---|---|---|"]
    for script, figure in rows:
        verdict = "met" if figure.met else f"**{figure.verdict}**"
        lines.append(f"| {figure.name} | {figure.measured} | {figure.asked} | {verdict} | `{script}.py` |")
    lines += [f"| {title} | 0 | ≤ 0 | met | `{test.partition('::')[0]}` |" for title, test in HELD]
    missed = [(script, figure) for script, figure in rows if not figure.met]
    rows_met = len(rows) - len(missed) + len(HELD)
    lines += ["", f"{rows_met} of {len(rows) + len(HELD)} are met.", ""]
    if lacking := ", ".join(f"`{script}.py`" for script in SCRIPTS if script not in runs):
        lines += [f"Not measured yet: {lacking}.", ""]
    lines += [f"- {_closing(script, figure)}" for script, figure in missed]
    return "\n".join([*lines, *([""] if missed else []), where(runs)])


def _closing(script: str, figure: Figure) -> str:
    return f"**{figure.name}** is {figure.verdict}: {closing(script, figure) or UNKNOWN}"


def closing(script: str, figure: Figure) -> str:
    """Return what would close a budget that is missed; "" where nobody has found out."""
    return next((how for where, part, how in CLOSES if where == script and part in figure.name), "")


def where(runs: Mapping[str, Run]) -> str:
    """Say when and on what the figures were made."""
    told = []
    for script in (script for script in SCRIPTS if script in runs):
        about = runs[script].about
        begun, ended = about["load"]
        told.append(f"| `{script}.py` | {about['at']} | {about['seconds']:.0f} s | {begun} to {ended} |")
    machines = {f"{run.about['cpu']}, {run.about['cores']} cores" for run in runs.values()}
    versions = {", ".join(f"{name} {of}" for name, of in run.about["versions"].items()) for run in runs.values()}
    told = ["| | when | took | load of the machine |", "|---|---|---|---|", *told]
    return "\n".join([f"Measured on {'; '.join(sorted(machines))}, with {'; '.join(sorted(versions))}.", "", *told])


def figures_of(run: Run) -> str:
    """Return the table of all that one script measured."""
    lines = ["| | measured | asked | |", "|---|---|---|---|"]
    for name, measured, asked, verdict, note in rows_of(run.figures):
        end = "; ".join(filter(None, (verdict if verdict in ("", "met") else f"**{verdict}**", note)))
        lines.append(f"| {name} | {measured} | {asked} | {end} |")
    return "\n".join(lines)


def costs(runs: Mapping[str, Run]) -> str:
    """Return the table of what a user can turn on and off."""
    lines = ["| | costs | measured by |", "|---|---|---|"]
    for title, script, name in COSTS:
        run = runs.get(script)
        found = [f for f in run.figures if name in (f.name, f.series)] if run is not None else []
        lines.append(f"| {title} | {found[-1].measured if found else 'not measured'} | `{script}.py` |")
    return "\n".join(lines)


def made(name: str, runs: Mapping[str, Run]) -> str:
    """Return what stands between the markers of this name: "budgets", "costs", or a script's name."""
    if name in ("budgets", "costs"):
        return (budgets if name == "budgets" else costs)(runs)
    if name not in SCRIPTS:
        raise ValueError(f"a page has a marker for {name!r}; there are budgets, costs, {', '.join(SCRIPTS)}")
    return figures_of(runs[name]) if name in runs else "Not measured yet."


def filled(text: str, runs: Mapping[str, Run]) -> str:
    """Return a page with its tables made anew."""
    return MARKED.sub(lambda found: f"{found[1]}\n{made(found[2], runs)}\n\n{found[4]}", text)


def write(runs: Mapping[str, Run]) -> None:
    """Write the tables and the plot."""
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8"), runs), encoding="utf-8")
    draw(PLOT)


# -- the command -------------------------------------------------------------------------------------------


def chosen(names: str | None) -> Iterator[str]:
    """Yield the scripts that `--only` names; all without it."""
    for name in SCRIPTS if names is None else filter(None, names.split(",")):
        if name not in SCRIPTS:
            sys.exit(f"there is no benchmark {name!r}: there are {', '.join(SCRIPTS)}")
        yield name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", metavar="A,B", help=f"of {', '.join(SCRIPTS)}")
    parser.add_argument("--quick", action="store_true", help="as short as it can be; nothing is kept")
    options = parser.parse_args()
    failed = []
    runs = {} if options.quick else kept()
    for script in list(chosen(options.only)):
        measured = run(script, options.quick)
        if measured is None:
            failed.append(script)
            continue
        runs[script] = measured
        if not options.quick:  # at once: what comes later may be interrupted
            keep(runs)
    if not options.quick:
        write(runs)
    print(budgets(runs))
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
