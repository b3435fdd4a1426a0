"""Who hears what: subscriptions, the index that dispatch reads, and the listeners' saved memory.

The index is made once per transition that occurs, by what can be heard there, so a point that nobody listens to costs
a dict look-up and nothing more.
"""

from __future__ import annotations

import contextlib
import difflib
import itertools
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType, UnionType
from typing import Any

import attrs

from tachograph.states import Event, Machine
from tachograph.states.errors import CallerError, TachographError, nearest

from .arity import check_arity, code_of, name_of, takes_event
from .callbacks.callback import ALIASES, MOMENTS, Callback, half_a_memory
from .elsewhere import MOMENTS_ELSEWHERE, instead
from .events import EventsList, Filter, Moment, hangs_on, moment_name

Give = Callable[[Any, Any], tuple[Any, ...]]
Heard = tuple[tuple[Callable[..., Any], "Give | None"], ...]

_GIVEN: dict[str, Give] = {
    # what a moment on a transition hands to its listeners: f(trainer, event)
    "on_sanity_check_end": lambda trainer, event: (event.results,),
    "on_validate_end": lambda trainer, event: (event.results,),
    "on_train_batch_begin": lambda trainer, event: (trainer.batch, trainer.batch_indices),
    "on_exception": lambda trainer, event: (trainer.exception,),
    "on_stop": lambda trainer, event: (event.reason,),
}


class RestoreMismatch(TachographError):
    """A snapshot's listeners and this trainer's aren't the same; the message names which."""


@attrs.define(eq=False)
class Subscription:
    """One listener at one point.

    Attributes:
        kind: "moment", "event", "state" or "transition".
        point: the moment's, event's or state's name, or "source -> dest".
        fn: what is called.
        filters: what thins the calls, the outermost first, each under the name that its counts have in snapshots.
        owner: the callback that `fn` belongs to, if it belongs to one.
        order: who is heard first: (-priority, number of registration).
    """

    kind: str
    point: str
    fn: Callable[..., Any]
    filters: dict[str, Filter]
    owner: Callback | None
    order: tuple[int, int]

    def call(self, hushed: bool = False) -> Callable[..., Any]:
        """Return what dispatch calls: `fn` itself where there's nothing to decide.

        Args:
            hushed: callbacks that would leave something behind aren't called; their filters count all the same.
        """
        fn = self.fn
        if self.owner is not None and hushed and not takes_part(self.owner, self.owner.in_rehearsal):
            fn = _nothing
        elif self.owner is not None and self.owner.outside_effects:
            fn = _once_announced(fn)
        for thin in reversed(self.filters.values()):  # outermost: what was announced before is counted all the same
            fn = _thinned(fn, thin)
        return fn

    @property
    def name(self) -> str:
        """What messages call the listener."""
        return name_of(self.fn) if self.owner is None else f"{type(self.owner).__name__}.{self.fn.__name__}"


def takes_part(callback: Callback, asked: bool | None = None) -> bool:
    """Say whether a callback hears of what is to leave nothing behind.

    Args:
        callback: it.
        asked: what it says itself; None: what it says of a quick pass.
    """
    asked = callback.in_quick_pass if asked is None else asked
    return not callback.outside_effects if asked is None else asked


class Handle:
    """A subscription that can be taken back, by `remove()` or at the end of a `with` block."""

    def __init__(self, listeners: Listeners, subscriptions: list[Subscription]) -> None:
        self._listeners = listeners
        self._subscriptions = subscriptions

    def remove(self) -> None:
        """Hear nothing more; a second call does nothing."""
        self._listeners.remove(self._subscriptions)
        self._subscriptions = []

    def __enter__(self) -> Handle:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.remove()


