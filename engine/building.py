"""The function of a user's that builds a trainer, found by what a command line names it: "module:function".

Commands that run training need the trainer, and a run directory holds no code. So a script has a function that returns
its trainer, and `run()` is called under `if __name__ == "__main__"`.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tachograph.states.errors import CallerError, nearest

if TYPE_CHECKING:
    from .trainer import Trainer

_LEGAL = "takes module:function, or path/to/script.py:function"


def builder_of(text: str, option: str = "--trainer") -> Callable[..., Any]:
    """Find the function that a text names.

    Args:
        text: "module:function" or "path/to/script.py:function"; the folder of the script, or the current one, is where
            its imports are looked for first.
        option: what the text was given as, for messages.

    Raises:
        CallerError: there is no such module or function, or the module can't be imported; what it raised is the cause.
    """
    where, colon, name = text.rpartition(":")
    if not colon or not where or not name:
        raise CallerError(f"{text!r} names no function: {option} {_LEGAL}")
    module = _module_of(where, f"{option} {_LEGAL}")
    function = getattr(module, name, None)
    if not callable(function):
        named = [n for n, value in vars(module).items() if callable(value) and not n.startswith("_")]
        lack = "holds no function" if function is None else "holds something else as"
        raise CallerError(f"{where} {lack} {name!r}. {nearest(name, named)}".rstrip())
    return function  # type: ignore[no-any-return]


def trainer_of(text: str, **arguments: Any) -> Trainer:
    """Build the trainer that a text names the function of.

    Args:
        text: as in `builder_of`.
        arguments: what the function is called with.

    Raises:
        CallerError: as in `builder_of`; or the function failed, or returned something else.
    """
    from .trainer import Trainer

    build = builder_of(text)
    try:
        trainer = build(**arguments)
    except Exception as error:
        raise CallerError(f"{text} failed with {type(error).__name__}: {error}") from error
    if not isinstance(trainer, Trainer):
        raise CallerError(f"{text} returned {type(trainer).__name__}, not a Trainer")
    return trainer


def _module_of(where: str, legal: str) -> ModuleType:
    is_file = where.endswith(".py")
    folder = Path(where).resolve().parent if is_file else Path.cwd()
    if is_file and not Path(where).is_file():
        raise CallerError(f"there is no file {where}. {legal}")
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        return _from_file(Path(where)) if is_file else importlib.import_module(where)
    except Exception as error:
        raise CallerError(f"{where} can't be imported: {type(error).__name__}: {error}. {legal}") from error
    except SystemExit as error:
        raise CallerError(
            f"{where} ended the process when it was imported: put what trains under `if __name__ == '__main__':`"
        ) from error


def _from_file(path: Path) -> ModuleType:
    """Import a script under its own name, so that spawned workers find it; under another where that's taken."""
    path, name = path.resolve(), path.stem
    held = sys.modules.get(name)
    if held is not None and Path(getattr(held, "__file__", None) or "").resolve() == path:
        return held
    if held is not None or name in sys.stdlib_module_names:
        name = f"{name}_of_{abs(hash(str(path)))}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "the name ends with .py"
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


__all__ = ["builder_of", "trainer_of"]
