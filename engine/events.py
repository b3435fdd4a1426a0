"""The named points that listeners subscribe to, and the filters that thin their calls.

Their names are the `on_...` methods of `Callback`. Most moments hang on transitions (`hangs_on` says which); the others
lie inside *step* and inside the evaluator.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, TypeVar

import attrs

from tachograph.states.errors import CallerError

from .arity import check_plain, name_of, signature_of, takes
from .callbacks.callback import ALIASES, MOMENTS
from .elsewhere import MOMENTS_ELSEWHERE, instead

Fn = TypeVar("Fn", bound=Callable[..., Any])


def moment_name(name: str) -> str:
    """Return a moment's own name for a name or an alias of it.

    Raises:
        CallerError: there is no such moment; the nearest names are offered.
    """
    found = ALIASES.get(name, name)
    if found not in MOMENTS:
        raise CallerError(f"there is no moment {name!r}{instead(name, MOMENTS_ELSEWHERE, [*MOMENTS, *ALIASES])}")
    return found


class Filter:
    """Decides, from a count of calls, which of them go through.

    Counting starts at 1 and goes on over resumes: the counts are saved with every snapshot. At most one of `every`,
    `once`, `filter_fn` and the pair `before`/`after` may be given; none means every call.

    Args:
        every: int > 0: calls number every, 2 * every, ...
        once: int > 0, or a list of them: exactly these calls.
        before: int > 0: calls with a number below it.
        after: int >= 0: calls with a number above it.
        filter_fn: `filter_fn(filter, trainer) -> bool`; without a memory of its own beside `num_called` and
            `num_executed`, since only these are saved.

    Attributes:
        num_called: calls so far, the present one included.
        num_executed: calls that went through.

    Raises:
        CallerError: more than one condition, or one of the wrong type or range.
    """

    def __init__(
        self,
        every: int | None = None,
        once: int | list[int] | None = None,
        filter_fn: Callable[[Filter, Any], bool] | None = None,
        *,
        before: int | None = None,
        after: int | None = None,
    ) -> None:
        given = [every is not None, once is not None, filter_fn is not None, before is not None or after is not None]
        if sum(given) > 1:
            raise CallerError("a Filter takes one of every, once, filter_fn and before/after, not several")
        for name, value, least in (("every", every, 1), ("before", before, 1), ("after", after, 0)):
            if value is not None and (type(value) is not int or value < least):
                raise CallerError(f"Filter({name}=...) must be an integer >= {least}, not {value!r}")
        calls = [once] if type(once) is int else once
        if calls is not None and not (isinstance(calls, (list, tuple)) and calls and all(_is_call(n) for n in calls)):
            raise CallerError(f"Filter(once=...) must be an integer > 0 or a list of them, not {once!r}")
        if filter_fn is not None:
            _check_filter_fn(filter_fn)
        self.every, self.once, self.filter_fn, self.before, self.after = every, once, filter_fn, before, after
        self._calls = frozenset(calls or ())
        self.num_called = 0
        self.num_executed = 0
        self._passes = self._test()

    def _test(self) -> Callable[[Any], bool]:
        if self.every is not None:
            every = self.every
            return lambda trainer: self.num_called % every == 0
        if self._calls:
            return lambda trainer: self.num_called in self._calls
        if self.filter_fn is not None:
            fn = self.filter_fn
            return lambda trainer: bool(fn(self, trainer))
        low, high = self.after or 0, self.before
        return lambda trainer: self.num_called > low and (high is None or self.num_called < high)

    def copy(self) -> Filter:
        """Return a filter with the same condition and no calls counted."""
        other = copy.copy(self)
        other.num_called = other.num_executed = 0
        other._passes = other._test()  # it asks about the one that it was made by
        return other

    def passes(self, trainer: Any) -> bool:
        """Count a call and say whether it goes through."""
        self.num_called += 1
        if self._passes(trainer):
            self.num_executed += 1
            return True
        return False

    def __call__(self, fn: Fn) -> Fn:
        """Decorate a `Callback` method or a function; each instance it is registered for counts for itself.

        Raises:
            CallerError: it is neither.
        """
        if not callable(fn) or isinstance(fn, type):
            what = f"the class {fn.__name__}" if isinstance(fn, type) else type(fn).__name__
            raise CallerError(f"a Filter decorates a function or a method, not {what}")

        @wraps(fn)
        def filtered(*args: Any, **kwargs: Any) -> Any:
            trainer = next((a for a in args if hasattr(a, "trainer_state")), None)
            return fn(*args, **kwargs) if self.passes(trainer) else None

        filtered.__tachograph_filter__ = self  # type: ignore[attr-defined]
        return filtered  # type: ignore[return-value]

    def state_dict(self) -> dict[str, int]:
        return {"num_called": self.num_called, "num_executed": self.num_executed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.num_called, self.num_executed = state["num_called"], state["num_executed"]


def _check_filter_fn(fn: Any) -> None:
    if not callable(fn):
        raise CallerError(f"Filter(filter_fn=...) must be callable, not {type(fn).__name__}")
    check_plain(fn, "a filter_fn")
    if not takes(fn, "filter", "trainer"):
        raise CallerError(
            f"Filter(filter_fn=...) must take (filter, trainer), which {name_of(fn)}{signature_of(fn)} can't"
        )


def _is_call(number: object) -> bool:
    return type(number) is int and number > 0


@attrs.frozen(eq=False)
class Moment:
    """A moment with a filter for the listener that will subscribe to it. Equal by name: filters are ignored."""

    name: str
    filter: Filter | None = None

    def __call__(
        self,
        every: int | None = None,
        once: int | list[int] | None = None,
        filter_fn: Callable[[Filter, Any], bool] | None = None,
        *,
        before: int | None = None,
        after: int | None = None,
    ) -> Moment:
        """Return this moment thinned by a `Filter` of these arguments."""
        return Moment(self.name, Filter(every, once, filter_fn, before=before, after=after))

    def __or__(self, other: object) -> EventsList:
        return EventsList([self]) | other

    def __ror__(self, other: object) -> EventsList:
        return EventsList([other, self])

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (Moment, str)):
            return self.name == (other if isinstance(other, str) else other.name)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.name)

    def __str__(self) -> str:
        return self.name


class EventsList:
    """Several targets for one listener: `Events.on_train_begin | Events.on_train_batch_end(every=3)`."""

    def __init__(self, targets: list[Any]) -> None:
        self._targets = list(targets)

    def __or__(self, other: object) -> EventsList:
        return EventsList([*self._targets, *(other if isinstance(other, EventsList) else [other])])

    def __ror__(self, other: object) -> EventsList:
        return EventsList([other, *self._targets])

    def __iter__(self) -> Iterator[Any]:
        return iter(self._targets)

    def __getitem__(self, index: int) -> Any:
        return self._targets[index]

    def __len__(self) -> int:
        return len(self._targets)


class _Moments(type):
    def __getattr__(cls, name: str) -> Moment:
        try:
            return Moment(moment_name(name))
        except CallerError as error:
            raise AttributeError(str(error)) from None

    def __iter__(cls) -> Iterator[Moment]:
        return (Moment(name) for name in MOMENTS)

    def __dir__(cls) -> list[str]:
        return [*MOMENTS, *ALIASES]


class Events(metaclass=_Moments):
    """The moments by name: `Events.on_train_batch_end`, or thinned, `Events.on_train_batch_end(every=100)`."""


def hangs_on(source: str, event: str, dest: str) -> list[str]:
    """Say which moments hang on a transition, in the order they are heard: ends first, then begins.

    A state that a user adds gets what its transitions share with the built-in ones: whatever is entered and left by
    these names. `on_train_begin` belongs to the first way out of the beginning, `on_train_end` to every way into
    a final state after it.
    """
    heard = []
    begun = source not in ("init", "sanity_check")
    begins = not begun and (dest == "epoch_begin" or (event == "Started" and dest == "done"))
    if event == "SanityChecked":
        heard.append("on_sanity_check_end")
    if event == "Validated":
        heard.append("on_validate_end")
    if source == "fetch":
        heard.append("on_fetch_data_end")
    by_event = {
        "Fetched": "on_train_batch_begin",
        "Stepped": "on_train_batch_end",
        "EpochBegan": "on_train_epoch_begin",
        "EpochEnded": "on_train_epoch_end",
        "Stopped": "on_stop",
        "Failed": "on_exception",
    }
    if event in by_event:
        heard.append(by_event[event])
    if begins:
        heard.append("on_train_begin")
    by_dest = {"sanity_check": "on_sanity_check_begin", "validate": "on_validate_begin", "fetch": "on_fetch_data_begin"}
    if dest in by_dest:
        heard.append(by_dest[dest])
    if dest in ("done", "exception") and (begun or begins):
        heard.append("on_train_end")
    return heard
