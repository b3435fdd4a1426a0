"""What the callbacks with a monitor share: which of the results they look at, and what better means.

A callback that has one does four things with it: `Monitor.of(...)` in `on_after_trainer_initialized`, `check` in
`on_sanity_check_end` (a wrong name is refused there and not hours later), `value` and `improves` in `on_validate_end`,
and `state_dict` in its own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from difflib import SequenceMatcher
from numbers import Real
from typing import Any

from tachograph.engine.describing import named
from tachograph.states.errors import CallerError, nearest

_WORDS = ("nan", "inf", "-inf")  # how a journal writes these numbers


class Monitor:
    """Reads one value from validation results and remembers the best.

    Every callback's `monitor` takes one too, in place of a key; it is a specification there, and the callback's own
    memory.

    Args:
        name: a key of the results, or its first parts ("loss" for "loss#val"), as long as only one key has them; or
            `f(results) -> float or None`.
        larger_better: a larger value is the better one; None means the trainer's setting, or True without a trainer.
        min_delta: how much better a value must be to count, >= 0.
        fuzzy: a name that no key fits means the key that has the longest part in common with it, with a warning; that
            key is kept to while it is there.

    Attributes:
        best: the best value so far; None before the first.
        key: the key that was read last; None before the first, and for a function.

    Raises:
        CallerError: `name` is neither, `larger_better` none of the three, or `min_delta` no number >= 0.
    """

    def __init__(
        self,
        name: str | Callable[[dict[str, Any]], Any],
        larger_better: bool | None = None,
        min_delta: float = 0.0,
        fuzzy: bool = False,
    ) -> None:
        if not isinstance(name, str) and not callable(name):
            raise CallerError(f"monitor must be a key of the results or a function, not {name!r}")
        check_larger_better(larger_better)
        self.name = name
        self.larger_better = larger_better is not False
        self.min_delta = _delta(min_delta)
        self.fuzzy = fuzzy
        self.best: float | None = None
        self.key: str | None = None
        self._larger_asked = larger_better

    @classmethod
    def of(
        cls,
        asked: Monitor | str | Callable[[dict[str, Any]], Any] | None,
        larger_better: bool | None = None,
        min_delta: float | None = None,
        *,
        trainer: Any = None,
        needed_by: str = "",
    ) -> Monitor | None:
        """Make a callback's monitor of what the callback was given, or else of the trainer's.

        Args:
            asked: what its `monitor` is; None takes the trainer's.
            larger_better: what it was told; None takes the specification's, else the trainer's.
            min_delta: likewise.
            trainer: whose `monitor` and `larger_better` fill in; None while there's none yet.
            needed_by: the name of a callback that can't do without.

        Returns:
            A new one, with a memory of its own; None where nobody gave any.

        Raises:
            CallerError: it can't be one, or `needed_by` goes without.
        """
        check_larger_better(larger_better)  # whoever will be looked at
        delta = None if min_delta is None else _delta(min_delta)
        given = getattr(trainer, "monitor", None) if asked is None else asked
        if given is None:
            if needed_by:
                raise CallerError(f"{needed_by} needs a monitor: give it one, or Trainer(monitor=...)")
            return None
        held = given if isinstance(given, Monitor) else cls(given)
        for larger in (larger_better, held._larger_asked, getattr(trainer, "larger_better", None)):
            if larger is not None:
                break
        return cls(held.name, larger, held.min_delta if delta is None else delta, held.fuzzy)

    @property
    def label(self) -> str:
        """Its name, or its function's, for messages and file names."""
        return self.name if isinstance(self.name, str) else str(named(self.name))

    def check(self, results: dict[str, Any]) -> None:
        """Find the key in a sanity check's results; nothing is compared with them later.

        Raises:
            CallerError: `value` would refuse them.
        """
        try:
            self.value(results)
        except CallerError as error:
            raise CallerError(
                f"{error} (These are the sanity check's results; run(num_eval_sanity_batch=...) says of how many "
                "batches they are made, 0 for no check.)"
            ) from None

    def value(self, results: dict[str, Any]) -> float | None:
        """Read the value; None where there is none this time.

        Raises:
            CallerError: no key, or more than one, has this name; the keys there are are listed. Or it is no number.
        """
        if callable(self.name):
            found = self.name(results)
        else:
            key = self._find(self.name, results)
            if self.key is not None and key != self.key:
                warnings.warn(
                    f"monitor {self.name!r} was read from {self.key!r} so far, and is read from {key!r} now",
                    stacklevel=2,
                )
            self.key = key
            found = results[key]
        if found is None:
            return None
        number = _number(found)
        if number is None:
            numbers = ", ".join(key for key, value in results.items() if _number(value) is not None) or "none"
            raise CallerError(f"monitor {self.label!r} is a {type(found).__name__} and no number. Numbers: {numbers}.")
        return number

    def better(self, value: float, than: float | None = None) -> bool:
        """Say whether a value is better than another, by more than `min_delta`. NaN never is, nor is a tie.

        Args:
            value: the one.
            than: the other; None stands for none: then all but the worst infinity is better.
        """
        if than is None:
            return value > -float("inf") if self.larger_better else value < float("inf")
        return (value - than if self.larger_better else than - value) > self.min_delta

    def improves(self, value: float) -> bool:
        """Say whether a value is better than the best, and remember it if so. NaN never is."""
        if not self.better(value, self.best):
            return False
        self.best = value
        return True

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive a resume."""
        return {"key": self.key, "best": self.best}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take back what `state_dict` returned; a key that is missing there is found anew."""
        self.key, self.best = state.get("key"), state["best"]

    def built_with(self) -> dict[str, Any]:
        """Return the settings, for the `built_with` of a callback."""
        told = {"monitor": self.label, "larger_better": self.larger_better, "min_delta": self.min_delta}
        return {**told, "fuzzy": True} if self.fuzzy else told

    def _find(self, name: str, results: dict[str, Any]) -> str:
        if name in results:
            return name
        if self.fuzzy and self.key in results:
            return str(self.key)
        alike = [key for key in results if key.split("#")[: name.count("#") + 1] == name.split("#")]
        if len(alike) == 1:
            return alike[0]
        likest = _likest(name, results) if self.fuzzy else None
        if likest is None:
            missing = f"isn't among the results. {nearest(name, results)}"
            raise CallerError(f"monitor {name!r} {_fits(alike) if alike else missing}")
        if self.key is None:
            warnings.warn(f"monitor {name!r} isn't among the results: {likest!r} is taken for it", stacklevel=3)
        return likest


