"""The run directory: what a run is, told once in `run.json`, and how its settings may change at a resume."""

from __future__ import annotations

import contextlib
import datetime
import functools
import json
import os
import platform
import sys
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tachograph.states import Machine, training_machine
from tachograph.states.errors import CallerError, TachographError
from tachograph.states.table import Plan

from . import own_code
from .journal import Files, Journal, make_dirs, write_file

FORMAT = 1

FIXED = (
    *("machine", "model", "optimizers", "precision", "seed"),
    *("accumulation_steps", "accumulation_tail", "loss_weight", "data", "overfit_batches"),
)
"""Settings that decide what the bits are: a resume with another value is refused."""
FELT = (
    *("num_train_batch_per_epoch", "batch_size", "hyperparameters", "callbacks"),
    *("train_fn", "batch_step_fn", "compile", "validate_every", "validation", "world"),
)
"""Settings that may be changed at a resume and make the history another one: nothing recorded is expected any more."""
CHANGEABLE = (
    *("n_epochs", "n_batches", "max_time", *FELT),
    *("snapshot_every", "keep_snapshots", "on_snapshot_fault", "sanity_batches", "order", "environment"),
)
"""Settings that may be changed at a resume; the new value is used and recorded."""
_NESTED = ("hyperparameters", "callbacks", "validation", "environment")


class NotARun(TachographError, ValueError):
    """A path isn't what it was given as: not a run directory, or one of a newer format."""


class SettingsChanged(CallerError):
    """A fixed setting differs from the run's; old and new are named, and nothing was changed."""


def new_run_dir() -> Path:
    """Name a run directory that nobody has: `runs/<UTC time>-<short id>`. It isn't created yet."""
    now = datetime.datetime.now(datetime.timezone.utc)
    return Path("runs") / f"{now:%Y%m%dT%H%M%SZ}-{uuid.uuid4().hex[:6]}"


def run_dir_of(given: Any) -> Path | None:
    """Return the run directory that an argument means: a path, "auto" for a new one, None for none.

    Raises:
        CallerError: it is something else.
    """
    if given is None or given == "auto":
        return None if given is None else new_run_dir()
    if not isinstance(given, (str, Path)):
        raise CallerError(f"run_dir must be a path, 'auto' or None, not {given!r}")
    return Path(given)


def holds_a_run(path: Path) -> bool:
    """Say whether a directory holds a run."""
    return (path / "run.json").is_file()


def create(
    path: Path,
    settings: Mapping[str, Any],
    told: Mapping[str, Any],
    parent: Any = None,
    disk: Files | None = None,
    world: int = 1,
    machine: Machine | None = None,
) -> dict[str, Any]:
    """Create a run directory and its `run.json`.

    Args:
        path: the run directory.
        settings: what a resume is held against.
        told: what is known of the machine and the libraries.
        parent: the point of another run that this one goes on from.
        disk: where it is written.
        world: how many processes train together.
        machine: the table that it runs on.

    Raises:
        CallerError: it holds a run already, or can't be created.
    """
    if holds_a_run(path):
        raise CallerError(f"{path} holds a run already. Go on with run(resume_from='auto'), or give another run_dir")
    told_of = about(settings, told, uuid.uuid4().hex, parent, world, machine)
    try:
        make_dirs(disk or Files(), path)
        write_json(path / "run.json", told_of, disk)
    except OSError as error:
        raise CallerError(
            f"run_dir {path} can't be written: {error.strerror}. Give another run_dir, or None"
        ) from error
    return told_of


def about(
    settings: Mapping[str, Any],
    told: Mapping[str, Any],
    run: str,
    parent: Any = None,
    world: int = 1,
    machine: Machine | None = None,
) -> dict[str, Any]:
    """Return what is told once of a run: plain data.

    Args:
        settings: what a resume is held against.
        told: what is known of the machine and the libraries.
        run: its id.
        parent: the point of another run that it goes on from.
        world: how many processes train together.
        machine: the table that it runs on; of the settings only its digest is one.
    """
    return {
        "format": FORMAT,
        "run": run,
        "created": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": sys.argv,
        "host": platform.node(),
        "parent": parent,
        "world": world,
        "settings": json.loads(json.dumps(dict(settings), default=str)),
        "environment": environment(told),
        "code": own_code.digests(),
        **({} if machine is None else {"machine": Plan.of(machine).plain()}),
    }


def plan_of(about: Mapping[str, Any]) -> Plan | None:
    """Return what a run's machine looks like, as its `run.json` tells; None where an older version wrote none."""
    plan, usual = Plan.read(about.get("machine")), Plan.of(training_machine())
    settings = about.get("settings")
    known = settings.get("machine") if isinstance(settings, dict) else None
    return next((one for one in (plan, usual) if one is not None and one.digest == known), None)


