"""A loader's double: the user's own object in everything but a few attributes, which are ours."""

from __future__ import annotations

import sys
from typing import Any

from torch.utils.data import DataLoader


def double_of(loader: Any, ours: dict[str, Any], kind: type | None = None) -> Any:
    """Return a loader that has some attributes of its own, and shares all others with the user's.

    What the user's methods change on it (a counter of iterations, say) shows on the user's object, and the other way
    round. `DataLoader` forbids setting most of these attributes after its construction; here they are properties.

    Args:
        loader: a `DataLoader` of any class.
        ours: attribute -> value; later changes of the dict are changes of the attributes.
        kind: the class whose methods it has; None means the loader's.
    """

    def mine(name: str) -> property:
        return property(lambda self: ours[name], lambda self, value: ours.__setitem__(name, value))

    kind = type(loader) if kind is None else kind
    cls: Any = _sharing(kind)(kind.__name__, (kind,), {name: mine(name) for name in ours})
    double = object.__new__(cls)
    object.__setattr__(double, "__dict__", vars(loader))
    return double


def _sharing(kind: type) -> Any:
    """Return a metaclass whose classes hand on what is set on them (`type(self).opened += 1`) to the user's class."""

    def hand_on(cls: type, name: str, value: Any) -> None:
        own = name.startswith("__") or not hasattr(kind, name)
        type.__setattr__(cls if own else kind, name, value)

    return type(type(kind).__name__, (type(kind),), {"__setattr__": hand_on})


def is_torchdata(loader: Any) -> bool:
    """Say whether a loader is torchdata's own `StatefulDataLoader`, which adds nothing but a state to `DataLoader`."""
    module = sys.modules.get("torchdata.stateful_dataloader.stateful_dataloader")
    return module is not None and type(loader) is module.StatefulDataLoader


def iterates_as_torch(loader: Any) -> bool:
    """Say whether a loader's iterator is torch's, and not one of a user's own class."""
    return type(loader).__iter__ is DataLoader.__iter__ or is_torchdata(loader)
