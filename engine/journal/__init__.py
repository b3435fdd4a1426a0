"""The journal: an append-only record of every transition, which survives the run and explains it.

`JournalWriter` commits, `recover` prepares a journal for its next incarnation, `Journal` reads. docs/journal.md
describes the format field by field. It knows states, files and the clock; it must not know torch or the engine.
"""

from .background import Background, Pulse, Task
from .damage import Damage
from .errors import JournalBusy, JournalCorrupt, JournalError, JournalFormat, JournalWriteError
from .files import Files, make_dirs, rank_directory, write_all, write_file
from .header import FORMAT, Header, Position
from .incarnation import Incarnation
from .lock import JournalLock
from .notes import Note, Notes, add_note, read_notes, withdraw_note
from .reader import Journal
from .record import Record, SideRecord
from .recovery import Cut, Recovery, recover
from .writer import SEAL_RECORDS, JournalWriter

__all__ = [
    "FORMAT",
    "SEAL_RECORDS",
    "Background",
    "Cut",
    "Damage",
    "Files",
    "Header",
    "Incarnation",
    "Journal",
    "JournalBusy",
    "JournalCorrupt",
    "JournalError",
    "JournalFormat",
    "JournalLock",
    "JournalWriteError",
    "JournalWriter",
    "Note",
    "Notes",
    "Position",
    "Pulse",
    "Record",
    "Recovery",
    "SideRecord",
    "Task",
    "add_note",
    "make_dirs",
    "rank_directory",
    "read_notes",
    "recover",
    "withdraw_note",
    "write_all",
    "write_file",
]
