"""The two assertions: runs are made in a folder, held against each other, and the first difference is said."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs

from tachograph.states import CallerError

from . import processes as others
from . import runs as here
from .census import lost
from .findings import Parting, paragraphs, parting
from .places import Cut, cuts_of
from .runs import Job, Lived

Go = Callable[..., Lived]
"""`go(run_dir, number, ...)`: runs, here or in a process of its own."""
_KILLS = 3
_SHOWN = 6


def assert_deterministic(
    build: Callable[..., Any],
    steps: int | None = 20,
    *,
    runs: int = 2,
    processes: bool = False,
    run: Mapping[str, Any] | None = None,
    ignore: Sequence[str] = (),
    folder: str | Path | None = None,
) -> None:
    """Assert that equal trainers make equal runs: the same records, and the same bits at the end.

    Args:
        build: returns a new `Trainer`, with a model, an optimizer and data of its own, or a new `Engine`. It may take
            `run_dir` and `n_batches`; where it doesn't, they are set on the trainer.
        steps: batches of each run; None: as many as the trainer's own limits say. An `Engine` with a machine of your
            own runs to its end, unless `build` takes `n_batches`.
        runs: how many to compare, >= 2.
        processes: each in a process of its own, with another PYTHONHASHSEED; `build` is at the top of a module then.
        run: arguments of `run`, such as `{"num_eval_sanity_batch": 0}`.
        ignore: patterns of entries of a snapshot that may differ, such as "extra/listeners/callbacks/Clock/*".
        folder: where a folder for the runs is made, which goes with a success and stays with a failure; None: among
            the temporary files.

    Raises:
        AssertionError: two runs differ; it says from which transition on, in what, why, and what to try.
        CallerError: `build` can't be used.
    """
    __tracebackhide__ = True
    if runs < 2:
        raise CallerError(f"runs must be >= 2, not {runs}")
    with _folder(folder) as place:
        go = _goer(_job(build, steps, run), processes)
        first = go(place / "run-1", 1)
        for number in range(2, runs + 1):
            found = parting(first, go(place / f"run-{number}", number), ignore)
            if found is not None:
                head = f"two runs of {_called(build)} aren't equal: {found.said}"
                raise AssertionError(paragraphs(head, found))


def assert_resumes_exactly(
    build: Callable[..., Any],
    steps: int | None = 20,
    *,
    at: int | str | Collection[int] | None = None,
    kill: bool = False,
    run: Mapping[str, Any] | None = None,
    ignore: Sequence[str] = (),
    folder: str | Path | None = None,
) -> list[Cut]:
    """Assert that a run that is cut and gone on with ends as one that nothing happened to: same records, same bits.

    Give enough steps that the run validates, and begins a second epoch. Without `kill`, a cut is a copy of the run
    directory as a kill leaves it there, and everything is built anew in this process; a value that survives in this
    process (a module's global) is found with `kill=True` only.

    Args:
        build: as in `assert_deterministic`.
        steps: as in `assert_deterministic`.
        at: transitions to cut after; "all": after each; None: after one of every kind that the run has: in every state,
            before and after a validation, between two epochs, with an open accumulation window.
        kill: have processes killed by SIGKILL and gone on with in new ones, 3 times where `at` says nothing.
        run: arguments of `run`.
        ignore: patterns of entries of a snapshot that may differ.
        folder: where a folder for the runs is made, which goes with a success and stays with a failure; None: among
            the temporary files.

    Returns:
        Where the run was cut.

    Raises:
        AssertionError: a resumed run differs; it names the cut, the first transition that differs, and what wasn't
            restored.
        CallerError: `build` can't be used, or the run has no such transition.
    """
    __tracebackhide__ = True
    with _folder(folder) as place:
        job = _job(build, steps, run)
        go = _goer(job, kill)
        straight = go(place / "straight", 1)
        cuts = cuts_of(list(straight.journal), at, _KILLS if kill else None)
        if not cuts:
            raise CallerError("the run has no transition that it could be cut after: give it more steps")
        if kill:
            found = _killed(go, cuts, straight, place, ignore)
        else:
            found = _photographed(job, cuts, straight, place, ignore)
        if found is not None:
            cut, part = found
            which = "that nothing happened to" if cut is None else f"that is cut after {cut}"
            head = f"a run of {_called(build)} {which} doesn't end as the straight one does: {part.said}"
            raise AssertionError(paragraphs(head, part))
    return cuts


def _photographed(
    job: Job, cuts: Sequence[Cut], straight: Lived, place: Path, ignore: Sequence[str]
) -> tuple[Cut | None, Parting] | None:
    """Cut one run at all points and go on from each.

    Returns:
        The cut after which a run ends otherwise, and how; None as the cut: it does without one.
    """
    from tachograph.drivers import generators

    with generators.forked():
        again = here.photograph(job, place / "again", 2, [cut.seq for cut in cuts], place / "cuts")
        found = parting(straight, again, ignore)
        if found is not None:
            return None, found
        for cut in cuts:
            run_dir = place / "cuts" / str(cut.seq)
            census = run_dir.with_name(f"{cut.seq}.resumed.json")
            with _naming(cut, job.build, run_dir):
                resumed = here.go(job, run_dir, 3, resume=True, census_to=census)
            found = parting(straight, resumed, ignore)
            if found is not None:
                then, now = (json.loads(path.read_text()) for path in (here.census_of(run_dir), census))
                return cut, _explained(found, then, now)
            shutil.rmtree(run_dir)
    return None


def _killed(
    go: Go, cuts: Sequence[Cut], straight: Lived, place: Path, ignore: Sequence[str]
) -> tuple[Cut | None, Parting] | None:
    """Kill one run at each point, one life after the other, and go on to the end; returns as `_photographed`."""
    run_dir = place / "killed"
    for number, cut in enumerate(cuts):
        go(run_dir, 2 + number, resume=number > 0, kill_at=cut.seq)
    found = parting(straight, go(run_dir, 2 + len(cuts), resume=True), ignore)
    if found is None:
        return None
    before = [cut for cut in cuts if found.seq is None or cut.seq < found.seq]
    return (before[-1] if before else None), found


@contextmanager
def _naming(cut: Cut, build: Any, run_dir: Path) -> Iterator[None]:
    """Say of a run that can't be gone on with where it was cut."""
    try:
        yield
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise AssertionError(
            f"a run of {_called(build)} that is cut after {cut} can't be gone on with: {what}\n  It is kept: {run_dir}"
        ) from error


def _explained(found: Parting, then: Mapping[str, str], now: Mapping[str, str]) -> Parting:
    """Put what wasn't restored before the other causes."""
    missing = lost(then, now)[:_SHOWN]
    if not missing:
        return attrs.evolve(
            found,
            causes=[*found.causes, "nothing that model, data and callbacks keep in plain attributes explains it"],
            tries=["look for memory outside of them: a module's global, a file, a service, a library's cache"],
        )
    causes = [f"it isn't in the snapshot: {value}" for value in missing]
    return attrs.evolve(found, causes=[*causes, *found.causes], tries=list(dict.fromkeys(v.way for v in missing)))


def _job(build: Any, steps: int | None, run: Mapping[str, Any] | None) -> Job:
    if not callable(build):
        raise CallerError(f"build must be a function that returns a Trainer or an Engine, not {type(build).__name__}")
    if steps is not None and (type(steps) is not int or steps < 1):
        raise CallerError(f"steps must be a number of batches >= 1, or None, not {steps!r}")
    return Job(build, steps, dict(run or {}))


def _goer(job: Job, processes: bool) -> Go:
    if processes:
        name = others.name_of(job.build)
        return lambda run_dir, number, **how: others.go(name, job.steps, job.run, run_dir, number, **how)

    def go(run_dir: Path, number: int) -> Lived:
        from tachograph.drivers import generators

        with generators.forked():
            return here.go(job, run_dir, number)

    return go


@contextmanager
def _folder(given: str | Path | None) -> Iterator[Path]:
    """Make a folder for runs, in the one that was given. It goes if all is well, since nobody looks into it then."""
    if given is not None:
        Path(given).mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="tachograph-", dir=given))
    yield place
    shutil.rmtree(place, ignore_errors=True)


def _called(build: Any) -> str:
    return f"{getattr(build, '__name__', type(build).__name__)}()"


__all__ = ["assert_deterministic", "assert_resumes_exactly"]
