"""The worker processes of a loader: what signals do to them, and how they are ended.

A terminal sends Ctrl-C to the workers too, and many a scheduler its SIGTERM. It is the training process that heeds
these, at its next transition, and until then it needs its workers. So they pass over the first signal; a second one
acts as ever.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

from .double import double_of

_DEFAULTS: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
if hasattr(signal, "SIGUSR1"):
    _DEFAULTS[signal.SIGUSR1] = signal.SIG_DFL


class Sheltered:
    """Stands in for a `worker_init_fn`: the user's, after the signals were taken care of.

    Until then a worker that has just been started would die of them, so they are held back.

    A worker that lost its training process while it started ends here: torch watches whom it has for a parent when it
    has started, which may be the one that takes in orphans, for ever.

    Args:
        init: the user's; None without one.
        is_child: the training process itself starts the worker, and no server on its behalf.
    """

    def __init__(self, init: Callable[[int], None] | None, is_child: bool) -> None:
        self._init = init
        self._is_child = is_child
        self._held_back: set[int] = set()

    @contextlib.contextmanager
    def starting(self) -> Iterator[None]:
        """Start workers in the body: they, and the thread that starts them, get signals only when they are ready."""
        if not hasattr(signal, "pthread_sigmask"):
            yield
            return
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _DEFAULTS)
        self._held_back = set(_DEFAULTS) - before
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def __call__(self, worker: int) -> None:
        for number in _DEFAULTS:
            signal.signal(number, _pass_over)
        if self._held_back:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._held_back)
        if self._init is not None:
            self._init(worker)
        parent = multiprocessing.parent_process()
        if self._is_child and parent is not None and os.getppid() != parent.pid:
            os._exit(1)


def _pass_over(number: int, frame: FrameType | None) -> None:
    for each, default in _DEFAULTS.items():
        signal.signal(each, default)


def _starts_children(loader: Any) -> bool:
    method: str = (loader.multiprocessing_context or multiprocessing).get_start_method()
    return method != "forkserver"


class Workers:
    """The worker processes that a loader's double starts."""

    def __init__(self) -> None:
        self._ours: dict[str, Any] = {}
        self._iterators: weakref.WeakSet[Any] = weakref.WeakSet()

    def double(self, loader: Any, ours: dict[str, Any], kind: type | None = None) -> Any:
        """Return a loader's double, as `double_of` does, whose workers are these."""
        sheltered = Sheltered(loader.worker_init_fn, loader.num_workers > 0 and _starts_children(loader))
        ours |= {"worker_init_fn": sheltered, "_iterator": None, "_get_iterator": None}
        double = double_of(loader, ours, kind)
        cls: Any = type(loader) if kind is None else kind

        def made() -> Any:
            with sheltered.starting() if loader.num_workers else contextlib.nullcontext():
                iterator = cls._get_iterator(double)
            self._iterators.add(iterator)
            return iterator

        ours["_get_iterator"] = made
        self._ours = ours
        return double

    def end(self) -> None:
        """End all of them, although an error's traceback may keep their iterators alive."""
        self._ours["_iterator"] = None
        for iterator in list(self._iterators):
            shut_down = getattr(iterator, "_shutdown_workers", None)
            if shut_down is not None:
                shut_down()
            for worker in getattr(iterator, "_workers", ()):
                if worker.is_alive():  # it hangs, and passed over what torch sent it
                    worker.kill()
                    worker.join()
        self._iterators.clear()

    def asked_of_the_dead(self, asked: Sequence[Any]) -> Any:
        """Return what a worker that died was at work on.

        Args:
            asked: what was asked of all workers and hasn't been returned yet, in its order.

        Returns:
            One of `asked`; None if no worker died, or torch doesn't say of which it was.
        """
        for iterator in list(self._iterators):
            with contextlib.suppress(AttributeError, IndexError):
                dead = {i for i, worker in enumerate(iterator._workers) if not worker.is_alive()}
                for task in sorted(iterator._task_info):
                    if iterator._task_info[task][0] in dead and len(iterator._task_info[task]) == 1:
                        return asked[task - iterator._rcvd_idx]
        return None
