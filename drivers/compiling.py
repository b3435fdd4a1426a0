"""Compiling what a batch is given to: the function that is called, never the user's model itself.

So the model keeps its class, its methods and the names in its state dict; what was compiled is used for calls alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from tachograph.states.errors import CallerError, nearest


def checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Check keyword arguments of `torch.compile`.

    Raises:
        CallerError: it doesn't take one of them.
    """
    known = set(inspect.signature(torch.compile).parameters) - {"model"}
    for name in options:
        if name not in known:
            raise CallerError(f"compile: torch.compile takes no {name!r}. {nearest(name, known)}")
    return dict(options)


def compiled(fn: Callable[..., Any], options: Mapping[str, Any] | None) -> Callable[..., Any]:
    """Compile a module or a function; without options, return it as it is. Nothing happens before its first call."""
    return fn if options is None else torch.compile(fn, **options)  # type: ignore[no-any-return]
