"""The command line as such: what it imports, how it says what goes wrong, how it behaves in pipes and terminals."""

from __future__ import annotations

import importlib
import os
import pty
import re
import subprocess
import sys
from importlib.metadata import entry_points, version
from pathlib import Path
from types import ModuleType

import pytest

from tachograph import engine
from tachograph.engine import recording
from tachograph.engine.cli import COMMANDS, main
from tests.test_cli_support import PROGRAM, cli, failed, in_a_process, strict_json, validating
from tests.toys import stub

ROOT = Path(__file__).parent.parent
DOCS = (ROOT / "docs" / "cli.md").read_text()


@pytest.fixture
def run(run_dir: Path) -> Path:
    stub(run_dir=run_dir, **validating()).run()
    return run_dir


# -- what is imported --------------------------------------------------------------------------------------

LOADED = """if True:
    import sys
    from tachograph.engine.cli import main
    try:
        main(sys.argv[1:])
    except SystemExit:
        pass
    names = {name for name in sys.modules if not name.startswith("tachograph") or name.count(".") == 2}
    print(*sorted(names), file=sys.stderr)
"""


@pytest.mark.parametrize("options", ["", "--json", "--at 3", "--grep x", "--follow", "--check --all"])
def test_no_command_imports_torch_or_the_trainer(run: Path, options: str) -> None:
    loaded = in_a_process(LOADED, "show", run, *options.split()).stderr.split()
    assert "tachograph.engine.journal" in loaded
    assert not {"torch", "tachograph.engine.trainer", "tachograph.drivers.single"} & set(loaded)


def test_rich_is_imported_for_tables_only(run: Path) -> None:
    for command in (["--version"], ["graph"], ["graph", str(run)], ["show", str(run), "--at", "3"], ["--help"]):
        assert "rich" not in in_a_process(LOADED, *command).stderr.split()
    assert "tachograph.engine.journal" not in in_a_process(LOADED, "graph").stderr.split()


def test_the_engines_names_are_there_when_asked_for_and_not_before() -> None:
    code = "import sys, tachograph.engine as e; print('tachograph.engine.trainer' in sys.modules); e.Trainer; "
    code += "print('tachograph.engine.trainer' in sys.modules)"
    assert in_a_process(code).stdout.split() == ["False", "True"]
    for name in engine.__all__:
        assert not isinstance(getattr(engine, name), ModuleType)
        assert name in dir(engine)
    with pytest.raises(AttributeError, match="has no attribute 'Trayner'"):
        _ = engine.Trayner  # type: ignore[attr-defined]


def test_a_module_never_hides_the_function_of_its_name() -> None:
    for name in ("diff", "replay"):
        code = f"import tachograph.engine.{name}; from tachograph.engine import {name}; print(callable({name}))"
        assert in_a_process(code).stdout == "True\n"


# -- the root ----------------------------------------------------------------------------------------------


def test_the_installed_command_is_this_one() -> None:
    (found,) = entry_points(group="console_scripts", name="tachograph")
    assert found.load() is main


def test_it_says_its_version() -> None:
    assert cli("--version").out == f"tachograph {version('tachograph')}\n"


def test_without_a_command_it_says_which_there_are() -> None:
    for arguments in ([], ["-h"], ["--help"]):
        said = cli(*arguments)
        assert said.status == 0
        for name, what in COMMANDS.items():
            assert re.search(rf"^  {name} +{what}$", said.out, re.M)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_a_module_that_says_what_it_takes(name: str) -> None:
    command = importlib.import_module(f"tachograph.engine.cli.commands.{name}")
    assert command.add_arguments.__doc__
    assert command.run.__doc__
    assert cli(name, "--help").status == 0


# -- what goes wrong ---------------------------------------------------------------------------------------


def refused(*arguments: str | Path) -> str:
    said = cli(*arguments)
    assert said.status == 2
    assert said.err.startswith("tachograph: ")
    assert len(said.err.splitlines()) == 1
    return said.err


def test_bad_arguments_are_one_sentence() -> None:
    assert "there is no command 'shwo'. Did you mean 'show'?" in refused("shwo")
    assert "there is no command '--shwo'" in refused("--shwo")
    assert "RUN" in refused("show")
    assert "--at" in refused("show", "run", "--at", "first")
    assert "'-1' isn't a number >= 0" in refused("show", "run", "--rows=-1")


def test_what_is_no_run_is_named_with_the_runs_near_it(run: Path, tmp_path: Path) -> None:
    assert f"there is no run at {tmp_path}/nowhere" in refused("show", tmp_path / "nowhere")
    assert "it has no run.json. Runs in" in refused("show", tmp_path)
    assert "no journal of rank 7" in refused("show", run, "--rank", "7")


def test_a_run_of_a_newer_version_is_refused(run: Path) -> None:
    about = recording.load(run)
    recording.write_json(run / "run.json", {**about, "format": 99})
    assert "is of format 99" in refused("show", run)
    recording.write_json(run / "run.json", about)
    path = next((run / "journal" / "rank-0").glob("*.jsonl"))
    path.write_bytes(path.read_bytes().replace(b'"format":1,', b'"format":99,', 1))
    assert "has format 99" in refused("show", run)


@pytest.mark.parametrize("options", [[], ["--json"], ["--grep", "x"]])
def test_a_damaged_journal_is_named_with_the_place_and_the_way(run: Path, options: list[str]) -> None:
    path = next((run / "journal" / "rank-0").glob("*.jsonl"))
    held = bytearray(path.read_bytes())
    place = held.index(b'"event":"EpochEnded"')
    held[place + 10] ^= 1
    path.write_bytes(held)
    begin = held.rindex(b"\n", 0, place) + 1
    said = refused("show", run, *options)
    assert f"{path} is damaged at byte {begin:,}" in said
    assert f"`tachograph show {run} --salvage`" in said


