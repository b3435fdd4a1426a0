"""What the tests of the command line share: runs of every kind, and the command, in this process or in another."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import os
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any, NoReturn
from unittest.mock import patch

import attrs

from tachograph.drivers import StubDriver
from tachograph.engine.cli import main
from tests.toys import Sum, stub

PROGRAM = [sys.executable, "-c", "from tachograph.engine.cli import main; main()"]


@attrs.frozen
class Said:
    """What a command said."""

    status: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    def section(self, title: str) -> list[str]:
        """The lines of a section, its title and the names of its columns aside."""
        begin = next(i for i, line in enumerate(self.lines) if line.startswith(title))
        end = next((i for i in range(begin, len(self.lines)) if not self.lines[i]), len(self.lines))
        return [line.strip() for line in self.lines[begin + 2 : end]]

    def json(self) -> Any:
        return strict_json(self.out)

    def json_lines(self) -> list[Any]:
        return [strict_json(line) for line in self.lines]


def strict_json(text: str) -> Any:
    def refuse(name: str) -> NoReturn:
        raise AssertionError(f"{name} isn't JSON")

    return json.loads(text, parse_constant=refuse)


def cli(*arguments: str | Path) -> Said:
    """Run the command in this process, its output caught."""
    out, err = io.StringIO(), io.StringIO()
    plain = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    with patch.dict(os.environ, plain, clear=True), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as end:
            return Said(int(end.code or 0), out.getvalue(), err.getvalue())
    raise AssertionError("main() always exits")


def in_a_process(code: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent.parent)


def validating(**settings: Any) -> dict[str, Any]:
    return {"metrics": {"sum": Sum()}, "validate_dataloaders": {"dev": [1, 2]}, **settings}


def fail_at(step: int, text: str = "the loss exploded") -> StubDriver:
    """A driver whose training step raises the `step`-th time, from 0."""

    def on_step(driver: StubDriver) -> None:
        if len(driver.seen) == step:
            raise ValueError(text)

    return StubDriver(on={"train_step": on_step})


def failed(run_dir: Path, step: int = 4, text: str = "the loss exploded") -> Path:
    with contextlib.suppress(ValueError):
        stub(driver=fail_at(step, text), run_dir=run_dir, snapshot_every=1, **validating()).run()
    return run_dir


def resumed(run_dir: Path, n_epochs: int = 2, driver: StubDriver | None = None) -> Path:
    """Go on with a run to its end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer = stub(driver=driver, run_dir=run_dir, snapshot_every=1, n_epochs=n_epochs, **validating())
        trainer.run(resume_from="auto")
    return run_dir


def killed(run_dir: Path, step: int = 4) -> Path:
    """A run whose process is gone in the middle of its `step`-th training step, from 0. Its process needs no torch."""
    assert in_a_process(f"{inspect.getsource(Sum)}\n{_DIE}", run_dir, str(step)).returncode == 9
    return run_dir


_DIE = """
import os, sys
from tachograph.drivers import StubDriver
from tachograph.engine import Trainer

def die(driver):
    if len(driver.seen) == int(sys.argv[2]):
        os._exit(9)

driver = StubDriver(on={"train_step": die})
settings = {"n_epochs": 2, "snapshot_every": 1, "progress_bar": None, "run_dir": sys.argv[1]}
validating = {"metrics": {"sum": Sum()}, "validate_dataloaders": {"dev": [1, 2]}}
Trainer(None, driver, [1, 2, 3], None, **settings, **validating).run()
"""
