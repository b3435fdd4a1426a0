"""Asking Slurm to put a job back into its queue, when it is about to run out of its time.

Slurm tells a job with a signal, `sbatch --signal=USR1@90`. A SIGTERM is no reason to come back: that is how `scancel`
ends a job, and a job that Slurm preempts is requeued by Slurm itself.
"""

from __future__ import annotations

import os
import subprocess
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from tachograph.states.errors import CallerError

Requeue = Callable[[], None]
PATIENCE = 60.0
"""Seconds that a command may take."""


def requeue_of(given: Any, environ: Mapping[str, str] = os.environ) -> Requeue | None:
    """Return what asks for the requeue; None where nobody asked for one, or this is no Slurm job.

    It raises nothing: if the job couldn't be requeued it warns, and the snapshot is on the disk all the same.

    Args:
        given: True for `scontrol requeue <job>`, a sequence of strings for another command that the job's id is
            appended to, or `f(job_id)`; False or None: no requeue.
        environ: the environment: `SLURM_JOB_ID`, and for a job array `SLURM_ARRAY_JOB_ID` and `SLURM_ARRAY_TASK_ID`.

    Raises:
        CallerError: `given` is something else.
    """
    if given is None or given is False:
        return None
    words = isinstance(given, (list, tuple)) and given and all(isinstance(word, str) for word in given)
    if given is not True and not callable(given) and not words:
        raise CallerError(
            f"requeue must be True, a command as a list of strings, or a function of (job_id), not {given!r}"
        )
    job = _job(environ)
    if job is None:
        return None
    if callable(given):
        return lambda: _attempt(lambda: given(job), getattr(given, "__qualname__", repr(given)))
    command = [*(("scontrol", "requeue") if given is True else given), job]
    return lambda: _attempt(lambda: _call(command), " ".join(command))


def _job(environ: Mapping[str, str]) -> str | None:
    array, task = environ.get("SLURM_ARRAY_JOB_ID"), environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else environ.get("SLURM_JOB_ID") or None


def _call(command: list[str]) -> None:
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=PATIENCE)
    if done.returncode != 0:
        raise OSError(f"it ended with status {done.returncode}: {done.stderr.strip()}")


def _attempt(ask: Callable[[], Any], name: str) -> None:
    try:
        ask()
    except Exception as error:
        warnings.warn(f"the job wasn't requeued by {name!r}: {error}", stacklevel=2)
