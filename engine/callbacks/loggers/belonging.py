"""Whose log a folder holds, and what is known of the run that it is of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tachograph.engine import recording
from tachograph.engine.journal import Files, make_dirs
from tachograph.states.errors import CallerError

ABOUT = "log.json"


def run_of(trainer: Any) -> str | None:
    """Return what a trainer's, or a replay's, run is known by; None where nothing is kept on disk."""
    if trainer.run_dir is None or not recording.holds_a_run(trainer.run_dir):
        return None
    return str(recording.load(trainer.run_dir)["run"])


def settings_of(trainer: Any) -> dict[str, Any]:
    """Return the settings of a trainer's, or a replay's, run by the ways to them: "hyperparameters.0.lr"."""
    if run_of(trainer) is not None:
        return _flat(recording.load(trainer.run_dir)["settings"])
    return _flat(trainer._settings()) if hasattr(trainer, "_settings") else {}


def claim(folder: Path, run: str, name: str, *, anew: bool) -> tuple[dict[str, Any], bool]:
    """Make a folder that of a run's log, unless it is something else's.

    Args:
        folder: it may be there or not.
        run: what the run is known by.
        name: what it is called.
        anew: it mustn't hold a log of this run either.

    Returns:
        What the log is known by, and whether it is a new one.

    Raises:
        CallerError: it holds what mustn't be touched.
    """
    about = folder / ABOUT
    if about.is_file():
        memory = json.loads(about.read_text(encoding="utf-8"))
        if memory["run"] == run and not anew:
            return memory, False
        whose = "this run's log already" if memory["run"] == run else "the log of another run"
        raise CallerError(f"{folder} holds {whose}: give the logger another folder")
    if folder.is_dir() and any(folder.iterdir()):
        raise CallerError(f"{folder} isn't empty, and holds no log of this run: give the logger another folder")
    make_dirs(Files(), folder)
    memory = {"run": run, "name": name}
    remember(folder, memory)
    return memory, True


def remember(folder: Path, memory: Mapping[str, Any]) -> None:
    """Keep what a log is known by."""
    recording.write_json(folder / ABOUT, memory)


def _flat(value: Any, name: str = "") -> dict[str, Any]:
    if isinstance(value, (list, tuple)) and any(isinstance(part, (dict, list)) for part in value):
        value = {str(i): part for i, part in enumerate(value)}
    if not isinstance(value, Mapping):
        return {name: value}
    prefix = f"{name}." if name else ""
    return {k: v for key, part in value.items() for k, v in _flat(part, f"{prefix}{key}").items()}
