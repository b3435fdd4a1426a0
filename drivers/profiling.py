"""torch's profiler, told when a step is over, and its traces, written as Chrome reads them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from tachograph.states.errors import CallerError, nearest

_OURS = {"schedule", "activities", "on_trace_ready"}


def profiler(
    schedule: Sequence[int] | None,
    activities: Sequence[Any] | None,
    ready: Callable[[], Path],
    options: Mapping[str, Any],
) -> Any:
    """Make a profiler with `start()`, `step()` and `stop()`.

    Args:
        schedule: steps to wait, to warm up, to record, and how often; None records from the start to the end.
        activities: "cpu", "cuda", ...; None: all that are there.
        ready: says into which file a trace goes that is complete; its folder exists.
        options: further keyword arguments of `torch.profiler.profile`.

    Raises:
        CallerError: an activity or an option isn't known.
    """
    known = set(inspect.signature(torch.profiler.profile).parameters) - _OURS
    for name in options:
        if name not in known:
            raise CallerError(f"torch.profiler.profile takes no {name!r}. {nearest(name, known)}")
    return torch.profiler.profile(
        activities=None if activities is None else [_activity(name) for name in activities],
        schedule=None if schedule is None else _scheduled(schedule),
        on_trace_ready=lambda done: done.export_chrome_trace(str(ready())),
        **options,
    )


def _scheduled(schedule: Sequence[int]) -> Any:
    wait, warmup, active, repeat = schedule
    return torch.profiler.schedule(wait=wait, warmup=warmup, active=active, repeat=repeat)


def _activity(name: Any) -> ProfilerActivity:
    if isinstance(name, ProfilerActivity):
        return name
    known = ProfilerActivity.__members__
    if not isinstance(name, str) or name.upper() not in known:
        raise CallerError(f"there is no activity {name!r} to profile. Known: {', '.join(map(str.lower, known))}")
    return known[name.upper()]
