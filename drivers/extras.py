"""What a driver may do beside training: describe itself, help to debug, and try things out. All of it has a default.

A driver of your own needs none of it; what it can't do is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from tachograph.states.errors import CallerError

PARTS = ("gradients", "parameters", "buffers", "optimizers", "scaler")
"""What fingerprints are taken of, in the order in which one follows from the other; the batch comes before them."""


def fingerprints_file(rank: int = 0) -> str:
    """Name the file of a snapshot that holds the fingerprints of what a rank captured. Nothing is restored from it."""
    return f"fingerprints-{rank}.json" if rank else "fingerprints.json"


class Extras:
    """The part of a driver that training can do without."""

    def memory(self) -> dict[str, int]:
        """Return how many bytes of the device's own memory are in use, by what they are counted as; {} on the CPU."""
        return {}

    def summary(self, depth: int = 1) -> list[dict[str, Any]]:
        """Describe the model's modules, in plain data: the whole of it first, [] where there are none.

        Args:
            depth: how deep to go; 0 means the whole only, -1 everything.

        Returns:
            For each "name" ("" for the whole), "kind" (its class), "parameters", "trainable" (values of them) and
            "bytes" (of parameters and buffers). What several modules share is counted in each, and once in the whole.
        """
        return []

    def fingerprints(self, parts: Sequence[str] = PARTS) -> dict[str, str | None]:
        """Return 16 hex digits for each part: equal for equal bits, others for others. A device is waited for once.

        Of many ranks each tells of what it holds: all of a model, or its own share.

        Args:
            parts: some of `PARTS`.

        Returns:
            part -> digits; None where there is no such thing; {} from a driver that takes none.
        """
        return {}

    def fingerprint_of(self, value: Any) -> str | None:
        """Return 16 hex digits for a batch, or any tree of tensors, arrays and plain data; None: it isn't known."""
        return None

    def overfit(self, batches: int) -> None:
        """Use the first batches of the first epoch in every epoch; called after `set_dataloader`, before `setup`.

        Args:
            batches: how many, > 0; -1: all of that epoch.
        """
        raise CallerError(f"{type(self).__name__} doesn't know overfit_batches")

    def kept_batches(self, seed: int) -> Iterator[Any]:
        """Yield the batches that `overfit` speaks of, as the loader made them.

        Args:
            seed: of the run.
        """
        raise CallerError(f"{type(self).__name__} doesn't know overfit_batches")

    def compile(self, options: Mapping[str, Any]) -> None:
        """Compile what batches are given to, in training and evaluation; the model stays what it is."""
        raise CallerError(f"{type(self).__name__} doesn't compile its model: leave compile out")

    def debugging(self, deterministic: bool | str, detect_anomaly: bool) -> AbstractContextManager[Any]:
        """Run the body with deterministic algorithms, or with anomaly detection, and put back what was chosen before.

        Args:
            deterministic: True, "warn" or False.
            detect_anomaly: a backward pass that makes a NaN is an error.
        """
        return nullcontext()

    def profiler(
        self, schedule: Sequence[int] | None, activities: Sequence[Any] | None, ready: Callable[[], Path], options: Any
    ) -> Any:
        """Make a profiler with `start()`, `step()` and `stop()`.

        Args:
            schedule: steps to wait, to warm up, to record, and how often; None records all.
            activities: "cpu", "cuda" and so on; None: all there are.
            ready: says into which file a trace goes that is complete.
            options: what the profiler takes beside these.
        """
        raise CallerError(f"{type(self).__name__} has no profiler")

    def untouched(self) -> AbstractContextManager[Any]:
        """Run the body, which may train, and put back everything that training moves; no run is under way."""
        raise CallerError(f"{type(self).__name__} can't put back what a trial run moves")

    def trial_batches(self, dataloader: Any, seed: int, size: int | None = None) -> Iterator[Any]:
        """Yield batches for a trial run, mapped and on the device, without end.

        Args:
            dataloader: the training loader.
            seed: of the run.
            size: samples in a batch; None: as the loader makes them.
        """
        raise CallerError(f"{type(self).__name__} makes no batches for a trial run")

    def samples_in(self, dataloader: Any) -> int | None:
        """Return how many samples a loader goes over in an epoch; None if that isn't known."""
        return None

    def set_learning_rate(self, rate: float) -> None:
        """Set the learning rate of every parameter group, and what a schedule computes it from in proportion."""

    def ran_out_of_memory(self, error: BaseException) -> bool:
        """Say whether an error means that there is too little memory."""
        return isinstance(error, MemoryError)

    def tidy_up(self) -> None:
        """Let go of what a step has left that an error ended in its middle."""


__all__ = ["PARTS", "Extras", "fingerprints_file"]
