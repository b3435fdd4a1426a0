"""Where the output of the processes goes that this package launches: rank 0's stays, the others' is a choice.

It is torch's own launcher that redirects them, when it starts them: so the choice holds from their first line.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import LogsSpecs
from torch.distributed.elastic.multiprocessing.api import LogsDest

from tachograph.states.errors import CallerError

ALL, ONLY_ERROR, IGNORE = "all", "only_error", "ignore"
_HERE = ""  # torch's word for where the launcher's own output goes


class OutputOfOthers(LogsSpecs):
    """Tells torch's launcher where each rank's output goes.

    Args:
        wanted: "all", "only_error" (the others' standard output is dropped), "ignore" (their standard error too), or a
            folder: it receives `{rank}_std.log` and `{rank}_err.log` of every rank but 0.

    Attributes:
        folder: its absolute path; None where there is none.

    Raises:
        CallerError: it is none of these, or the folder can't be made.
    """

    def __init__(self, wanted: str) -> None:
        super().__init__()
        self._wanted = wanted
        self.folder = None if wanted in (ALL, ONLY_ERROR, IGNORE) else _made(wanted)

    @property
    def root_log_dir(self) -> str:
        return str(self.folder or os.devnull)

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        for environment in envs.values():
            environment["TORCHELASTIC_ERROR_FILE"] = ""
        ends = {local_rank: self._ends(int(environment["RANK"])) for local_rank, environment in envs.items()}
        return LogsDest(
            stdouts={local_rank: out for local_rank, (out, _) in ends.items()},
            stderrs={local_rank: error for local_rank, (_, error) in ends.items()},
            error_files=dict.fromkeys(envs, os.devnull),
        )

    def _ends(self, rank: int) -> tuple[str, str]:
        """Return where a rank's standard output and its standard error go."""
        if rank == 0 or self._wanted == ALL:
            return _HERE, _HERE
        if self.folder is not None:
            return str(self.folder / f"{rank}_std.log"), str(self.folder / f"{rank}_err.log")
        return os.devnull, _HERE if self._wanted == ONLY_ERROR else os.devnull


def _made(wanted: Any) -> Path:
    if not isinstance(wanted, (str, os.PathLike)) or not str(wanted).strip():
        raise CallerError(
            f"output_from_new_proc must be {ALL!r}, {ONLY_ERROR!r}, {IGNORE!r} or a folder, not {wanted!r}"
        )
    folder = Path(wanted).expanduser().absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CallerError(f"output_from_new_proc={wanted!r}: {folder} can't be made a folder: {error}") from error
    return folder


__all__ = ["ALL", "IGNORE", "ONLY_ERROR", "OutputOfOthers"]