class Listeners:
    """The listeners of one engine.

    Args:
        machine: its names of states and events are what can be subscribed to, beside the moments.

    Attributes:
        hear_events: somebody is given events, and so may look at what they measured.
    """

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._subscriptions: list[Subscription] = []
        self._number = 0
        self.callbacks: dict[str, Callback] = {}
        self.index = _Index(self._heard)
        self.inside: dict[str, tuple[Callable[..., Any], ...]] = {}
        self.hear_events = False
        self._hushed = False

    @contextlib.contextmanager
    def hushed(self) -> Iterator[None]:
        """Run the body with the callbacks silent that would leave something behind: loggers, savers, a progress bar."""
        self._hushed = True
        self._changed()
        try:
            yield
        finally:
            self._hushed = False
            self._changed()

    # -- subscribing ---------------------------------------------------------------------------------------

    def add(self, target: Any, fn: Callable[..., Any], *, priority: int = 0, owner: Callback | None = None) -> Handle:
        """Subscribe a function to a target, or to each of several.

        Args:
            target: a moment (`Events.on_train_batch_end(every=3)`), an event class, a state's name (heard when it is
                entered), a transition ("step -> validate"), a moment's or event's name, or several joined by `|`.
            fn: gets the trainer and what the moment gives; for the rest the trainer, and the event if it takes two (a
                second parameter with a default is its own, unless it is called `event`).
            priority: a higher one is heard earlier; equal ones in the order of their registration.
            owner: the callback it belongs to.

        Raises:
            CallerError: the target doesn't exist (the nearest are offered), or the function can't take what it gives.
        """
        if type(priority) is not int:
            raise CallerError(f"priority must be an integer, a higher one is heard earlier, not {priority!r}")
        if isinstance(target, UnionType):  # what `|` makes of two event classes
            target = target.__args__
        targets = list(target) if isinstance(target, (EventsList, list, tuple)) else [target]
        if not targets:
            raise CallerError("there is nothing to hear: give one target at least")
        new: list[Subscription] = []
        for each in targets:  # all are checked before one is kept
            taken = {key for s in (*self._subscriptions, *new) for key in s.filters}
            new.append(self._subscription(each, fn, priority, owner, taken))
        self._subscriptions.extend(new)
        self._changed()
        return Handle(self, new)

    def add_callback(self, callback: Any) -> None:
        """Subscribe a callback to every moment it overrides.

        Raises:
            CallerError: it isn't a `Callback`, it was added before, or two have given themselves one name.
        """
        if not isinstance(callback, Callback):
            raise CallerError(f"callbacks must be Callback instances, not {_called(callback)}")
        fault = half_a_memory(callback)
        if fault:
            raise CallerError(fault)
        if any(callback is held for held in self.callbacks.values()):
            raise CallerError(f"this {type(callback).__name__} was added already: each callback hears a moment once")
        key = callback.callback_name
        if not isinstance(key, str) or not key:
            raise CallerError(f"callback_name of {type(callback).__name__} must be a string, not {key!r}")
        if key in self.callbacks and key != type(callback).__name__:
            raise CallerError(f"two callbacks are named {key!r}: their states would overwrite each other")
        key = next(k for n in itertools.count(1) if (k := f"{key}#{n}" if n > 1 else key) not in self.callbacks)
        self.callbacks[key] = callback
        for name in (*MOMENTS, *ALIASES):
            method = getattr(callback, name, None)
            if method is not None and getattr(method, "__func__", method) is not vars(Callback).get(name):  # overridden
                self.add(Moment(moment_name(name)), method, owner=callback)
        callback.subscribe(self)
        self._tell_unheard(callback)

    def remove_callback(self, callback: Callback) -> None:
        """Take a callback's subscriptions back, and forget its name."""
        self.remove([s for s in self._subscriptions if s.owner is callback])
        self.callbacks = {key: held for key, held in self.callbacks.items() if held is not callback}

    @property
    def machine(self) -> Machine:
        """The table whose transitions are heard."""
        return self._machine

    @property
    def subscriptions(self) -> list[Subscription]:
        """All subscriptions, in the order in which they are heard."""
        return list(self._subscriptions)

    def remove(self, subscriptions: Iterable[Subscription]) -> None:
        """Take subscriptions back."""
        gone = set(map(id, subscriptions))
        self._subscriptions = [s for s in self._subscriptions if id(s) not in gone]
        self._changed()

    def _subscription(
        self, target: Any, fn: Callable[..., Any], priority: int, owner: Callback | None, taken: set[str]
    ) -> Subscription:
        kind, point = self._resolve(target)
        if not callable(fn):
            raise CallerError(f"a listener must be callable, not {_called(fn)}")
        fn, thins = _without_filters(fn, owner)
        if isinstance(target, Moment) and target.filter is not None:
            thins.insert(0, target.filter)
        check_arity(fn, point, MOMENTS[point] if kind == "moment" else None)
        self._number += 1
        filters: dict[str, Filter] = {}
        for thin in thins:
            filters[self._key(point, fn, owner, taken | set(filters))] = thin.copy()  # each counts for itself
        return Subscription(kind, point, fn, filters, owner, (-priority, self._number))

    def _key(self, point: str, fn: Callable[..., Any], owner: Callback | None, taken: set[str]) -> str:
        """Name a filter by what it thins; only filters are numbered, so that other listeners may come and go."""
        if owner is not None:
            key = f"{next(k for k, c in self.callbacks.items() if c is owner)}/{point}"
        else:
            key = f"{getattr(fn, '__module__', '')}.{getattr(fn, '__qualname__', type(fn).__qualname__)}/{point}"
        return next(k for n in itertools.count(1) if (k := f"{key}#{n}" if n > 1 else key) not in taken)

    def _resolve(self, target: Any) -> tuple[str, str]:
        if isinstance(target, Moment):
            return "moment", target.name
        if isinstance(target, type) and issubclass(target, Event):
            return "event", self._known(target.__name__, self._machine.event_classes, "event")
        if not isinstance(target, str):
            raise CallerError(f"a listener hears a moment, an event, a state or a transition, not {_called(target)}")
        if "->" in target:
            source, dest = (self._known(part.strip(), self._machine.names, "state") for part in target.split("->", 1))
            if not any(row.source == source and row.dest == dest for row in self._machine.rows):
                from_here = sorted({f"{source} -> {row.dest}" for row in self._machine.rows if row.source == source})
                raise CallerError(f"no row of the machine leads {source} -> {dest}. Known: {', '.join(from_here)}")
            return "transition", f"{source} -> {dest}"
        if target in self._machine.names:
            return "state", target
        if target in self._machine.event_classes:
            return "event", target
        if target in MOMENTS or target in ALIASES:
            return "moment", moment_name(target)
        known = [*MOMENTS, *ALIASES, *self._machine.names, *self._machine.event_classes]
        raise CallerError(f"there is no moment, state or event {target!r}{instead(target, MOMENTS_ELSEWHERE, known)}")

    def _tell_unheard(self, callback: Callback) -> None:
        """Warn of methods that are named like moments and aren't any: nobody would ever call them."""
        heard = {code_of(s.fn) for s in self._subscriptions if s.owner is callback}
        for name in dir(type(callback)):
            if name.startswith("on_") and not hasattr(Callback, name) and name not in ALIASES:
                method = getattr(type(callback), name)
                if callable(method) and code_of(_without_filters(method, None)[0]) not in heard:
                    told = f"{type(callback).__name__}.{name} is no moment, so it is never called{_said_of(name)}"
                    warnings.warn(told, stacklevel=4)

    def _known(self, name: str, names: Iterable[str], what: str) -> str:
        if name not in names:
            raise CallerError(f"the machine has no {what} {name!r}. {nearest(name, names)}")
        return name

    # -- dispatch ------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        self.index.clear()
        self._subscriptions.sort(key=lambda s: s.order)
        self.hear_events = any(s.kind != "moment" for s in self._subscriptions)
        on_moments = {s.point for s in self._subscriptions if s.kind == "moment"}
        self.inside = {name: tuple(s.call(self._hushed) for s in self._at("moment", name)) for name in on_moments}

    def _at(self, kind: str, point: str) -> list[Subscription]:
        return [s for s in self._subscriptions if s.kind == kind and s.point == point]

    def _heard(self, source: str, event: type[Event], dest: str) -> Heard:
        """List who hears a transition: its moments in their order, then its other listeners in theirs."""
        heard: list[tuple[Callable[..., Any], Give | None]] = []
        for moment in hangs_on(source, event.__name__, dest):
            heard.extend((s.call(self._hushed), _GIVEN.get(moment)) for s in self._at("moment", moment))
        points = {("event", event.__name__), ("state", dest), ("transition", f"{source} -> {dest}")}
        for s in self._subscriptions:
            if (s.kind, s.point) in points:
                heard.append((s.call(self._hushed), _give_event if takes_event(s.fn) else None))
        return tuple(heard)

    def blamed(self, error: BaseException) -> str:
        """Say which listener an error came out of, with its file and line; "" if it came from elsewhere."""
        for frame, line in traceback.walk_tb(error.__traceback__):
            held = [s for s in self._subscriptions if code_of(s.fn) is frame.f_code]
            if held:
                itself = next(iter(frame.f_locals.values()), None)  # a method's first argument
                one = next((s for s in held if getattr(s.fn, "__self__", None) is itself), held[0])
                return f"in the listener {one.name} ({frame.f_code.co_filename}:{line})"
        return ""

    # -- memory --------------------------------------------------------------------------------------------

    def _filters(self) -> dict[str, Filter]:
        return {key: thin for s in self._subscriptions for key, thin in s.filters.items()}

    def state_dict(self, trainer: Any) -> dict[str, Any]:
        """Return the memory of all callbacks and the counts of all filters, by their keys."""
        states = {key: callback.on_save_checkpoint(trainer) for key, callback in self.callbacks.items()}
        return {
            "callbacks": {key: state for key, state in states.items() if state},
            "filters": {key: f.state_dict() for key, f in self._filters().items()},
        }

    def built_with(self) -> dict[str, Any]:
        """Return the settings of all callbacks that tell theirs, by their keys."""
        told = {key: callback.built_with() for key, callback in self.callbacks.items()}
        return {key: settings for key, settings in told.items() if settings}

    def check(
        self, state: Mapping[str, Any], trainer: Any, at: Any, strict: bool = True, newcomers: bool = False
    ) -> None:
        """Hold a snapshot's memory against these listeners. Nothing is changed.

        Args:
            state: what `state_dict` returned.
            trainer: the engine.
            at: the state that the run will be in.
            strict: False warns of what is missing on either side.
            newcomers: what the snapshot lacks may begin anew, and it isn't said.

        Raises:
            RestoreMismatch: `strict`, and an entry has no owner or an owner has no entry.
            CallerError: a callback can't go on from its state.
        """
        owners: dict[str, Mapping[str, Any]] = {"callbacks": self.callbacks, "filters": self._filters()}
        stateful = {key for key, callback in self.callbacks.items() if callback.on_save_checkpoint(trainer)}
        needed = {"callbacks": stateful, "filters": set(owners["filters"])}
        for kind, what in (("callbacks", "the state of the callback"), ("filters", "the counts of the filter")):
            held = {key for key in state[kind] if not (newcomers and key not in owners[kind] and _is_silent(key))}
            faults = [
                f"the snapshot holds {what} {key!r}, which this trainer lacks" for key in held - set(owners[kind])
            ]
            if not newcomers:
                faults += [f"the snapshot lacks {what} {key!r}, which this trainer has" for key in needed[kind] - held]
            for fault in sorted(faults):
                if strict:
                    raise RestoreMismatch(f"{fault}. Give the same callbacks and listeners, or run(strict=False)")
                warnings.warn(fault, stacklevel=4)
        for key, held in state["callbacks"].items():
            if key in self.callbacks:
                self.callbacks[key].check_state_dict(trainer, held, at)

    def load_state_dict(self, state: Mapping[str, Any], trainer: Any) -> None:
        """Give all listeners their memory back; what has no owner or no entry is left alone (see `check`)."""
        filters = self._filters()
        for key, held in state["callbacks"].items():
            if key in self.callbacks:
                self.callbacks[key].on_load_checkpoint(trainer, held)
        for key, counts in state["filters"].items():
            if key in filters:
                filters[key].load_state_dict(counts)

    def check_plain(
        self, trainer: Any, is_tensor: Callable[[Any], bool], states: Mapping[str, Any] | None = None
    ) -> None:
        """Refuse a callback whose state couldn't be saved, now and not hours later.

        Args:
            trainer: the engine.
            is_tensor: says whether a value is a tensor.
            states: the callbacks' states by their keys, where they are at hand.

        Raises:
            CallerError: it names the callback and the path of keys to what isn't plain data.
        """
        if states is None:
            states = {key: callback.on_save_checkpoint(trainer) for key, callback in self.callbacks.items()}
        for key, state in states.items():
            fault = plain_fault(state, is_tensor)
            if fault:
                raise CallerError(f"the state of callback {key!r} must be plain data or tensors, but {fault}")


