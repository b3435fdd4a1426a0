"""What other libraries call the arguments of these callbacks, for the one who comes from there."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar

from tachograph.states.errors import CallerError, nearest

Kind = TypeVar("Kind", bound=type)

_HERE: dict[str, tuple[str, ...]] = {
    # another library's argument -> ours, the first one that a callback has
    "baseline": ("stopping_threshold",),
    "clip_norm": ("clip_value",),
    "clipnorm": ("clip_value",),
    "dirpath": ("folder", "save_folder"),
    "dirname": ("folder", "save_folder"),
    "every_n_steps": ("every_n_batches", "log_every"),
    "every_n_train_steps": ("every_n_batches",),
    "filepath": ("folder", "save_folder"),
    "gradient_clip_algorithm": ("clip_type",),
    "gradient_clip_val": ("clip_value",),
    "log_dir": ("folder",),
    "log_every_n_steps": ("log_every",),
    "max_norm": ("clip_value",),
    "min_change": ("min_delta",),
    "n_saved": ("topk",),
    "patience_epochs": ("patience",),
    "save_dir": ("folder", "save_folder"),
    "save_top_k": ("topk",),
    "score_function": ("monitor",),
    "score_name": ("monitor",),
    "train_time_interval": ("every",),
}
_DIRECTIONS = {"max": True, "min": False}


def unknown_argument(who: str, name: str, value: Any, known: Iterable[str]) -> CallerError:
    """Make the error for an argument that a callback doesn't have: it says what it is called here, or the nearest."""
    known = list(known)
    ours = next((held for held in _HERE.get(name, ()) if held in known), "")
    if ours:
        return CallerError(f"{who} has no argument {name!r}: it is called {ours} here")
    if name == "mode" and "larger_better" in known and isinstance(value, str) and value in _DIRECTIONS:
        said = f"larger_better={_DIRECTIONS[value]} is what mode={value!r} is called here"
        return CallerError(f"{who} has no argument 'mode': {said}")
    if name == "save_best_only" and "topk" in known:
        return CallerError(f"{who} has no argument 'save_best_only': topk=1 is what it is called here")
    return CallerError(f"{who} has no argument {name!r}. {nearest(name, known)}")


def names_its_arguments(kind: Kind) -> Kind:
    """Have a class refuse a keyword argument that it doesn't have in a sentence, which a bare `TypeError` isn't."""
    build: Callable[..., None] = kind.__init__  # type: ignore[misc]
    known = [name for name in inspect.signature(build).parameters if name != "self"]

    @wraps(build)
    def checked(self: Any, *args: Any, **given: Any) -> None:
        for name, value in given.items():
            if name not in known:
                raise unknown_argument(type(self).__name__, name, value, known)
        build(self, *args, **given)

    kind.__init__ = checked  # type: ignore[misc]
    return kind


__all__ = ["names_its_arguments", "unknown_argument"]