def test_salvage_reads_past_the_damage_and_lists_it(run: Path) -> None:
    path = next((run / "journal" / "rank-0").glob("*.jsonl"))
    path.write_bytes(path.read_bytes().replace(b'"event":"EpochEnded"', b'"event":"EpochXnded"', 1))
    said = cli("show", run, "--salvage")
    assert said.status == 0
    assert path.name in said.section("Damage")[0].split("/")[-1]
    assert "Stands in done" in said.out
    said = cli("show", run, "--salvage", "--grep", "EpochEnded")
    assert len(said.lines) == 1
    assert "passed over at byte" in said.err


def test_a_file_that_may_not_be_read_is_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(recording, "load", refuse)
    assert refused("show", run) == f"tachograph: {run}: Permission denied\n"


def test_a_fault_of_the_program_is_not_hidden(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(path: Path) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(recording, "load", break_down)
    with pytest.raises(ZeroDivisionError):
        cli("show", run)


def test_an_interrupt_is_status_130(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(recording, "load", interrupt)
    said = cli("show", run)
    assert (said.status, said.err) == (130, "")


# -- pipes and terminals -----------------------------------------------------------------------------------


def test_a_reader_that_goes_away_ends_it_quietly(run_dir: Path) -> None:
    stub(range(1, 400), run_dir=run_dir, n_epochs=1).run()
    read, write = os.pipe()
    command = [*PROGRAM, "show", str(run_dir), "--grep", "."]
    process = subprocess.Popen(command, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert os.read(read, 10)
    os.close(read)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")


def in_a_terminal(*arguments: str | Path, **environment: str) -> str:
    """Run the command with a terminal as its standard output."""
    ours, theirs = pty.openpty()
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")}
    command = [*PROGRAM, *map(str, arguments)]
    process = subprocess.Popen(command, stdout=theirs, stdin=theirs, env={**plain, **environment})
    os.close(theirs)
    said = b""
    while True:
        try:
            block = os.read(ours, 1 << 16)
        except OSError:  # the other end is closed
            break
        if not block:
            break
        said += block
    os.close(ours)
    assert process.wait() == 0
    return said.decode().replace("\r\n", "\n")


def test_a_terminal_gets_bold_and_dim_and_nothing_else_does(run_dir: Path) -> None:
    failed(run_dir)
    decorated = in_a_terminal("show", run_dir, TERM="xterm-256color")
    assert "\x1b[1mErrors\x1b[0m" in decorated
    for environment in ({"TERM": "dumb"}, {"TERM": "xterm", "NO_COLOR": "1"}):
        assert "\x1b" not in in_a_terminal("show", run_dir, **environment)
    piped = cli("show", run_dir).out
    assert "\x1b" not in piped
    same = re.sub(r"\x1b\[[0-9;]*m", "", in_a_terminal("show", run_dir, TERM="xterm", COLUMNS="500"))
    assert [line.rstrip() for line in same.splitlines()] == piped.splitlines()


def test_at_80_columns_no_line_is_longer(run_dir: Path) -> None:
    failed(run_dir, text="a long story of what went wrong " * 10)
    lines = in_a_terminal("show", run_dir, TERM="dumb", COLUMNS="80").splitlines()[1:]  # the first one is the path
    assert max(map(len, lines)) <= 80
    assert max(map(len, cli("show", run_dir).lines)) > 300, "in a pipe, a row is a line"


def test_output_that_the_encoding_can_not_hold_is_escaped(run_dir: Path) -> None:
    failed(run_dir, text="größer → ∞")
    command = [*PROGRAM, "show", str(run_dir)]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    said = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert r"gr\xf6\xdfer \u2192 \u221e" in said.stdout
    assert said.stderr == ""
    said = subprocess.run([*command, "--json"], capture_output=True, text=True, check=True, env=environment)
    assert strict_json(said.stdout)["errors"][0]["error"] == "größer → ∞"


# -- the docs ----------------------------------------------------------------------------------------------


SCRIPT = """
from tests.test_cli_support import validating
from tests.toys import stub

def build():
    return stub(range(1, 9), **validating())

def other_data(trainer):
    trainer.train_dataloader = list(range(11, 19))
"""


def test_every_command_in_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stub(range(1, 9), run_dir="runs/demo", **validating()).run()
    Path("train.py").write_text(SCRIPT)
    commands = re.findall(r"^\$ tachograph (.*)$", DOCS, re.M)
    lacking = (" export ", "--batches", "--lr")  # a stub's run has no weights, its data no order, and its rate is fixed
    commands = [command for command in commands if not any(word in command for word in lacking)]
    assert len(commands) > 5
    for command in commands:
        said = subprocess.run(
            f"{sys.executable} -c 'from tachograph.engine.cli import main; main()' {command}",
            shell=True,
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        )
        assert said.returncode == 0, (command, said.stderr)
        assert said.stderr == "" or "--trainer" in command, command  # what is executed again is told there
        assert said.stdout


def test_the_docs_name_every_command_and_every_option() -> None:
    for name in COMMANDS:
        assert f"## `tachograph {name} " in DOCS
        for option in re.findall(r"--[a-z]+", cli(name, "--help").out):
            assert option == "--help" or f"`{option}" in DOCS
