"""Whether a machine's events and the value that they fold fit together, and can be written and read back.

What can be said is said when an engine is built. A fold that can't be tried out then is tried when it is first used,
before anything of it is written; after that nobody looks any more.
"""

from __future__ import annotations

import functools
import re
import typing
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import attrs

from tachograph.states import Event, Machine, MachineFault, TrainerState
from tachograph.states.errors import CallerError
from tachograph.states.event import is_frozen

from .checks import Perform

_OURS = "tachograph."
_NO_DATA = (set, frozenset, bytes, bytearray, complex, FunctionType)
_LIBRARIES = ("torch", "numpy", "jax")
_WORDS = re.compile(r"\b(Tensor|Module|Parameter|Optimizer|ndarray|Callable|Generator|Iterator)\b")


def check_state(machine: Machine, state: Any) -> None:
    """Refuse a value to begin in that a run can't be counted by, recorded with, or gone on from.

    Args:
        machine: whose state it is.
        state: the value.

    Raises:
        CallerError: it isn't a frozen attrs value with `state` and `seq`; its state is unknown; or a field holds, or is
            declared to hold, what a record can't.
    """
    cls = type(state)
    if not is_frozen(cls):
        raise CallerError(f"state must be a frozen attrs value with the fields state and seq, not a {cls.__name__}")
    names = [field.name for field in attrs.fields(cls)]
    for name in ("state", "seq"):
        if name not in names:
            raise CallerError(f"{cls.__name__} needs a field {name}: a run's state says where it is, state and seq")
    if state.state not in machine.names:
        raise CallerError(f"{cls.__name__} begins in '{state.state}', but the states are {', '.join(machine.names)}")
    if cls is TrainerState:
        return
    check_fields(cls)
    _check_read_back(state)


def check_fields(cls: type) -> None:
    """Refuse a class of states or events with a field that is declared to hold no plain data.

    Raises:
        CallerError: it names the field.
    """
    for field, hint in _hints(cls):
        if field.name.startswith("_"):
            raise CallerError(f"{cls.__name__}.{field.name}: a recorded field's name has no underscore before it")
        bad = _unfit(hint)
        if bad:
            raise CallerError(
                f"{cls.__name__}.{field.name} is declared as {bad}, which can't be recorded: plain data only (numbers, "
                "strings, lists, dicts). What is heavy belongs to the driver, in engine.state, or to what Kept saves"
            )


def check_folds(machine: Machine, state: Any) -> set[type[Event]]:
    """Try out the folds of a user's own events, as far as they can be made from their defaults.

    Args:
        machine: the table.
        state: the value that a run begins with.

    Returns:
        The classes of events whose fold couldn't be tried out.

    Raises:
        MachineFault: a fold returns something else than the next state.
        CallerError: an event's field is declared to hold what a record can't.
    """
    for cls in machine.event_classes.values():
        check_fields(cls)
    untried: set[type[Event]] = set()
    for row in machine.rows:
        if row.event.fold.__module__.startswith(_OURS) and isinstance(state, TrainerState):
            continue
        try:
            before = attrs.evolve(state, state=row.source)
            event = row.event()
            after = event.fold(before, row.dest)
        except Exception:  # it wants fields, or numbers as they are in a run
            untried.add(row.event)
            continue
        check_fold(event, before, row.dest, after)
    return untried


def check_fold(event: Event, before: Any, dest: str, after: Any) -> None:
    """Refuse what a fold returned if it isn't the next state.

    Raises:
        MachineFault: it is of another class, in another state, or isn't one transition later.
    """
    name = f"{type(event).__name__}.fold"
    if type(after) is not type(before):
        raise MachineFault(
            f"{name} returned {_called(after)} in state '{before.state}', and must return the next "
            f"{type(before).__name__}: attrs.evolve(super().fold(state, dest), ...)"
        )
    if after.state != dest:
        raise MachineFault(
            f"{name} returned state '{after.state}' from '{before.state}', but the table leads to '{dest}': give "
            "state=dest, or begin with super().fold(state, dest)"
        )
    if after.seq != before.seq + 1:
        raise MachineFault(
            f"{name} returned seq {after.seq} after seq {before.seq}: each transition counts one, seq=state.seq + 1, "
            "or begin with super().fold(state, dest)"
        )


