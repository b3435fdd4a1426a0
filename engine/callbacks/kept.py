"""`Kept`: saves things that know how to save themselves."""

from __future__ import annotations

from typing import Any

from tachograph.states.errors import CallerError, did_you_mean

from .callback import Callback

_BOTH = ("state_dict", "load_state_dict")


class Kept(Callback):
    """Saves things with every snapshot, and gives them their states back at a resume.

    A thing is whatever has `state_dict()`, which returns plain data and tensors, and `load_state_dict(state)`: an
    environment with its generator, a replay buffer, a cursor in a dataset, a model or an optimizer that the driver
    doesn't know. `callbacks=[Kept(env=env, buffer=buffer)]`. A state is taken as it is after everyone has heard a
    transition, and given back before the run goes on.

    Args:
        things: by the names that their states have in snapshots; at least one.

    Attributes:
        things: the same.

    Raises:
        CallerError: there is none, or one lacks one of the two methods; or, at a resume, the snapshot holds others.
    """

    replays = False

    def __init__(self, **things: Any) -> None:
        if not things:
            raise CallerError("Kept() saves nothing: name what it is to save, Kept(env=env, buffer=buffer)")
        for name, thing in things.items():
            lacking = [method for method in _BOTH if not callable(getattr(thing, method, None))]
            if lacking or isinstance(thing, type):
                raise CallerError(_unfit(name, thing, lacking))
        self.things = things

    def state_dict(self) -> dict[str, Any]:
        return {name: thing.state_dict() for name, thing in self.things.items()}

    def check_state_dict(self, trainer: Any, state: dict[str, Any], at: Any) -> None:
        for name in self.things:
            if name not in state:
                raise CallerError(
                    f"Kept saves {name!r}, whose state this snapshot lacks: it holds {', '.join(map(repr, state))}"
                )
        for name in state:
            if name not in self.things:
                raise CallerError(
                    f"this snapshot holds the state of {name!r}, which Kept wasn't given. "
                    f"{did_you_mean(name, self.things)}".rstrip()
                )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, thing in self.things.items():
            thing.load_state_dict(state[name])


def _unfit(name: str, thing: Any, lacking: list[str]) -> str:
    if isinstance(thing, type):
        return f"Kept({name}={thing.__name__}): give an instance, not the class"
    lacks = " and ".join(f"{method}()" for method in lacking)
    return (
        f"Kept can't save {name!r}: {type(thing).__name__} has no {lacks}. Give it state_dict(), which returns plain "
        "data and tensors, and load_state_dict(state), which takes that back"
    )
