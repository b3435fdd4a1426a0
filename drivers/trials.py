"""What a driver of one device does for those who look for faults: trials that leave no trace, and a profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from . import hyperparameters, profiling, trying
from .captures import Captures
from .deterministic import debugged
from .driver import NO_BATCH
from .precision import forget_unscaled


class Trials(Captures):
    """The part of `TorchDriver` for debugging."""

    # what the other parts bring
    _loader: Any
    _told: Callable[[str], None]

    def debugging(self, deterministic: bool | str, detect_anomaly: bool) -> AbstractContextManager[None]:
        return debugged(deterministic, detect_anomaly, self.device, self._told)

    def profiler(
        self, schedule: Sequence[int] | None, activities: Sequence[Any] | None, ready: Callable[[], Path], options: Any
    ) -> Any:
        return profiling.profiler(schedule, activities, ready, options)

    @contextmanager
    def untouched(self) -> Iterator[None]:
        self.model.to(self.device)
        built, source = self._built, self._source
        with trying.buffers_kept(self.model), trying.groups_kept(self.optimizers), trying.data_kept(self._loader):
            self._source = None  # what is read for a trial isn't read from there
            held = self._captured({}, NO_BATCH, whole=True)
            try:
                yield
            finally:
                self.tidy_up()
                self.restore((held["model"], {**held, "faults": {}, "buffers": {}, "new_rank": False}))
                self.restore_generators()
                self._source, self._built, self._staging = source, built, None

    def trial_batches(self, dataloader: Any, seed: int, size: int | None = None) -> Iterator[Any]:
        for batch in trying.batches(dataloader, seed, size):
            yield self.to_device(batch if self.input_mapping is None else self.input_mapping(batch))

    def samples_in(self, dataloader: Any) -> int | None:
        return trying.samples_in(dataloader)

    def set_learning_rate(self, rate: float) -> None:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                hyperparameters.put(group, hyperparameters.moved(group, rate))

    def ran_out_of_memory(self, error: BaseException) -> bool:
        return trying.out_of_memory(error)

    def tidy_up(self) -> None:
        if self._scaler is not None:
            forget_unscaled(self._scaler)
        self.zero_grad()
        trying.give_back_memory()


__all__ = ["Trials"]
