"""`WandbLogger`: a run at Weights & Biases, or an offline one in a folder."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .logger import Logger, needed


class WandbLogger(Logger):
    """Logs to a W&B run, whose charts have our step as their axis.

    A run that goes on has the same W&B run; a fork, or a new run directory, has a new one. What was given to W&B can't
    be taken back, so steps that are done again after a crash aren't given again: a file beside the log says which were.

    Args:
        monitor, larger_better, log_exception, log_loss_every: as of `Logger`, as are all others.
        project: the W&B project.
        name: the name of the run; None takes that of the run directory.
        mode: "online", "offline" or "disabled"; None: what W&B's environment says.
        id: of the W&B run; None makes one.
        init: more for `wandb.init`.

    Raises:
        CallerError: the package wandb isn't installed.
    """

    kind = "wandb"
    takes_back = False

    def __init__(
        self,
        *args: Any,
        project: str | None = None,
        name: str | None = None,
        mode: str | None = None,
        id: str | None = None,
        init: Mapping[str, Any] | None = None,
        **named: Any,
    ) -> None:
        try:
            import wandb  # noqa: F401
        except ImportError as error:
            raise needed("wandb", "wandb", "WandbLogger") from error
        super().__init__(*args, **named)
        self._how = {"project": project, "mode": mode, **(init or {})}
        self._name, self._id = name, id
        self.wandb_run: Any = None

    def open(self, folder: Path, memory: dict[str, Any]) -> None:
        import wandb

        memory.setdefault("id", self._id or uuid.uuid4().hex[:12])
        name = self._name or memory["name"]
        self.wandb_run = wandb.init(dir=str(folder), id=memory["id"], name=name, resume="allow", **self._how)  # type: ignore[arg-type]
        self.wandb_run.define_metric("*", step_metric="step")
        self._given = _Given(folder / "given.json")

    def describe(self, settings: dict[str, Any]) -> None:
        self.wandb_run.config.update(settings, allow_val_change=True)

    def write(self, step: int, values: dict[str, Any]) -> None:
        new = self._given.new(step, values)
        if new:
            self.wandb_run.log({"step": step, **new})
            self._given.note(step, values, complete=self.status == "running")

    def close(self) -> None:
        self._given.close()
        self.wandb_run.finish(exit_code=int(self.status == "failed"))


class _Given:
    """Remembers what was given away, in one line of a file that is overwritten in place."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        line = os.pread(self._fd, os.fstat(self._fd).st_size, 0).split(b"\n")[0]
        held: dict[str, Any] = json.loads(line) if line else {"until": -1, "beyond": {}}
        self._until: int = held["until"]  # each step up to this one was given as a whole
        self._beyond: dict[int, set[str]] = {int(step): set(names) for step, names in held["beyond"].items()}

    def new(self, step: int, values: dict[str, Any]) -> dict[str, Any]:
        if step <= self._until:
            return {}
        given = self._beyond.get(step, ())
        return {name: value for name, value in values.items() if name not in given}

    def note(self, step: int, values: dict[str, Any], *, complete: bool) -> None:
        if complete:
            self._until = step
            self._beyond = {s: names for s, names in self._beyond.items() if s > step}
        else:
            self._beyond.setdefault(step, set()).update(values)
        held = {"until": self._until, "beyond": {step: sorted(names) for step, names in self._beyond.items()}}
        os.pwrite(self._fd, json.dumps(held).encode() + b"\n", 0)

    def close(self) -> None:
        os.close(self._fd)
