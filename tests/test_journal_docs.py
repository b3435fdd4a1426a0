"""docs/journal.md says what is so: its code runs, and its command lines read a real journal."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.test_journal_support import written

DOCS = (Path(__file__).parent.parent / "docs" / "journal.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCS, re.S)


def test_the_code_in_the_docs_runs() -> None:
    for code in blocks("python"):
        exec(code, {})


@pytest.mark.skipif(shutil.which("jq") is None, reason="jq isn't installed")
def test_the_jq_line_in_the_docs_gives_the_losses(tmp_path: Path) -> None:
    written(tmp_path / "runs" / "my-run", 40, seal_records=15)
    (command,) = [line for line in blocks("sh")[0].splitlines() if line.startswith("zcat")]
    said = subprocess.run(command, shell=True, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert said.splitlines()[:4] == ["[4,1]", "[6,0.5]", "[8,0.3333333333333333]", "[14,0.30000000000000004]"]
