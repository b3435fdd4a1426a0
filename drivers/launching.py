"""Launching: one process runs its own command again, so many times, and waits for what comes of it.

The work is torch's own launcher's, as in `torchrun --standalone`: the environment of the processes, where they find
each other, their output, and that none is left. A process that was launched so finds that environment, as under
torchrun itself, and launches nothing.
"""

from __future__ import annotations

import builtins
import multiprocessing
import os
import signal
import sys
import threading
import uuid
from dataclasses import fields
from types import FrameType
from typing import Any, NoReturn

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from tachograph.states.errors import CallerError

from .launch_environment import OURS
from .output import OutputOfOthers

PATIENCE = 600
"""Seconds that the processes have after a signal, for their snapshot, before they are killed; a second signal to the
launcher doesn't wait. TORCH_ELASTIC_SHUTDOWN_TIMEOUT is another number of them."""


def launch(processes: int, output: str) -> NoReturn:
    """Run this process's command again in so many processes, wait for their end, and end this one.

    SIGTERM, SIGINT and SIGUSR1 are passed on to each of them, once.

    Args:
        processes: how many, >= 1.
        output: what becomes of the output of all but rank 0; see `output.OutputOfOthers`.

    Raises:
        SystemExit: always. 0 if all ended well; else the status of the one that failed first, 128 + n if signal n
            ended it; 128 + n too if signal n ended this process.
        CallerError: there is no script to run again, or `output` can't be used.
    """
    command = again()
    config = _config(processes, output)
    os.environ[OURS] = str(os.getpid())
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, _cores() // processes)))
    sys.stdout.flush()
    sys.stderr.flush()
    raise SystemExit(_status(config, command))


def again() -> list[str]:
    """Return the command that this process was started by, with Python's own options.

    Raises:
        CallerError: it isn't one that can be run again: a REPL, a notebook, `python -c`, or a process that
            `multiprocessing` started.
    """
    main = sys.modules["__main__"]
    file = getattr(main, "__file__", None)
    prompt = hasattr(sys, "ps1") or bool(sys.flags.interactive) or hasattr(builtins, "get_ipython")
    piped = main.__spec__ is None and not os.path.isfile(file or "")  # python - < script
    if file is None or piped or prompt or multiprocessing.parent_process() is not None:
        raise CallerError(
            "several devices or processes are asked for, and each runs the script anew: here there is no script to "
            "run. Put the code into a file and start it with `python file.py`, or with "
            "`torchrun --nproc-per-node=2 file.py`"
        )
    command = [sys.executable, *sys.orig_argv[1:]]
    if main.__spec__ is None and sys.argv[0] in command:  # as a path, it holds although the directory was changed
        command[command.index(sys.argv[0])] = os.path.abspath(file)
    return command


def _config(processes: int, output: str) -> LaunchConfig:
    settings: dict[str, Any] = {
        "min_nodes": 1,
        "max_nodes": 1,
        "nproc_per_node": processes,
        "run_id": uuid.uuid4().hex,
        "rdzv_backend": "c10d",
        "rdzv_endpoint": "localhost:0",  # port 0: one that is free
        "local_addr": "localhost",
        "max_restarts": 0,
        "logs_specs": OutputOfOthers(output),
        "shutdown_timeout": int(os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", PATIENCE)),
    }
    known = {field.name for field in fields(LaunchConfig)}  # shutdown_timeout is younger than torch 2.4
    return LaunchConfig(**{name: value for name, value in settings.items() if name in known})


def _status(config: LaunchConfig, command: list[str]) -> int:
    _pass_on_usr1()
    words = [word.replace("$", "$$") for word in command]  # the launcher fills in what stands behind a $
    try:
        elastic_launch(config, words[0])(*words[1:])
    except ChildFailedError as error:
        code: int = error.get_first_failure()[1].exitcode
        return code if code > 0 else 128 - code
    except SignalException as error:
        return 128 + int(error.sigval)
    except KeyboardInterrupt:  # before torch's launcher listens to it
        return 128 + signal.SIGINT
    return 0


def _pass_on_usr1() -> None:
    """Have SIGUSR1 passed on as the others, which torch's launcher sees to itself; a handler of the user's stays."""
    number = getattr(signal, "SIGUSR1", None)
    main = threading.current_thread() is threading.main_thread()
    if main and number is not None and signal.getsignal(number) is signal.SIG_DFL:
        signal.signal(number, _raise)


def _raise(number: int, frame: FrameType | None) -> NoReturn:
    raise SignalException(f"signal {number}", sigval=signal.Signals(number))


def _cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


__all__ = ["PATIENCE", "again", "launch"]
