"""The same runs in processes of their own: another hash seed, nothing left over of an earlier run, real kills."""

from __future__ import annotations

import importlib.util
import inspect
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tachograph.states import CallerError

from ..building import builder_of
from .runs import Build, Job, Lived

_PATIENCE = 600


def name_of(build: Build) -> str:
    """Name a builder so that another process finds it: "module:function", or "path/to/file.py:function".

    Raises:
        CallerError: it can't be found by a name.
    """
    function, module = getattr(build, "__qualname__", ""), getattr(build, "__module__", "")
    if not function or not function.isidentifier() or getattr(sys.modules.get(module), function, None) is not build:
        raise CallerError(
            f"other processes can't import {function or build!r}: define build at the top of a module, under its own "
            "name, or leave out processes=True and kill=True"
        )
    file = inspect.getsourcefile(build)
    try:
        spec = None if module == "__main__" else importlib.util.find_spec(module)
    except (ImportError, ValueError):
        spec = None
    if spec is None and file:
        return f"{os.path.abspath(file)}:{function}"
    return f"{module}:{function}"


def go(
    build: str, steps: int | None, arguments: Mapping[str, Any], run_dir: Path, number: int, *, resume: bool = False,
    kill_at: int | None = None,
) -> Lived:  # fmt: skip
    """Run, or go on, in a new process.

    Args:
        build: the builder's name.
        steps: batches in all; None: to the trainer's own limit.
        arguments: of its `run`.
        run_dir: where.
        number: of the process; its hash seed, and the seed of what it draws before.
        resume: go on with the run that is there.
        kill_at: die by SIGKILL when the snapshot of this transition is published; None: run to the end.

    Raises:
        AssertionError: the process failed; what it said is in the message.
    """
    job = {"build": build, "steps": steps, "run": dict(arguments), "run_dir": str(run_dir), "seed": number}
    environment = {**os.environ, "PYTHONHASHSEED": str(number), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    try:
        ended = subprocess.run(
            [sys.executable, "-c", "from tachograph.engine.testing.processes import child; child()"],
            input=json.dumps({**job, "resume": resume, "kill_at": kill_at}),
            capture_output=True,
            text=True,
            env=environment,
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"a process that ran build() hasn't ended within {_PATIENCE} seconds") from error
    wanted = 0 if kill_at is None else -signal.SIGKILL
    if ended.returncode != wanted:
        said = "\n".join(ended.stderr.splitlines()[-30:])
        raise AssertionError(f"a process that ran build() ended with status {ended.returncode}:\n{said}")
    return Lived.of(run_dir)


def child() -> None:
    """Do what standard input says; the process's whole work."""
    told = json.loads(sys.stdin.read())
    job = Job(builder_of(told["build"]), told["steps"], told["run"])
    run_dir, kill_at = Path(told["run_dir"]), told["kill_at"]
    from . import runs

    engine = job.engine(run_dir, told["seed"])
    runs._keep_batches(engine, run_dir)

    def ask(engine: Any) -> None:
        if engine.trainer_state.seq in (1, kill_at):
            engine.request_snapshot()

    def die(engine: Any, path: Path | None = None) -> None:
        seq = engine.trainer_state.seq if path is None else int(path.name[:12])
        if seq == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    runs.after_each(engine, ask)
    runs.when_kept(engine, die)
    runs.run(engine, job, told["resume"])
