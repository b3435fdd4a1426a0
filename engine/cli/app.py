"""The root of the command line: it finds the command, and says whatever goes wrong.

Bad input ends as one sentence on stderr and status 2, never as a traceback. A reader that goes away (`| head`) is no
error. It is argparse and nothing larger: of a command that answers at once, imports are most of the time.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from . import COMMANDS

_PROGRAM = "tachograph"


class Parser(argparse.ArgumentParser):
    """A parser whose complaint is one sentence."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{_PROGRAM}: {message} (`{self.prog} --help` says what there is)\n")


class _Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"{_PROGRAM} {version(_PROGRAM)}")
        parser.exit()


def run(argv: Sequence[str]) -> int:
    """Run a command and return its exit status."""
    try:
        try:
            return _dispatch(argv)
        finally:
            sys.stdout.flush()
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        _hang_up()
        return 0
    except Exception as error:
        sentence = _sentence(error)
        if sentence is None:
            raise
        print(f"{_PROGRAM}: {sentence}", file=sys.stderr)
        return 2


def _dispatch(argv: Sequence[str]) -> int:
    if not argv or argv[0] not in COMMANDS:
        _root(argv)
    name = argv[0]
    command = import_module(f".commands.{name}", __package__)
    parser = Parser(prog=f"{_PROGRAM} {name}", description=_as_sentence(COMMANDS[name]), allow_abbrev=False)
    command.add_arguments(parser)
    return int(command.run(parser.parse_args(argv[1:])))


def _root(argv: Sequence[str]) -> NoReturn:
    """Answer a command line that begins with no command."""
    width = max(map(len, COMMANDS))
    parser = Parser(
        prog=_PROGRAM,
        usage=f"{_PROGRAM} [-h] [--version] COMMAND ...",
        description="Read what a training run recorded: its states, its transitions, its snapshots.",
        epilog="\n".join(["commands:", *(f"  {name:<{width}}  {what}" for name, what in sorted(COMMANDS.items()))]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    parser.add_argument("command", nargs="?", help=argparse.SUPPRESS)
    found, unknown = parser.parse_known_args(argv or ["--help"])
    from tachograph.states.errors import nearest

    name = found.command or unknown[0]
    parser.error(f"there is no command {name!r}. {nearest(name, COMMANDS)}")


def _as_sentence(what: str) -> str:
    return f"{what[0].upper()}{what[1:]}."


def _sentence(error: Exception) -> str | None:
    """Say an error that is the input's fault or the world's; None for a fault of this program."""
    from tachograph.states import TachographError

    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) if isinstance(error, (TachographError, OSError)) else None


def _hang_up() -> None:
    """Let the interpreter flush into nothing when it ends, or it would complain about the broken pipe once more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
