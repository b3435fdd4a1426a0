"""`MLflowLogger`: a run in an MLflow store: a server, or a local database."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .logger import Logger, needed

_AT_ONCE = 500  # metrics in a call; the server takes 1,000
_EVERY = 1.0  # seconds between two calls


class MLflowLogger(Logger):
    """Logs metrics to an MLflow run, settings as its parameters, an error as its tag `exception`.

    A run that goes on has the same MLflow run; a fork, or a new run directory, has a new one. MLflow takes nothing
    back, so when a run goes on the store is asked for what it has, and is given the rest. About once a second, and for
    each snapshot, what has come up is sent in one call. A `#` in a name becomes a `/`, and what else MLflow bears in no
    name an underscore. (MLflow's databases keep an infinity as the largest number there is.)

    Args:
        monitor, larger_better, log_exception, log_loss_every: as of `Logger`.
        experiment: the name of the experiment; it is made if there is none.
        name: the name of the run; None takes that of the run directory.
        tracking_uri: the store; None takes MLFLOW_TRACKING_URI, or else a database in the folder.
        shared: `log_every`, `folder`, `step_on` and `on_fault`, as of `Logger`.

    Raises:
        CallerError: mlflow isn't installed (`pip install 'tachograph[mlflow]'`), or as `Logger` says.
    """

    kind = needs = "mlflow"
    takes_back = False

    def __init__(
        self,
        monitor: str | Callable[[dict[str, Any]], Any] | None = None,
        larger_better: bool | None = None,
        log_exception: bool = True,
        log_loss_every: int | None = None,
        *,
        experiment: str = "tachograph",
        name: str | None = None,
        tracking_uri: str | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(monitor, larger_better, log_exception, log_loss_every, **shared)
        self._experiment, self._name, self._uri = experiment, name, tracking_uri
        self.run_id = ""

    def open(self, folder: Path, memory: dict[str, Any]) -> None:
        from mlflow import MlflowClient

        uri = self._uri or os.environ.get("MLFLOW_TRACKING_URI")
        beside = None if uri else (folder / "artifacts").resolve().as_uri()
        try:
            self._client = MlflowClient(uri or f"sqlite:///{(folder / 'mlflow.db').resolve()}")
        except ImportError as error:  # what its databases need isn't part of mlflow-skinny
            raise needed(str(error.name), "mlflow", "a local database of MLflow") from error
        if "run_id" not in memory:
            memory["run_id"] = self._new_run(self._name or memory["name"], beside)
        self.run_id = memory["run_id"]
        self._waiting: list[Any] = []
        self._has: dict[str, set[int]] = {}
        self._sent = time.monotonic()

    def _new_run(self, name: str, artifacts: str | None) -> str:
        experiment = self._client.get_experiment_by_name(self._experiment)
        if experiment is not None:
            number = experiment.experiment_id
        else:
            number = self._client.create_experiment(self._experiment, artifact_location=artifacts)
        return str(self._client.create_run(number, run_name=name).info.run_id)

    def describe(self, settings: dict[str, Any]) -> None:
        from mlflow.entities import Param

        known = self._client.get_run(self.run_id).data.params
        params = [Param(_name(name), str(value)[:500]) for name, value in settings.items() if _name(name) not in known]
        for start in range(0, len(params), 100):
            self._client.log_batch(self.run_id, params=params[start : start + 100])

    def purge(self, after: int) -> None:
        """Ask what the store has of the steps that will be done again, so that it isn't given them twice."""
        held = self._client.get_run(self.run_id).data
        for name in held.metrics:
            steps = {metric.step for metric in self._client.get_metric_history(self.run_id, name)}
            self._has[name] = {step for step in steps if step > after}
        self._client.update_run(self.run_id, status="RUNNING")
        if "exception" in held.tags:
            self._client.delete_tag(self.run_id, "exception")

    def write(self, step: int, values: dict[str, Any]) -> None:
        from mlflow.entities import Metric

        if len(self._waiting) > _AT_ONCE or time.monotonic() - self._sent > _EVERY:
            self.flush()  # before anything of this row is kept: if it fails, the row comes again
        now = int(time.time() * 1000)
        for name, value in values.items():
            if isinstance(value, str):
                self._client.set_tag(self.run_id, _name(name), value[:5000])
            elif step not in self._has.get(_name(name), ()):
                self._waiting.append(Metric(_name(name), value, now, step))

    def flush(self) -> None:
        while self._waiting:
            self._client.log_batch(self.run_id, metrics=self._waiting[:_AT_ONCE])
            del self._waiting[:_AT_ONCE]
        self._sent = time.monotonic()

    def close(self) -> None:
        self.flush()
        status = {"failed": "FAILED", "interrupted": "KILLED"}.get(self.status, "FINISHED")
        self._client.set_terminated(self.run_id, status)


def _name(name: str) -> str:
    return re.sub(r"[^\w\-. /]", "_", name.replace("#", "/"))
