"""`TrainerState`: the value that says where a training run is.

Plain data only, whole in every record of the journal. It is a value, never the model of a machine:
attrs' equality would make the `transitions` library drop a second one without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from .errors import StateFault, nearest

SCHEMA = 3
"""The version of the fields below. A change of them raises it and adds a function to `UPCASTS`."""


def _with_place(old: dict[str, Any]) -> dict[str, Any]:
    """Version 1 counted no samples within the epoch, so 0 says nothing in its middle."""
    return {**old, "place": 0, "epoch_cut_asked": ""}


def _with_validate_due(old: dict[str, Any]) -> dict[str, Any]:
    """Version 2 knew no validation that was put off."""
    return {**old, "validate_due": False}


UPCASTS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _with_place, 2: _with_validate_due}
"""version n -> a pure function that turns the plain data of version n into that of version n + 1."""

LIMITS = ("n_epochs", "total_batches")
"""Settings that may be raised by a later run. They are the last fields, and no part of the chain."""


def _text(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, str):
        raise StateFault(f"{attribute.name} must be a string, not {value!r}")


def _count(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if type(value) is not int or value < 0:
        raise StateFault(f"{attribute.name} must be an integer >= 0, not {value!r}")


def _count_or_none(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if value is not None:
        _count(instance, attribute, value)


def _flag(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if type(value) is not bool:
        raise StateFault(f"{attribute.name} must be true or false, not {value!r}")


def _results(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise StateFault(f"{attribute.name} must be a dict with string keys, not {value!r}")


@attrs.frozen(slots=True, kw_only=True)
class TrainerState:
    """Where a run is: which state, all counters, all pending decisions.

    All counts say what is committed: `global_forward_batches == n` means n training batches are done.

    Attributes:
        state: the name of the state the machine is in.
        seq: transitions committed so far; also the number of the record that holds this value.
        cur_epoch_idx: the epoch in work, from 0; after the last epoch it equals the number of epochs done.
        batch_idx_in_epoch: batches done in this epoch.
        num_batches_per_epoch: batches an epoch has; None where the loader doesn't know.
        global_forward_batches: training batches (micro-batches) done since the run began.
        optimizer_steps: optimizer steps really taken; one that a gradient scaler skipped isn't counted.
        accumulated: micro-batches in the open accumulation window.
        samples: training samples consumed, over all ranks.
        place: samples consumed in this epoch, over all ranks: the position in its order.
        validations: validations done, without the sanity check.
        epoch_exhausted: this epoch has no batch left, and what follows its validation is its end.
        epoch_cut_asked: why a listener asked this epoch to end before its next batch; "" means nobody did.
        validate_due: a validation is still to be made: it was due after a step, and a state of one's own came first.
        stop_asked: why a listener asked the run to stop at the next transition; "" means nobody did.
        results: the last validation's results, by their flat names.
        n_epochs: the limit in epochs; None means none.
        total_batches: the limit in batches; None means unknown or none.

    Raises:
        StateFault: a field is of the wrong type or negative.
    """

    state: str = attrs.field(default="init", validator=_text)
    seq: int = attrs.field(default=0, validator=_count)
    cur_epoch_idx: int = attrs.field(default=0, validator=_count)
    batch_idx_in_epoch: int = attrs.field(default=0, validator=_count)
    num_batches_per_epoch: int | None = attrs.field(default=None, validator=_count_or_none)
    global_forward_batches: int = attrs.field(default=0, validator=_count)
    optimizer_steps: int = attrs.field(default=0, validator=_count)
    accumulated: int = attrs.field(default=0, validator=_count)
    samples: int = attrs.field(default=0, validator=_count)
    place: int = attrs.field(default=0, validator=_count)
    validations: int = attrs.field(default=0, validator=_count)
    epoch_exhausted: bool = attrs.field(default=False, validator=_flag)
    epoch_cut_asked: str = attrs.field(default="", validator=_text)
    validate_due: bool = attrs.field(default=False, validator=_flag)
    stop_asked: str = attrs.field(default="", validator=_text)
    results: dict[str, Any] = attrs.field(factory=dict, validator=_results)
    n_epochs: int | None = attrs.field(default=None, validator=_count_or_none)
    total_batches: int | None = attrs.field(default=None, validator=_count_or_none)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], version: int = SCHEMA) -> TrainerState:
        """Read a state's plain data, strictly.

        Args:
            data: a value for every field, nothing else.
            version: the schema that wrote it; an older one is brought up to date first.

        Raises:
            StateFault: the version is unknown or newer than this library's, or a field is unknown, missing or wrong.
        """
        if version > SCHEMA:
            raise StateFault(f"state of schema {version}, but this version reads up to {SCHEMA}: upgrade tachograph")
        plain = dict(data)
        for older in range(version, SCHEMA):
            if older not in UPCASTS:
                raise StateFault(f"state of schema {version}, which no version of tachograph wrote: can't read it")
            plain = UPCASTS[older](plain)
        names = [a.name for a in attrs.fields(cls)]
        unknown = sorted(set(plain) - set(names))
        if unknown:
            raise StateFault(f"unknown field {unknown[0]!r} in a state. {nearest(unknown[0], names)}")
        missing = [name for name in names if name not in plain]
        if missing:
            raise StateFault(f"a state lacks the field {', '.join(map(repr, missing))}")
        return cls(**plain)

    def to_dict(self) -> dict[str, Any]:
        """Return the plain data of every field, in their order; `from_dict` reads it back."""
        return {a.name: getattr(self, a.name) for a in attrs.fields(type(self))}