def load(path: Path) -> dict[str, Any]:
    """Read a run directory's `run.json`.

    Raises:
        FileNotFoundError: there is nothing at this path.
        NotARun: it isn't a run directory, or its format is newer than this version reads.
    """
    if not path.exists():
        raise FileNotFoundError(f"there is no run at {path}")
    try:
        about = json.loads((path / "run.json").read_text())
        version = about["format"]
    except FileNotFoundError:
        raise NotARun(f"{path} isn't a run directory: it has no run.json. {_runs_near(path)}".rstrip()) from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise NotARun(f"{path}/run.json can't be read: {error}") from error
    if not isinstance(version, int) or version > FORMAT:
        raise NotARun(f"{path} is of format {version}, but this version reads up to {FORMAT}: upgrade tachograph")
    return about  # type: ignore[no-any-return]


def compare_settings(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Hold a resume's settings against the run's.

    Returns:
        The changeable settings that changed: name -> (old, new).

    Raises:
        SettingsChanged: a fixed setting changed.
    """
    changed = differences(old, new)
    for name in FIXED:
        if name in changed:
            was, is_now = changed[name]
            raise SettingsChanged(
                f"this run's {name} is {was}, this trainer's {is_now}, and {name} is fixed for a run: use the old one, "
                "or start a new run with another run_dir"
            )
    return changed


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return name -> (old, new) of the settings that both know and that differ; those within others as "a.b"."""
    known = {name.split(".")[0] for name in old} & set(new)
    before, now = _flat(old), _flat(new)
    names = [name for name in {**now, **before} if name.split(".")[0] in known]
    return {name: (before.get(name), now.get(name)) for name in names if before.get(name) != now.get(name)}


def in_force(about: Mapping[str, Any], journal: Journal, life: int | None = None) -> dict[str, Any]:
    """Return the settings and the environment of one of a run's lives.

    Args:
        about: its `run.json`.
        journal: its journal, which tells what each life has changed.
        life: which incarnation; None: the last.
    """
    held = {**about["settings"], "environment": about.get("environment", {})}
    for record in journal.beginnings():
        if life is None or record.incarnation <= life:
            held |= {name: now for name, (_, now) in record.data["changed"].items()}
    return held


def changed_code(about: Mapping[str, Any], journal: Journal | None) -> dict[str, tuple[str, str]]:
    """Return file -> (old, new) digest of the user's own modules that changed since a run's last life."""
    held = dict(about.get("code", {}))
    for record in () if journal is None else journal.beginnings():
        held |= {name: now for name, (_, now) in record.data.get("code", {}).items()}
    return own_code.changed(held, own_code.digests())


def environment(engine_s: Mapping[str, Any]) -> dict[str, Any]:
    """Return what `run.json` tells of the machine and the libraries: ours and Python's, and what an engine knows."""
    on = f"{platform.system()} {platform.machine()}"
    return {"python": sys.version.split()[0], "tachograph": _version(), "platform": on, **engine_s}


def is_felt(changed: Iterable[str]) -> bool:
    """Say whether changed settings make the history another one."""
    return any(name.split(".")[0] in FELT for name in changed)


def write_json(path: Path, value: Any, disk: Files | None = None) -> None:
    """Write a JSON file so that it is there whole or not at all, and on the disk."""
    disk = disk or Files()
    text = json.dumps(value, indent=2, default=str) + "\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        disk.unlink(temporary)
    try:
        write_file(disk, temporary, text.encode())
        disk.rename(temporary, path)
        disk.fsync_dir(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            disk.unlink(temporary)
        raise


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Name every value by the way to it, "hyperparameters.lr"; of settings that were flat or not."""
    found: dict[str, Any] = {}
    for name, value in json.loads(json.dumps(settings, default=str)).items():
        found |= _leaves(name, value) if name in _NESTED else {name: value}
    return found


def _leaves(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, list) and any(isinstance(part, dict) for part in value):
        value = {str(i): part for i, part in enumerate(value)}
    if not isinstance(value, dict):
        return {name: value}
    return {k: v for key, part in value.items() for k, v in _leaves(f"{name}.{key}", part).items()}


@functools.cache
def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tachograph")
    except PackageNotFoundError:
        return "unknown"


def _runs_near(path: Path) -> str:
    for inner in (path, path.parent):
        runs = sorted(p.parent.name for p in inner.glob("*/run.json")) if inner.is_dir() else []
        if runs:
            return f"Runs in {inner}: {', '.join(runs[-3:])}."
    return ""
