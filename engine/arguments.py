"""Checking what a trainer is given. Each check returns the value it will work with, or says what would be legal."""

from __future__ import annotations

import datetime
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from tachograph.drivers import Driver
from tachograph.drivers.matching import mapping_fn, needed
from tachograph.states.cadence import Batches, Cadence, Epochs, Parts, Seconds, Updates
from tachograph.states.errors import CallerError, nearest

from .callbacks.callback import Callback
from .callbacks.monitor import Monitor
from .callbacks.progress import Progress
from .callbacks.snapshot_policy import in_seconds
from .checks import as_callbacks
from .elsewhere import ARGUMENTS_ELSEWHERE, instead
from .events import Filter
from .weighting import Weighting

SETTINGS: dict[str, Any] = {
    # the reference trainer's keyword arguments, with their defaults
    "n_batches": -1,
    "monitor": None,
    "larger_better": True,
    "train_fn": None,
    "evaluate_fn": None,
    "train_input_mapping": None,
    "train_output_mapping": None,
    "evaluate_input_mapping": None,
    "evaluate_output_mapping": None,
    "model_wo_auto_param_call": False,
    "model_use_eval_mode": True,
    "progress_bar": "auto",
    "rows": (),
    "perform": None,
    "max_time": None,
    "accumulation_tail": "flush",
    "loss_weight": None,
    "requeue": None,
    "keep_snapshots": None,
    "on_snapshot_fault": "raise",
    "min_epochs": 0,
    "overfit_batches": 0,
    "fast_dev_run": False,
    "limit_train_batches": -1,
    "limit_validate_batches": -1,
    "deterministic": False,
    "detect_anomaly": False,
    "compile": False,
    "set_grad_to_none": True,
    "torch_non_blocking": True,
    "torch_kwargs": None,
    "processes": None,
    "output_from_new_proc": "only_error",
    # with one process these change nothing
    "data_device": None,
    "torch_ddp_kwargs": None,
    "use_dist_sampler": None,
    "use_eval_dist_sampler": None,
    "check_dataloader_legality": True,
}


def known(kwargs: dict[str, Any], signature: Iterable[str]) -> dict[str, Any]:
    """Return all keyword arguments with their defaults filled in.

    Args:
        kwargs: what was given.
        signature: the names of the constructor's own parameters, for messages.

    Raises:
        CallerError: one isn't known; the nearest are offered.
    """
    for name in kwargs:
        if name not in SETTINGS:
            own = {*signature, *SETTINGS} - {"self", "kwargs"}
            raise CallerError(f"Trainer has no argument {name!r}{instead(name, ARGUMENTS_ELSEWHERE, own)}")
    return {**SETTINGS, **kwargs}


def known_to_run(unknown: Iterable[str], signature: Iterable[str], trainer_s: Iterable[str]) -> None:
    """Refuse what `run` was given and doesn't take.

    Args:
        unknown: the names.
        signature: the names of its own parameters.
        trainer_s: those of the constructor's.

    Raises:
        CallerError: there is one; it says whose argument it is, or the nearest names.
    """
    for name in unknown:
        said = ARGUMENTS_ELSEWHERE.get(name, "")
        its = said.removeprefix("run(").partition("=")[0]
        if name in {*SETTINGS, *trainer_s}:
            told = ": it is Trainer's"
        elif said:
            told = f": here it is {its}" if said.startswith("run(") else f": here it is Trainer's {said}"
        else:
            told = f". {nearest(name, set(signature) - {'self', 'unknown'})}"
        raise CallerError(f"run has no argument {name!r}{told}")


def count(value: Any, name: str) -> int:
    """Check an integer >= 1."""
    if type(value) is not int or value < 1:
        raise CallerError(f"{name} must be an integer >= 1, not {value!r}")
    return value


def batches(value: Any, name: str) -> int:
    """Check a number of batches: -1 for all, or > 0."""
    if type(value) is not int or value == 0 or value < -1:
        raise CallerError(f"{name} must be -1 (all) or an integer > 0, not {value!r}")
    return value


def limit(value: Any, name: str) -> int | None:
    """Check a limit; None and -1 mean that there is none."""
    if value is None or value == -1:
        return None
    if type(value) is not int or value < 0:
        raise CallerError(f"{name} must be -1 (no limit) or an integer >= 0, not {value!r}")
    return value


