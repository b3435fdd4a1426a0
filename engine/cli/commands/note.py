"""`tachograph note`: what people have to say about a transition; it never touches the journal."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tachograph.engine import recording
from tachograph.states import CallerError

from ..noted import COLUMNS, as_data, row, tell_unread
from ..screen import Screen, printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add = parser.add_argument
    add("run", metavar="RUN", type=Path, help="the run directory")
    add("seq", metavar="SEQ", type=int, nargs="?", help="the transition that the note is about")
    add("text", metavar="TEXT", nargs="?", help="the note")
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--list", action="store_true", help="list the notes, those of SEQ only where it is given")
    one.add_argument("--withdraw", metavar="ID", help="take a note back, by its id or the beginning of it")
    add("--all", action="store_true", help="with --list, those that were withdrawn as well")
    add("--json", action="store_true", help="print JSON, one object a line")


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked for."""
    from tachograph.engine.journal import add_note, withdraw_note

    recording.load(arguments.run)
    _check(arguments)
    screen = Screen()
    if arguments.list:
        return _list(arguments, screen)
    if arguments.withdraw is not None:
        note, done = withdraw_note(arguments.run, arguments.withdraw), "withdrawn"
    else:
        note, done = add_note(arguments.run, arguments.seq, arguments.text), "noted"
    if arguments.json:
        screen.json({"done": done, **as_data(note)})
    else:
        screen.line(f"{done} at transition {note.seq:,}, as {note.id}: {printable(note.text)}")
    return 0


def _check(arguments: argparse.Namespace) -> None:
    acts = arguments.list or arguments.withdraw is not None
    if acts and (arguments.text is not None or (arguments.seq is not None and not arguments.list)):
        raise CallerError("--list and --withdraw take no text: to write a note, give RUN SEQ TEXT alone")
    if not acts and (arguments.seq is None or arguments.text is None):
        raise CallerError('give the transition and the text: tachograph note RUN SEQ "text"; or --list')
    if arguments.all and not arguments.list:
        raise CallerError("--all belongs to --list")


def _list(arguments: argparse.Namespace, screen: Screen) -> int:
    from tachograph.engine.journal import read_notes

    notes = read_notes(arguments.run)
    told = [n for n in (notes.all if arguments.all else notes.standing) if arguments.seq in (None, n.seq)]
    tell_unread(arguments.run, notes.unread)
    if not told:
        print(
            f"{arguments.run} has no note{'' if arguments.seq is None else f' at {arguments.seq:,}'}", file=sys.stderr
        )
        return 1
    for note in told:
        if arguments.json:
            screen.json(as_data(note))
    if not arguments.json:
        screen.table(COLUMNS, [row(as_data(note)) for note in told])
    return 0
