"""`TopkQueue` and `TopkSaver`: the n best of what was saved, for callbacks of your own."""

from __future__ import annotations

from collections.abc import Callable, Container
from pathlib import Path
from typing import Any

from tachograph.states.errors import CallerError

from .results_monitor import Asked, ResultsMonitor
from .saver import Saver
from .saves import Saved, epochs_done, fitting

Pair = tuple[str | None, float | None]


class TopkQueue:
    """Keeps the names with the n largest values. It has no files.

    Args:
        topk: n; -1 keeps all, 0 none.

    Raises:
        CallerError: it is none of these.
    """

    def __init__(self, topk: int) -> None:
        if type(topk) is not int or topk < -1:
            raise CallerError(f"topk must be n > 0 (the n best), -1 (all) or 0 (none), not {topk!r}")
        self.topk = topk
        self.held: dict[str, float] = {}

    def takes(self, name: str, value: float) -> bool:
        """Say whether `push` would keep it. NaN is good for nothing but -1, and of equal values the newer one is."""
        if self.topk < 0 or (name in self.held and value == value):
            return True
        return value == value and (len(self.held) < self.topk or (self.topk > 0 and value >= self._worst()[1]))

    def push(self, name: str, value: float) -> Pair:
        """Take a name in.

        Returns:
            The pair that goes for it; the pair that was given, if it isn't good enough; (None, None) where nobody goes.
        """
        if not self.takes(name, value):
            return name, value
        self.held.pop(name, None)
        full = 0 < self.topk <= len(self.held)
        gone, was = self._worst() if full else (None, None)
        if gone is not None:
            del self.held[gone]
        self.held[name] = value
        return gone, was

    def keep(self, names: Container[str]) -> None:
        """Forget all but these."""
        self.held = {name: value for name, value in self.held.items() if name in names}

    def _worst(self) -> tuple[str, float]:
        return min(self.held.items(), key=lambda pair: pair[1])  # of equal ones the oldest

    def __len__(self) -> int:
        return len(self.held)

    def __bool__(self) -> bool:
        return self.topk != 0

    def state_dict(self) -> dict[str, Any]:
        """Return what is kept, oldest first."""
        return dict(self.held)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned; with a smaller n now, the best of it."""
        self.held = {}
        for name, value in state.items():
            self.push(name, value)


class TopkSaver(ResultsMonitor):
    """Saves what was validated while it is among the n best, and removes what isn't any more.

    A save is called `{save_object}-epoch_{e}-batch_{b}-{monitor}_{value}`: the epochs that are through, the batches of
    the run, and what made it good, to six digits. The one that goes is removed when the new one is whole.

    Args:
        topk: n; -1 keeps all, 0 none.
        monitor: see `ResultsMonitor`.
        larger_better: a larger value is the better one.
        folder: see `Saver`, as the following.
        save_object: "model", "weights" or "trainer".
        only_state_dict: True.
        model_save_fn: `f(folder)`.
        save_evaluate_results: put the results into a file of the save, `tachograph_evaluate_results.json`.
        owner: whose saves these are, where several savers work in one run.

    Raises:
        CallerError: an argument can't be used.
    """

    def __init__(
        self,
        topk: int = 0,
        monitor: Asked = None,
        larger_better: bool | None = None,
        folder: str | Path | None = None,
        save_object: str = "model",
        only_state_dict: bool = True,
        model_save_fn: Callable[[Any], Any] | None = None,
        save_evaluate_results: bool = True,
        *,
        owner: str = "",
    ) -> None:
        super().__init__(monitor, larger_better)
        self.queue = TopkQueue(topk)
        self._known = False  # what was kept so far is known from a resume
        self.saver = Saver(folder, save_object, only_state_dict, model_save_fn, save_evaluate_results, owner=owner)

    def save_topk(self, trainer: Any, results: dict[str, Any]) -> Path | None:
        """Save, if these results are among the best.

        Returns:
            The folder that the save is, or will be, in; None where they aren't.

        Raises:
            CallerError: the results lack the monitor.
            SaveFault: it couldn't be written.
        """
        value = self.get_monitor_value(results)
        self.is_better_monitor_value(value)
        if value is None:
            return None
        name, rank = self._name(trainer, value), value if self.larger_better else -value
        if not self.queue.takes(name, rank):
            return None
        before = self.queue.state_dict()
        gone, _ = self.queue.push(name, rank)  # a trainer that is saved knows itself to be among them

        def done(place: Path | None) -> None:
            if place is None:
                self.queue.held = before
            elif place.name != name:  # something else had the name
                self.queue.held = {place.name if held == name else held: v for held, v in self.queue.held.items()}
            if place is not None and gone is not None:
                self.saver.remove(trainer, gone)

        return self.saver.save(trainer, name, kind="topk", results=results, as_evaluated=True, then=done)

    def forget(self) -> None:
        """Forget the run that this has saved in: what comes is another trainer's."""
        self.queue.held, self._known = {}, False
        self.forget_best()
        self.saver.forget()

    def _name(self, trainer: Any, value: float) -> str:
        state = trainer.trainer_state
        where = f"epoch_{epochs_done(state)}-batch_{state.global_forward_batches}"
        monitor = self.monitor_name.rpartition("<locals>.")[2]
        short = float(f"{value:.6g}")  # the whole number is in the results
        return fitting(f"{self.saver.save_object}-{where}-{monitor}_{short}")

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive a resume; {} before the first value."""
        held = self.monitor_state()
        return {**held, "queue": self.queue.state_dict()} if held or len(self.queue) else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self.load_monitor_state(state)
        self.queue.load_state_dict(state.get("queue", {}))
        self._known = True

    def go_on(self, trainer: Any, report: Any = None) -> list[Saved]:
        """Stand where a run begins or goes on: what was kept and is there is kept, and nothing else.

        Args:
            trainer: where it is.
            report: of a resume.

        Returns:
            This run's saves that count here; see `Saver.go_on`.
        """
        there = self.saver.go_on(trainer, report)
        self.queue.keep({saved.name for saved in there})
        if self._known and self.queue:  # what was to go when a kill struck, or since n is smaller now
            for saved in there:
                if saved.kind == "topk" and saved.name not in self.queue.held:
                    self.saver.remove(trainer, saved.name)
        return there
