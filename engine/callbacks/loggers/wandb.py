"""`WandbLogger`: a run at Weights & Biases, or an offline one in a folder."""

from __future__ import annotations

import json
import os
import uuid
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .appending import append
from .logger import Logger
from .offline import names_by_step


class WandbLogger(Logger):
    """Logs to a W&B run, whose charts have our step as their axis.

    A run that goes on has the same W&B run; a fork, or a new run directory, has a new one. What was given to W&B can't
    be taken back, so what it has of steps that are done again isn't given again. It is kept beside the log too, in
    `rows.jsonl`: an offline run that lost its last rows with its process is given them again.

    Args:
        monitor, larger_better, log_exception, log_loss_every: as of `Logger`.
        project: the W&B project.
        name: the name of the run; None takes that of the run directory.
        mode: "online", "offline" or "disabled"; None: what W&B's environment says.
        id: of the W&B run; None makes one.
        init: more for `wandb.init`.
        shared: `log_every`, `folder`, `step_on` and `on_fault`, as of `Logger`.

    Raises:
        CallerError: wandb isn't installed (`pip install 'tachograph[wandb]'`), or as `Logger` says.
    """

    kind = needs = "wandb"
    takes_back = False

    def __init__(
        self,
        monitor: str | Callable[[dict[str, Any]], Any] | None = None,
        larger_better: bool | None = None,
        log_exception: bool = True,
        log_loss_every: int | None = None,
        *,
        project: str | None = None,
        name: str | None = None,
        mode: str | None = None,
        id: str | None = None,
        init: Mapping[str, Any] | None = None,
        **shared: Any,
    ) -> None:
        super().__init__(monitor, larger_better, log_exception, log_loss_every, **shared)
        self._how = {"project": project, "mode": mode, **(init or {})}
        self._name, self._id = name, id
        self.wandb_run: Any = None

    def open(self, folder: Path, memory: dict[str, Any]) -> None:
        import wandb

        memory.setdefault("id", self._id or uuid.uuid4().hex[:12])
        name = self._name or memory["name"]
        self.wandb_run = wandb.init(dir=str(folder), id=memory["id"], name=name, resume="allow", **self._how)  # type: ignore[arg-type]
        self.wandb_run.define_metric("*", step_metric="step")
        self._folder_of_run, self._has = folder, dict[int, set[str]]()
        self._rows_file = os.open(folder / "rows.jsonl", os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def describe(self, settings: dict[str, Any]) -> None:
        self.wandb_run.config.update(settings, allow_val_change=True)

    def purge(self, after: int) -> None:
        """Find out what W&B has, and give it again what it had been given up to here and has lost."""
        given = self._given()
        has = {step: set(values) for step, values in given.items()}
        if self.wandb_run.offline:
            try:
                has = names_by_step(self._folder_of_run)
            except Exception as error:
                warnings.warn(f"the files of the offline W&B run can't be read back: {error!r}", stacklevel=2)
        for step in sorted(step for step in given if step <= after):
            lost = {name: value for name, value in given[step].items() if name not in has.get(step, ())}
            if lost:
                self.wandb_run.log({"step": step, **lost})
        self._has = {step: names for step, names in has.items() if step > after}

    def _given(self) -> dict[int, dict[str, Any]]:
        """Return the rows that were given to W&B before."""
        held = os.pread(self._rows_file, os.fstat(self._rows_file).st_size, 0)
        whole = held.rfind(b"\n") + 1  # a line may have been torn
        os.ftruncate(self._rows_file, whole)
        rows: dict[int, dict[str, Any]] = {}
        for line in held[:whole].splitlines():
            step, values = json.loads(line)
            rows.setdefault(step, {}).update(values)
        return rows

    def write(self, step: int, values: dict[str, Any]) -> None:
        has = self._has.get(step, ())
        new = {name: value for name, value in values.items() if name not in has}
        if new:
            append(self._rows_file, json.dumps([step, new]).encode() + b"\n")
            self.wandb_run.log({"step": step, **new})

    def close(self) -> None:
        os.close(self._rows_file)
        self.wandb_run.finish(exit_code=int(self.status == "failed"))