def _is_silent(key: str) -> bool:
    """Say whether a saved entry is of a built-in callback that hears nothing of what is executed again."""
    from . import callbacks

    name = key.partition("/")[0].partition("#")[0]
    kind = getattr(callbacks, name, None) if name in callbacks.__all__ else None
    return kind is not None and not takes_part(kind, kind.in_rehearsal)


class _Index(dict[tuple[str, type[Event], str], Heard]):
    """(source, event class, dest) -> who hears it; made when it first occurs."""

    def __init__(self, make: Callable[[str, type[Event], str], Heard]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, key: tuple[str, type[Event], str]) -> Heard:
        heard = self[key] = self._make(*key)
        return heard


def plain_fault(value: Any, is_tensor: Callable[[Any], bool], path: str = "state") -> str:
    """Say what in a tree isn't plain data, with its path of keys; "" if all is."""
    if value is None or type(value) in (bool, int, float, str, bytes) or is_tensor(value):
        return ""
    if isinstance(value, dict):
        for key, held in value.items():
            if type(key) not in (bool, int, float, str):
                return f"{path} has a key of type {type(key).__name__}"
            fault = plain_fault(held, is_tensor, f"{path}[{key!r}]")
            if fault:
                return fault
        return ""
    if type(value) in (list, tuple):
        return next(filter(None, (plain_fault(v, is_tensor, f"{path}[{i}]") for i, v in enumerate(value))), "")
    return f"{path} is a {type(value).__name__}"