def epochs(n_epochs: Any, n_batches: int | None) -> int | None:
    """Check a limit in epochs; a limit in batches takes its place."""
    if n_batches is not None or n_epochs is None:
        return None
    if type(n_epochs) is not int or n_epochs < 0:
        raise CallerError(f"n_epochs must be an integer >= 0 or None, not {n_epochs!r}")
    return n_epochs


def one_of(value: Any, name: str, legal: Sequence[str]) -> Any:
    """Check a choice."""
    if value not in legal:
        raise CallerError(f"{name} must be one of {', '.join(map(repr, legal))}, not {value!r}")
    return value


def flag(value: Any, name: str) -> bool:
    """Check a yes or no."""
    if type(value) is not bool:
        raise CallerError(f"{name} must be True or False, not {value!r}")
    return value


def monitor(value: Any) -> Any:
    """Check what callbacks without a monitor of their own look at."""
    return value if value is None or isinstance(value, Monitor) else Monitor(value).name


def duration(value: Any, name: str) -> float | None:
    """Check a time, in seconds, as "90s", "10min", "2h", or as a timedelta; None means that there is no limit."""
    if value is None:
        return None
    held = value.total_seconds() if isinstance(value, datetime.timedelta) else value
    seconds = in_seconds(held) if isinstance(held, str) else held
    if type(seconds) not in (int, float) or not seconds > 0:
        raise CallerError(f"{name} must be seconds > 0, a time such as '10min', or None, not {value!r}")
    return float(seconds)


def cadence(every: Any) -> Any:
    """Check `validate_every`: cadences come back as a tuple, a function as `f(trainer) -> bool`."""
    if callable(every):
        return _asking(every)
    several = tuple(every) if isinstance(every, (list, tuple)) else (every,)
    cadences = tuple(_cadence(one) for one in several)
    if not cadences or None in cadences:
        raise CallerError(
            "validate_every must be n > 0 (batches), -n (epochs), a number with its unit ('100 updates', '0.25 epoch', "
            f"'10min'), several of these, or a function f(trainer) -> bool, not {every!r}{_meant(several, cadences)}"
        )
    return cadences


def _cadence(one: Any) -> Cadence | None:
    if type(one) is int and one != 0:
        return Batches(one) if one > 0 else Epochs(-one)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?|\d+/[1-9]\d*)\s*([a-z]+)\s*", one) if isinstance(one, str) else None
    number = Fraction(match[1]) if match else Fraction(0)
    if match is None or not number:
        return None
    unit, whole = match[2], number.denominator == 1
    if unit in ("epoch", "epochs"):
        return Epochs(int(number)) if whole else Parts(number)
    if unit in ("batch", "batches", "update", "updates"):
        return (Batches if unit.startswith("batch") else Updates)(int(number)) if whole else None
    seconds = in_seconds(one)
    return Seconds(seconds) if seconds > 0 else None


def _meant(given: tuple[Any, ...], found: tuple[Cadence | None, ...]) -> str:
    """Offer the unit that the first of these that can't be used lacks, or is called elsewhere."""
    wrong = next((one for one, cadence in zip(given, found, strict=True) if cadence is None), None)
    if type(wrong) is float and wrong >= 1 and wrong.is_integer():
        return f": say {int(wrong)} (batches)"
    if type(wrong) is float and wrong > 0:
        return f": say '{wrong} epoch'"
    match = re.fullmatch(r"\s*(\d+)\s*(steps?|it|iters?|iterations?|)\s*", wrong) if isinstance(wrong, str) else None
    return f": say '{match[1]} updates' or '{match[1]} batches'" if match and int(match[1]) else ""


def _asking(every: Callable[..., Any]) -> Callable[[Any], bool]:
    arguments = needed(every)
    if arguments == 1:
        return every
    if arguments == 2:  # the reference trainer's first contract: (filter, trainer)
        return _counting(Filter(filter_fn=every))
    raise CallerError(f"validate_every must take (trainer), but {every!r} takes {arguments} arguments")


def _counting(thin: Filter) -> Callable[[Any], bool]:
    """Ask a filter whose counts are the run's own, so that they go on over a resume."""

    def ask(trainer: Any) -> bool:
        state = trainer.trainer_state
        thin.num_called, thin.num_executed = state.global_forward_batches - 1, state.validations
        return thin.passes(trainer)

    return ask