def check_larger_better(value: Any) -> None:
    """Refuse what says neither of the two directions.

    Raises:
        CallerError: it isn't True, False or None.
    """
    if not any(value is legal for legal in (True, False, None)):
        raise CallerError(
            "larger_better must be True (more is better), False (less is) or None (what the trainer says), "
            f"not {value!r}"
        )


def _delta(value: Any) -> float:
    if not isinstance(value, Real) or isinstance(value, bool) or not float(value) >= 0:
        raise CallerError(f"min_delta must be a number >= 0, not {value!r}")
    return float(value)


def _fits(keys: list[str]) -> str:
    return f"fits {', '.join(keys)}: give the whole key."


def _number(value: Any) -> float | None:
    """Return a value as a float, a tensor of one element too; None for what is no number."""
    many = value.numel() if hasattr(value, "numel") else getattr(value, "size", 1)
    held = value.item() if hasattr(value, "item") and many == 1 else value
    return float(held) if isinstance(held, (int, float)) or (isinstance(held, str) and held in _WORDS) else None


def _likest(name: str, results: dict[str, Any]) -> str | None:
    """Return the first of the keys with a number that have the longest part in common with a name; None if none has."""
    longest: tuple[int, str | None] = (0, None)
    for key, value in results.items():
        matcher = SequenceMatcher(None, name, key, autojunk=False)
        size = matcher.find_longest_match(0, len(name), 0, len(key)).size
        if size > longest[0] and _number(value) is not None:
            longest = (size, key)
    return longest[1]