def _give_event(trainer: Any, event: Event) -> tuple[Any, ...]:
    return (event,)


def _thinned(fn: Callable[..., Any], thin: Filter) -> Callable[..., Any]:
    def thinned(trainer: Any, *args: Any) -> Any:
        return fn(trainer, *args) if thin.passes(trainer) else None

    return thinned


def _nothing(trainer: Any, *args: Any) -> None:
    """Stands in the place of what isn't called."""


def _once_announced(fn: Callable[..., Any]) -> Callable[..., Any]:
    def announced_once(trainer: Any, *args: Any) -> Any:
        return None if trainer.trainer_state.seq <= trainer.announced_until else fn(trainer, *args)

    return announced_once


def _without_filters(fn: Any, owner: Callback | None) -> tuple[Any, list[Filter]]:
    """Take the filters off a decorated function or method, the outermost first; they are kept with the subscription."""
    thins, bound = [], hasattr(fn, "__self__")
    while (thin := getattr(fn, "__tachograph_filter__", None)) is not None:
        thins.append(thin)
        fn = fn.__wrapped__
    if bound and not hasattr(fn, "__self__"):
        fn = fn.__get__(owner)
    return fn, thins


def _said_of(name: str) -> str:
    """Say what may be meant by a method's name that is no moment."""
    moments = [*MOMENTS, *ALIASES]
    said = instead(name, MOMENTS_ELSEWHERE, moments, 1)
    sure = name in MOMENTS_ELSEWHERE or difflib.get_close_matches(name, moments, 1, cutoff=0.85)
    return said if sure else f"{said} (A method that you call yourself needs a name without on_.)"


def _called(value: Any) -> str:
    name = value.__name__ if isinstance(value, type) else type(value).__name__
    return f"the class {name} (give an instance)" if isinstance(value, type) and issubclass(value, Callback) else name
