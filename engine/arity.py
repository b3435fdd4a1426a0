"""What a function can be called with, found out when it's given and not when it's called.

Listeners, filters and the like are called in the middle of a run, maybe hours later. What can be said of them before is
said from their signatures; a function that doesn't tell its own is taken as it is.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

from tachograph.states.errors import CallerError


def signature_of(fn: Callable[..., Any]) -> inspect.Signature | None:
    """Return a function's signature; None for builtins without one."""
    try:
        return inspect.signature(fn)
    except (TypeError, ValueError):
        return None


def takes(fn: Callable[..., Any], *arguments: str) -> bool:
    """Say whether a function can be called with these arguments by place, as far as it tells."""
    signature = signature_of(fn)
    if signature is None:
        return True
    try:
        signature.bind(*arguments)
    except TypeError:
        return False
    return True


def takes_event(fn: Callable[..., Any]) -> bool:
    """Say whether a function wants the event: a second parameter with a default is its own, unless it is called so."""
    signature = signature_of(fn)
    if signature is None or not takes(fn, "trainer", "event"):
        return False
    places = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return len(places) < 2 or places[1].default is inspect.Parameter.empty or places[1].name == "event"


def check_arity(fn: Callable[..., Any], point: str, given: Sequence[str] | None) -> None:
    """Refuse a function that can't take what a point gives.

    Args:
        fn: the listener.
        point: what it listens to, for messages.
        given: what a moment gives after the trainer; None: the trainer, and the event if it takes two.

    Raises:
        CallerError: it can't take it, or a call would do nothing, since it is a coroutine or a generator.
    """
    check_plain(fn, "a listener")
    if takes(fn, "trainer", *(given or ())) or (given is None and takes_event(fn)):
        return
    calls = ", ".join(("trainer", *given)) if given is not None else "trainer) or (trainer, event"
    raise CallerError(
        f"{point} calls its listeners with ({calls}), which {name_of(fn)}{signature_of(fn)} can't take"
    ) from None


def check_plain(fn: Callable[..., Any], what: str) -> None:
    """Refuse a function whose call alone does nothing.

    Args:
        fn: the function.
        what: what messages call such functions.

    Raises:
        CallerError: it is a coroutine or a generator.
    """
    bare = fn.func if isinstance(fn, functools.partial) else fn
    for never, test in (("awaited", inspect.iscoroutinefunction), ("iterated over", inspect.isgeneratorfunction)):
        if test(bare):
            raise CallerError(f"{what} is called and not {never}: {name_of(bare)} must be a plain function")


def name_of(fn: Any) -> str:
    """Return what messages call a function."""
    return str(getattr(fn, "__qualname__", None) or repr(fn))


def code_of(fn: Any) -> Any:
    """Return the code that runs when something is called; None for builtins."""
    bare = fn.func if isinstance(fn, functools.partial) else fn
    return getattr(bare, "__code__", None) or getattr(type(bare).__call__, "__code__", None)