def watched(machine: Machine, perform: dict[str, Perform], untried: set[type[Event]]) -> None:
    """Have the folds that couldn't be tried out be tried when they are first used; after that nobody looks.

    Args:
        machine: the table.
        perform: state -> the function that does its work; changed here, and back when all has been seen.
        untried: the events whose folds are tried.
    """
    waiting = set(untried)
    for name in [n for n in machine.names if n in perform]:
        own = {row.event for row in machine.rows if row.source == name} & untried
        if own:
            perform[name] = _trying(machine, perform, name, own, waiting)


def _trying(
    machine: Machine, perform: dict[str, Perform], name: str, own: set[type[Event]], waiting: set[type[Event]]
) -> Perform:
    work = perform[name]

    @functools.wraps(work)
    def tried(state: Any) -> Event:
        event = work(state)
        if type(event) in waiting and type(event) in own:
            dest = machine.next_state(state, event)
            check_fold(event, state, dest, event.fold(state, dest))
            waiting.discard(type(event))
        if not own & waiting:
            perform[name] = work
        return event

    return tried


def _check_read_back(state: Any) -> None:
    """Write a state as a record does, and read it back."""
    from .journal.codec import from_json, plain, restored, to_json

    cls, held = type(state), attrs.asdict(state, recurse=False)
    read: dict[str, Any] = {}
    for name, value in held.items():
        try:
            read[name] = restored(from_json(to_json(plain(value))))
        except Exception as error:
            raise CallerError(
                f"{cls.__name__}.{name} holds {_called(value)}, which can't be recorded ({error}): plain data only"
            ) from None
    try:
        again = cls(**read)
    except Exception as error:
        raise CallerError(
            f"{cls.__name__} can't be made of its recorded fields, as a resume does: {type(error).__name__}: {error}"
        ) from error
    for name, value in held.items():
        back = getattr(again, name)
        if type(back) is not type(value) or repr(back) != repr(value):
            fix = f": give the field converter={type(value).__name__}" if type(value) is tuple else ": plain data only"
            raise CallerError(f"{cls.__name__}.{name} is {value!r}, but is read back from a record as {back!r}{fix}")


def _hints(cls: type) -> Iterator[tuple[Any, Any]]:
    try:
        hints = typing.get_type_hints(cls)
    except Exception:  # names of a function's own, or of imports for types only
        hints = {}
    for field in attrs.fields(cls):
        yield field, hints.get(field.name, field.type)


def _unfit(hint: Any) -> str:
    """Say which part of a declared type no record can hold; "" if none is known."""
    if isinstance(hint, str):
        found = _WORDS.search(hint)
        return hint if found else ""
    origin = typing.get_origin(hint)
    for part in (origin, *typing.get_args(hint)) if origin is not None else (hint,):
        if part is not hint and not isinstance(part, type):
            bad = _unfit(part) if not isinstance(part, list) else ""
        else:
            bad = _word(part)
        if bad:
            return bad
    return ""


def _word(part: Any) -> str:
    module, name = str(getattr(part, "__module__", "")), str(getattr(part, "__name__", part))
    if part in _NO_DATA or module.split(".")[0] in _LIBRARIES:
        return name
    if module in ("collections.abc", "typing") and name in ("Callable", "Generator", "Iterator"):
        return name
    return ""


def _called(value: Any) -> str:
    return "nothing" if value is None else f"a {type(value).__name__}"


__all__ = ["check_fields", "check_fold", "check_folds", "check_state", "watched"]
