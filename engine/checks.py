"""Checking what an engine is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from tachograph.drivers import Driver
from tachograph.states import Event, Machine, MachineFault
from tachograph.states.errors import CallerError, did_you_mean

from .arity import check_plain, name_of, signature_of, takes
from .callbacks.callback import Callback
from .retention import Keep

Perform = Callable[[Any], Event]
Work = Callable[..., Event]  # `f(state)` or `f(engine, state)`

ON_SNAPSHOT_FAULT = ("raise", "warn")
"""What a snapshot that can't be written means: the error ends the run, or it goes on and the next one is tried."""


def with_engine(engine: Any, perform: Mapping[str, Work]) -> dict[str, Perform]:
    """Return functions for the states' work, each called with the state; one that wants the engine before it has it.

    Args:
        engine: whose states.
        perform: state -> `f(state)` or `f(engine, state)`.
    """
    return {
        name: partial(fn, engine) if callable(fn) and not takes(fn, "state") and takes(fn, "engine", "state") else fn
        for name, fn in perform.items()
    }


def check_perform(machine: Machine, perform: Mapping[str, Perform]) -> None:
    """Refuse functions for the states' work that leave a state out, or name one that has no work.

    Raises:
        MachineFault: it names the state; or a function can't be called with a state, or does nothing when it's called.
    """
    needed = [name for name in machine.names if name not in machine.final]
    for name in needed:
        if not callable(perform.get(name)):
            near = did_you_mean(name, [given for given in perform if given not in needed])
            raise MachineFault(
                f"state '{name}' needs a function: perform={{'{name}': function(state) -> event, ...}}. {near}".rstrip()
            )
    for name, fn in perform.items():
        if name not in needed:
            raise MachineFault(
                f"perform names '{name}', which is final or no state of this machine: {', '.join(needed)}. "
                f"{did_you_mean(name, needed)}".rstrip()
            )
        if not takes(fn, "state"):
            raise MachineFault(
                f"perform['{name}'] is called with the state, or with the engine and the state, which "
                f"{name_of(fn)}{signature_of(fn)} can't take"
            )
        try:
            check_plain(fn, f"perform['{name}']")
        except CallerError as error:
            raise MachineFault(str(error)) from None


def as_callbacks(callbacks: Any) -> Sequence[Any]:
    """Return callbacks as a sequence.

    Raises:
        CallerError: they are neither one nor a sequence.
    """
    if callbacks is None:
        return ()
    if isinstance(callbacks, Callback):
        return (callbacks,)
    if isinstance(callbacks, (str, bytes)) or not isinstance(callbacks, Sequence):
        raise CallerError(f"callbacks must be a Callback or a sequence of them, not {type(callbacks).__name__}")
    return callbacks


def check_snapshots(keep: Any, on_fault: Any, state: Any) -> tuple[Keep | None, str]:
    """Return what an engine does with its snapshots: which it keeps, and what one that can't be written means.

    Args:
        keep: None for all, an integer for the last so many, or a `Keep`.
        on_fault: one of `ON_SNAPSHOT_FAULT`.
        state: a state of the engine's, which the rules must fit.

    Raises:
        CallerError: one of them can't be used.
    """
    if on_fault not in ON_SNAPSHOT_FAULT:
        raise CallerError(f"on_snapshot_fault must be 'raise' or 'warn', not {on_fault!r}")
    rules = Keep.of(keep)
    if rules is not None:
        rules.check_state(state)
    return rules, on_fault


def check_seed(value: Any) -> int:
    """Return a seed that was given.

    Raises:
        CallerError: it isn't an integer from 0 to 2**63 - 1.
    """
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise CallerError(f"seed must be an integer from 0 to 2**63 - 1, not {value!r}")
    return value


def seed_of(given: Any, driver: Driver | None) -> int | None:
    """Return the seed of a run: the one that was given, or the driver's; None without a driver.

    Raises:
        CallerError: it is no seed, or there is no driver whose generators it could seed.
    """
    if given is None:
        return None if driver is None else driver.initial_seed()
    if driver is None:
        raise CallerError(
            f"seed={given!r} seeds the generators of a driver, and driver is None: give a driver, or seed what draws "
            "by yourself"
        )
    return check_seed(given)


def check_without_driver(driver: Driver | None, **given: Any) -> None:
    """Refuse settings of snapshots where there is no driver that could take one.

    Raises:
        CallerError: it names the setting.
    """
    for name, value in given.items():
        if driver is None and value is not None:
            raise CallerError(
                f"{name}={value!r}, but driver is None, and without one no snapshot is taken: give a driver "
                f"(StubDriver() is one without torch), or leave {name} out"
            )
