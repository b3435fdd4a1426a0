"""What helps to debug a run: a quick pass, the same few batches again and again, limits, what torch is to watch.

`Debugging` is read from a trainer's keyword arguments once, and says what becomes of its other arguments. Nothing of it
is asked in the loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import attrs

from tachograph.drivers import Driver
from tachograph.drivers.lengths import length_of, most_of
from tachograph.states.errors import CallerError

from .callbacks.callback import Callback
from .describing import described
from .listeners import takes_part

Limit = int | float
"""A number of batches, -1 for all; or a fraction of a loader's length."""


@attrs.frozen
class Debugging:
    """The debug helpers of one trainer.

    Attributes:
        overfit: batches that are trained on in every epoch; -1: all of the first epoch; 0: off.
        fast: batches of everything in a quick pass; 0: off.
        train: the limit of an epoch, where `run()` gives none.
        validate: the limit of each validation loader, likewise.
        deterministic: True, "warn" or False.
        detect_anomaly: a backward pass that makes a NaN is an error.
        compile: keyword arguments of `torch.compile`; None leaves the model uncompiled.
    """

    overfit: int = 0
    fast: int = 0
    train: Limit = -1
    validate: Limit = -1
    deterministic: bool | str = False
    detect_anomaly: bool = False
    compile: dict[str, Any] | None = None

    # -- what becomes of a trainer's arguments -------------------------------------------------------------

    def shortened(self, given: dict[str, Any], **own: Any) -> list[Any]:
        """Return arguments of a trainer as a quick pass has them: one epoch, no limit of another kind, nothing on disk.

        Args:
            given: the keyword arguments that the constructor doesn't name; changed in place.
            own: `n_epochs`, `run_dir`, `validate_every` and `snapshot_every`.
        """
        if self.fast:
            own |= {"n_epochs": 1, "run_dir": None, "validate_every": -1, "snapshot_every": None}
            given |= {"n_batches": -1, "max_time": None, "keep_snapshots": None, "min_epochs": 0}
        return list(own.values())

    def evaluated(self, trainer: Any, loaders: Any, metrics: Any) -> Any:
        """Return the validation loaders; those of a trainer that overfits are the batches it trains on, by their names.

        So a monitor of "loss#val" goes on finding it.
        """
        if not self.overfit or metrics is None:
            return loaders
        names = list(loaders) if isinstance(loaders, Mapping) else [""]
        return dict.fromkeys(names, Kept(trainer, self.overfit))

    def loader(self, trainer: Any) -> Any:
        """Return what a loop of the user's own goes over: the training loader, or what is kept of it."""
        return Kept(trainer, self.overfit) if self.overfit else trainer.train_dataloader

    def ready(self, driver: Driver) -> None:
        """Tell a driver that has its loader what concerns it."""
        if self.overfit:
            driver.overfit(self.overfit)
        if self.compile is not None:
            driver.compile(self.compile)

    def heard(self, callbacks: Sequence[Callback]) -> list[Callback]:
        """Return the callbacks that hear of a run: in a quick pass, none that would leave something behind."""
        if not self.fast:
            return list(callbacks)
        return [callback for callback in callbacks if not isinstance(callback, Callback) or takes_part(callback)]

    # -- what becomes of a run -----------------------------------------------------------------------------

    def source(self, resume_from: Any) -> Any:
        """Return where a run goes on from: a quick pass from nowhere, since it would be at another run's end."""
        return None if self.fast else resume_from

    def limits(self, train: int, validate: Limit, sanity: int, loader: Any) -> tuple[int, Limit, int]:
        """Return a run's limits in batches: a quick pass's own, else what `run()` was given, else what the trainer was.

        Args:
            train: batches of an epoch; -1: it wasn't given.
            validate: batches of each validation loader, likewise.
            sanity: batches of the sanity check; 0: none, in a quick pass too.
            loader: the training loader.

        Raises:
            CallerError: a fraction, and the loader doesn't know its length.
        """
        if self.fast:
            return self.fast, self.fast, self.fast if sanity else 0
        if train == -1:
            train = most_of(loader, self.train, "limit_train_batches", "train_dataloader")
        return train, self.validate if validate == -1 else validate, sanity

    def around(self, driver: Driver) -> AbstractContextManager[Any]:
        """Run the body as it is to be watched."""
        return driver.debugging(self.deterministic, self.detect_anomaly)

    def sentence(self) -> str:
        """Say that this is a quick pass; "" if it isn't."""
        if not self.fast:
            return ""
        batches = f"{self.fast} batch{'es' if self.fast > 1 else ''}"
        return (
            f"fast_dev_run: one epoch of {batches}, of training, validation and sanity check alike; run_dir and "
            "resume_from are ignored, and callbacks that would leave something behind hear nothing"
        )

    def settings(self) -> dict[str, Any]:
        """Return what `run.json` keeps of it; the rest is among the limits and in the environment."""
        compiled = False if self.compile is None else described(self.compile) or True
        return {"overfit_batches": self.overfit, "compile": compiled}


def debugging_of(given: Mapping[str, Any]) -> Debugging:
    """Read a trainer's keyword arguments.

    Raises:
        CallerError: one of them can't be used.
    """
    fast = given["fast_dev_run"]
    if not isinstance(fast, bool) and (type(fast) is not int or fast < 0):
        raise CallerError(f"fast_dev_run must be True, False or a number of batches >= 0, not {fast!r}")
    overfit = given["overfit_batches"]
    if type(overfit) is not int or overfit < -1:
        raise CallerError(f"overfit_batches must be 0 (off), -1 (all) or an integer > 0, not {overfit!r}")
    return Debugging(
        overfit=overfit,
        fast=int(fast),
        train=_limit(given, "limit_train_batches"),
        validate=_limit(given, "limit_validate_batches"),
        deterministic=_switch(given, "deterministic", "warn"),
        detect_anomaly=bool(_switch(given, "detect_anomaly")),
        compile=_options(given["compile"]),
    )


def _limit(given: Mapping[str, Any], name: str) -> Limit:
    value = given[name]
    if value is None or value == -1:
        return -1
    if (type(value) is int and value > 0) or (type(value) is float and 0.0 < value <= 1.0):
        return value  # type: ignore[no-any-return]
    raise CallerError(
        f"{name} must be an integer > 0 (batches), a fraction of the loader's length > 0.0 and <= 1.0, or -1 (all), "
        f"not {value!r}"
    )


def _switch(given: Mapping[str, Any], name: str, *more: str) -> bool | str:
    value = given[name]
    if not isinstance(value, bool) and value not in more:
        raise CallerError(f"{name} must be {', '.join(['True', 'False', *map(repr, more)])}, not {value!r}")
    return value  # type: ignore[no-any-return]


def _options(value: Any) -> dict[str, Any] | None:
    if isinstance(value, bool) or value is None:
        return {} if value else None
    if isinstance(value, Mapping):
        return dict(value)
    raise CallerError(f"compile must be True, False or a dict of torch.compile's keyword arguments, not {value!r}")


class Kept:
    """The batches that a trainer overfits, as a loader.

    Args:
        trainer: whose.
        batches: how many it was told; -1: all of its first epoch.
    """

    def __init__(self, trainer: Any, batches: int) -> None:
        self._trainer = trainer
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        kept: Iterator[Any] = self._trainer.driver.kept_batches(self._trainer.seed)
        return kept

    def __len__(self) -> int:
        length = length_of(self._trainer.train_dataloader)
        if length is None:
            raise TypeError("the training loader doesn't know its length")
        return length if self._batches < 0 else min(self._batches, length)


__all__ = ["Debugging", "Kept", "Limit", "debugging_of"]
