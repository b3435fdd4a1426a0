"""`GradClip`: keeps gradients from growing too large, by their norm or value by value."""

from __future__ import annotations

from typing import Any

from tachograph.states.errors import CallerError

from .callback import Callback
from .other_words import names_its_arguments

_TYPES = ("norm", "value")


@names_its_arguments
class GradClip(Callback):
    """Clips the gradients before each optimizer step, once an accumulation window.

    Where a gradient scaler is at work they are unscaled by then, and it alone sees to those that aren't finite.

    Args:
        clip_value: what the norm, or each value's size, may be at most; > 0.
        clip_type: "norm": all gradients are scaled by one factor, so that the norm of them all is `clip_value` at most;
            "value": each value is cut off at -`clip_value` and `clip_value`.
        parameters: whose gradients; None means all that the optimizers move.
        norm_type: of the norm, 2.0 or float("inf") say; > 0.
        error_if_nonfinite: with "norm": a norm that is NaN or infinite is an error.
        log: hand the norm to the loggers, as "grad_norm"; it is read from the device then.

    Attributes:
        norm: the norm before the last clipping, where it lies: a tensor on the device, which nobody has waited for.
            None before the first, and with "value".

    Raises:
        CallerError: an argument can't be used.
    """

    def __init__(
        self,
        clip_value: float = 1.0,
        clip_type: str = "norm",
        parameters: Any = None,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        log: bool = False,
    ) -> None:
        for name, value in (("clip_value", clip_value), ("norm_type", norm_type)):
            if type(value) not in (int, float) or not value > 0:
                raise CallerError(f"{name} must be a number > 0, not {value!r}")
        if clip_type not in _TYPES:
            raise CallerError(f"clip_type must be one of {', '.join(_TYPES)}, not {clip_type!r}")
        if clip_type == "value" and (error_if_nonfinite or log):
            raise CallerError("clip_type='value' computes no norm: leave out error_if_nonfinite and log")
        self.norm: Any = None
        self._value, self._type = float(clip_value), clip_type
        self._norm_type, self._strict = float(norm_type), error_if_nonfinite
        self._log = log
        single = hasattr(parameters, "grad") or isinstance(parameters, str) or not hasattr(parameters, "__iter__")
        self._parameters = None if parameters is None else [parameters] if single else list(parameters)

    def on_after_trainer_initialized(self, trainer: Any, driver: Any) -> None:
        given = self._parameters
        if given is not None and (not given or not all(map(driver.is_tensor, given))):
            raise CallerError("GradClip: parameters must be parameters of the model, at least one; None means all")
        self.norm = None

    def on_before_optimizer_step(self, trainer: Any, optimizers: Any) -> None:
        driver = trainer.driver
        if self._type == "value":
            driver.clip_gradients_by_value(self._value, self._parameters)
            return
        self.norm = driver.clip_gradients_by_norm(
            self._value, self._parameters, norm_type=self._norm_type, error_if_nonfinite=self._strict
        )
        if self._log and self.norm is not None:
            trainer.log({"grad_norm": self.norm})

    def built_with(self) -> dict[str, Any]:
        told = {"clip_value": self._value, "clip_type": self._type, "norm_type": str(self._norm_type)}
        return told if self._parameters is None else {**told, "parameters": len(self._parameters)}


TorchGradClipCallback = GradClip  # the reference trainer's name