def step_fn(fn: Any, name: str = "batch_step_fn", first: str = "trainer") -> Callable[..., Any]:
    """Check a function that replaces the step."""
    if needed(fn) != 2:
        raise CallerError(f"{name} must be a function of ({first}, batch), not {fn!r}")
    return fn  # type: ignore[no-any-return]


def weighting(given: Any) -> Weighting | None:
    """Check what micro-batches count by."""
    if given is None or (isinstance(given, str) and given):
        return None if given is None else Weighting(given)
    if not callable(given) or needed(given) != 2:
        raise CallerError(
            "loss_weight must be 'samples', the name of an output, a function of (outputs, batch), or None, not "
            f"{given!r}"
        )
    return Weighting(given)


def one_mapping(which: str, shared: Any, own: Any) -> Callable[[Any], Any] | None:
    """Choose between a mapping for both and one for training or evaluation alone."""
    if shared is not None and own is not None:
        raise CallerError(f"{which}_mapping and its train_/evaluate_ form exclude each other: give one")
    return mapping_fn(shared if own is None else own, f"{which}_mapping")


def driver_options(driver: Any, precision: Any, fp16: bool, given: dict[str, Any]) -> dict[str, Any]:
    """Return what the driver's constructor takes of a trainer's arguments.

    Raises:
        CallerError: `torch_kwargs` can't be used; or the driver was built already, and would be told something else.
    """
    if not isinstance(driver, (str, Driver)):  # most often it was left out, and the loader stands in its place
        named = type(driver).__name__
        raise CallerError(f"driver must be a name or a Driver, not {named}: the second argument is 'torch'")
    nested = _nested(given["torch_kwargs"])
    if isinstance(driver, Driver):
        _refuse_beside(driver, {"precision": precision, "fp16": fp16, **given})
        return {}
    return {
        "precision": precision,
        "fp16": fp16,
        "train_fn": given["train_fn"],
        "auto_call": not given["model_wo_auto_param_call"],
        "set_grad_to_none": nested.get("set_grad_to_none", given["set_grad_to_none"]),
        "non_blocking": nested.get("non_blocking", given["torch_non_blocking"]),
        "scaler_options": nested.get("gradscaler_kwargs"),
        "ddp_options": {**(given["torch_ddp_kwargs"] or {}), **nested.get("ddp_kwargs", {})},
        "fsdp_options": nested.get("fsdp_kwargs"),
        "data_device": given["data_device"],
        "share": given["use_dist_sampler"],
        "eval_share": given["use_eval_dist_sampler"],
        "processes": given["processes"],
        "output_from_new_proc": given["output_from_new_proc"],
    }


_OF_THE_DRIVER = (
    "train_fn",
    "model_wo_auto_param_call",
    "set_grad_to_none",
    "torch_non_blocking",
    "torch_kwargs",
    "processes",
)
_IN_TORCH_KWARGS = ("ddp_kwargs", "fsdp_kwargs", "gradscaler_kwargs", "set_grad_to_none", "non_blocking")


def _nested(held: Any) -> dict[str, Any]:
    if held is not None and not isinstance(held, Mapping):
        raise CallerError(f"torch_kwargs must be a dict, not {held!r}")
    for name in held or ():
        if name not in _IN_TORCH_KWARGS:
            raise CallerError(f"torch_kwargs has no {name!r}. {nearest(str(name), _IN_TORCH_KWARGS)}")
    return dict(held or {})


def _refuse_beside(driver: Driver, given: Mapping[str, Any]) -> None:
    """Refuse what a driver that is built can't be told any more."""
    usual = {"precision": None, "fp16": False, **{name: SETTINGS[name] for name in _OF_THE_DRIVER}}
    for name, value in usual.items():
        if given[name] != value:
            kind = type(driver).__name__
            raise CallerError(f"{name}={given[name]!r} is for a driver that is built here: give it to {kind}(...)")


def with_progress(callbacks: Any, progress: Any) -> list[Any]:
    """Put the progress callback first, unless the user brings one."""
    held = list(as_callbacks(callbacks))
    if any(isinstance(callback, Progress) for callback in held):
        if progress not in (None, "auto") and not any(progress is callback for callback in held):
            warnings.warn("callbacks hold a Progress, so progress_bar is ignored", stacklevel=3)
        return held
    if progress is None:
        return held
    return [progress if isinstance(progress, Callback) else Progress(progress), *held]


def interactive() -> bool:
    """Say whether somebody sits at a prompt: a REPL or a notebook."""
    return hasattr(sys, "ps1") or "ipykernel" in sys.modules
