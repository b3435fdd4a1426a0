"""Building a loader anew with another sampler: its class is called with the arguments it was built with.

Those are found as attributes of the loader. A `DataLoader` keeps all of its arguments; a user's own class must too.
"""

from __future__ import annotations

import inspect
from typing import Any, TypeVar

from tachograph.states.errors import CallerError

from .batch_sampler import ReproducibleBatchSampler
from .sampler import ReproducibleSampler

L = TypeVar("L")


def replace_sampler(dataloader: L, sampler: Any) -> L:
    """Build a loader anew that takes its samples in the order of a sampler; the given loader stays as it is.

    Args:
        dataloader: a `DataLoader`, or a loader of another class that keeps the arguments of its constructor as
            attributes of the same names.
        sampler: gives single indices.

    Returns:
        A new loader of the same class.

    Raises:
        CallerError: an argument isn't kept, the class takes no `sampler`, or refuses it; or the sampler gives batches.
    """
    if isinstance(sampler, ReproducibleBatchSampler):
        raise CallerError(f"a {type(sampler).__name__} gives batches: use replace_batch_sampler")
    size, drop_last = _batches_of(dataloader)
    deciding = {"batch_size": size, "shuffle": False, "sampler": sampler, "batch_sampler": None, "drop_last": drop_last}
    return _built_anew(dataloader, "sampler", deciding)


def replace_batch_sampler(dataloader: L, batch_sampler: Any) -> L:
    """Build a loader anew that takes its batches from a batch sampler; the given loader stays as it is.

    Args:
        dataloader: as `replace_sampler` takes it.
        batch_sampler: gives lists of indices.

    Returns:
        A new loader of the same class.

    Raises:
        CallerError: as `replace_sampler` raises it; or the sampler gives single indices.
    """
    if isinstance(batch_sampler, ReproducibleSampler) and not isinstance(batch_sampler, ReproducibleBatchSampler):
        raise CallerError(f"a {type(batch_sampler).__name__} gives single samples: use replace_sampler")
    deciding = {"batch_size": 1, "shuffle": False, "sampler": None, "batch_sampler": batch_sampler, "drop_last": False}
    return _built_anew(dataloader, "batch_sampler", deciding)


def _batches_of(dataloader: Any) -> tuple[Any, bool]:
    """The size of a loader's batches, and whether a short one is dropped."""
    batches = getattr(dataloader, "batch_sampler", None)
    if getattr(dataloader, "batch_size", None) is not None or batches is None:
        return getattr(dataloader, "batch_size", None), getattr(dataloader, "drop_last", False)
    if not isinstance(getattr(batches, "batch_size", None), int):
        raise CallerError(
            f"the batches of this {type(dataloader).__name__} are made by a {type(batches).__name__}, which doesn't "
            "say their batch_size: use replace_batch_sampler"
        )
    return batches.batch_size, getattr(batches, "drop_last", False)


def _built_anew(loader: L, role: str, deciding: dict[str, Any]) -> L:
    kind, parameters = type(loader).__name__, _parameters(type(loader))
    if role not in parameters:
        raise CallerError(
            f"a {kind} can't be built anew with another {role}: its constructor takes no {role!r}. Give it a parameter "
            f"{role}=None, or **kwargs, and pass it on to DataLoader; or build the loader yourself"
        )
    given: dict[str, Any] = {}
    for name, parameter in parameters.items():
        value = deciding[name] if name in deciding else _kept(loader, name)
        if value is not parameter.default:
            given[name] = value
    try:
        return type(loader)(**given)
    except (TypeError, ValueError) as error:
        raise CallerError(
            f"a {kind} couldn't be built anew with another {role}: {error}. Its constructor was called with "
            f"{', '.join(given)}; let it take these, or build the loader yourself"
        ) from error


def _kept(loader: Any, name: str) -> Any:
    try:
        return getattr(loader, name)
    except AttributeError:
        raise CallerError(
            f"a {type(loader).__name__} can't be built anew: its constructor takes {name!r}, and the loader has no "
            f"attribute of that name. Keep it there (self.{name} = {name}), or build the loader yourself"
        ) from None


def _parameters(kind: type) -> dict[str, inspect.Parameter]:
    """The parameters of a class's constructor by name, with those of its bases as far as it passes **kwargs on."""
    found: dict[str, inspect.Parameter] = {}
    for each in kind.__mro__[:-1]:
        if "__init__" not in vars(each):
            continue
        own = list(inspect.signature(vars(each)["__init__"]).parameters.values())[1:]
        for parameter in own:
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                found.setdefault(parameter.name, parameter)
        if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in own):
            break
    return found
