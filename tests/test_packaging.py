"""What a user gets: a wheel with everything in it and nothing else, which works where nothing of this folder is.

It is built, once for all workers, from the files that git knows of, and installed into an environment of its own. That
one is lent the libraries of the environment that runs the tests, so that no network is needed.
"""

from __future__ import annotations

import ast
import email
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from email.message import Message
from functools import cache
from pathlib import Path

import attrs
import pytest

from tests.interpreters import NAMED, found
from tests.test_house import FLOORS, ROOT, name_of

fcntl = pytest.importorskip("fcntl")

HIDDEN = ("tqdm", "tensorboard", "wandb", "mlflow", "pyarrow", "torchmetrics", "torchdata", "ignite", "sklearn")
"""What a user need not have: each is brought by an extra, or known where it happens to be there."""
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


@cache
def files() -> list[Path]:
    """The files of a fresh clone, with what isn't committed yet."""
    asked = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    return sorted(path for name in listed if name and (path := ROOT / name).is_file())


def sources(*folders: str) -> list[Path]:
    """The files of Python in some folders."""
    return [path for path in files() if path.suffix == ".py" and name_of(path).split("/")[0] in folders]


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    """Run a command, and return what it printed."""
    ran = subprocess.run(
        command, cwd=cwd, capture_output=True, text=True, check=False, timeout=300, env={**ENVIRONMENT, **variables}
    )
    assert ran.returncode == 0, f"{ran.stdout}\n{ran.stderr}"
    return ran.stdout


def build(what: str, source: Path, out: Path) -> Path:
    """Build a wheel or an sdist as a frontend does; bytes don't depend on the time."""
    code = f"import setuptools.build_meta as b, sys; print(b.build_{what}(sys.argv[1]))"
    printed = run(sys.executable, "-c", code, out, cwd=source, SOURCE_DATE_EPOCH="1700000000")
    return out / printed.splitlines()[-1]


def files_of(archive: Path) -> set[str]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return set(wheel.namelist())
    with tarfile.open(archive) as sdist:
        return {member.name.partition("/")[2] for member in sdist.getmembers() if member.isfile()}


@attrs.frozen
class Shipped:
    """What was built, and an environment with it.

    Attributes:
        source: the copy of the files that both were built from.
        wheel: what is installed.
        sdist: what others build it from.
        python: the interpreter of the environment.
        libraries: where it has its packages.
    """

    source: Path
    wheel: Path
    sdist: Path
    python: Path
    libraries: Path

    def product(self) -> set[str]:
        """What is to be installed, as it is named in an environment."""
        found = [path for floor in FLOORS for path in (self.source / floor).rglob("*") if path.is_file()]
        return {f"tachograph/{path.relative_to(self.source).as_posix()}" for path in found}


def ship(place: Path) -> None:
    """Build both, and install the wheel."""
    (source := place / "source").mkdir(parents=True)
    for path in files():
        copy = source / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(path.read_bytes())
    build("sdist", source, place)
    wheel = build("wheel", source, place)
    run(sys.executable, "-m", "venv", "--without-pip", place / "env", cwd=place)
    install = ("install", "--quiet", "--no-deps", "--no-index", "--no-compile", wheel)
    run(sys.executable, "-m", "pip", "--python", place / "env" / "bin" / "python", *install, cwd=place)


@pytest.fixture(scope="session")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Shipped:
    base = tmp_path_factory.getbasetemp()
    place = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shipped"
    with open(f"{place}.lock", "w") as lock:  # of all workers one builds
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            ship(place)
            (there,) = place.glob("env/lib/python*/site-packages")
            (there / "lent.pth").write_text(f"{Path(pytest.__file__).parent.parent}\n", encoding="utf-8")
    (wheel,), (sdist,), (libraries,) = (place.glob(p) for p in ("*.whl", "*.tar.gz", "env/lib/python*/site-packages"))
    return Shipped(place / "source", wheel, sdist, place / "env" / "bin" / "python", libraries)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where a user works: with modules that are called like ours."""
    for name in FLOORS:
        (tmp_path / f"{name}.py").write_text("MINE = True\n", encoding="utf-8")
    return tmp_path


@pytest.fixture
def python(shipped: Shipped, folder: Path) -> Callable[..., str]:
    """Run Python in the environment, where the user works."""
    return lambda *arguments: run(shipped.python, *arguments, cwd=folder)


# -- what is in it -----------------------------------------------------------------------------------------


def test_the_wheel_holds_every_file_of_the_product_and_nothing_else(shipped: Shipped) -> None:
    held = {name for name in files_of(shipped.wheel) if ".dist-info/" not in name}
    assert shipped.product() - held == set(), "a folder belongs into pyproject.toml's packages, data into package-data"
    assert held - shipped.product() == set()
    with zipfile.ZipFile(shipped.wheel) as wheel:
        for name in held:
            assert wheel.read(name) == (shipped.source / name.removeprefix("tachograph/")).read_bytes()


def test_the_sdist_holds_what_the_wheel_is_built_from_and_what_is_told_of_it(shipped: Shipped) -> None:
    beside = {"CHANGELOG.md", "LICENSE", "MANIFEST.in", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg"}
    held = {name for name in files_of(shipped.sdist) if ".egg-info/" not in name}
    assert held == beside | {name.removeprefix("tachograph/") for name in shipped.product()}


def test_the_sdist_builds_the_same_wheel_byte_for_byte(shipped: Shipped, tmp_path: Path) -> None:
    with tarfile.open(shipped.sdist) as sdist:
        sdist.extractall(tmp_path)
    (source,) = tmp_path.iterdir()
    assert build("wheel", source, tmp_path).read_bytes() == shipped.wheel.read_bytes()


# -- what is said of it ------------------------------------------------------------------------------------


@pytest.fixture
def metadata(shipped: Shipped) -> Message:
    with zipfile.ZipFile(shipped.wheel) as wheel:
        (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
        return email.message_from_bytes(wheel.read(name))


def test_the_metadata_says_what_it_is_and_under_which_licence(metadata: Message, shipped: Shipped) -> None:
    assert metadata["Name"] == "tachograph"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert "tachograph-" + metadata["Version"] + ".dist-info/licenses/LICENSE" in files_of(shipped.wheel)
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload(decode=True) == (shipped.source / "README.md").read_bytes()


def test_the_version_stands_in_one_place(metadata: Message) -> None:
    version = metadata["Version"]
    named = [p for p in files() if p.suffix in (".py", ".toml") and f'"{version}"' in p.read_text(encoding="utf-8")]
    assert [name_of(path) for path in named if name_of(path).split("/")[0] != "tests"] == ["pyproject.toml"]


def test_the_versions_of_python_are_named_alike_wherever_they_are_named(metadata: Message) -> None:
    classified = re.findall(r"Python :: (3\.\d+)", "\n".join(metadata.get_all("Classifier", [])))
    assert classified == list(NAMED)
    assert metadata["Requires-Python"] == f">={NAMED[0]}"
    pyproject = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'target-version = "py{NAMED[0].replace(".", "")}"' in pyproject  # ruff's
    assert f'python_version = "{NAMED[0]}"' in pyproject  # mypy's: names that are newer are errors of `make check`
    for page in ("README.md", "docs/install.md"):
        assert f"Python {NAMED[0]} to {NAMED[-1]}" in (ROOT / page).read_text(encoding="utf-8")


def test_every_extra_is_told_of_with_what_it_brings(metadata: Message) -> None:
    brought: dict[str, set[str]] = {}
    for line in metadata.get_all("Requires-Dist", []):
        if found := re.fullmatch(r'([\w-]+)\S*; extra == "(\w+)"', line):
            brought.setdefault(found[2], set()).add(found[1])
    assert set(brought) == set(metadata.get_all("Provides-Extra", []))
    page = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ([\w, -]+) \|", page, re.M)
    told = {extra: set(re.findall(r"[\w-]+", libraries)) for extra, libraries in rows}
    assert told == {name: libraries for name, libraries in brought.items() if name not in ("bench", "dev")}


# -- where it is installed ---------------------------------------------------------------------------------


def test_nothing_but_its_own_name_comes_into_an_environment(shipped: Shipped) -> None:
    names = {path.name.split("-")[0] for path in shipped.libraries.iterdir()}
    assert names == {"tachograph", "lent.pth"}  # and tachograph-0.1.0.dist-info


WHO = """
import engine, states, drivers, tachograph.engine, tachograph.states, tachograph.drivers
assert engine.MINE and states.MINE and drivers.MINE
print(*(getattr(tachograph, name).__file__ for name in ("engine", "states", "drivers")))
"""


@pytest.mark.parametrize("how", [("script.py",), ("-m", "script"), ("-c", WHO)], ids=["script", "module", "command"])
def test_a_user_s_own_engine_states_and_drivers_shadow_nothing_and_are_not_shadowed(
    how: tuple[str, ...], python: Callable[..., str], folder: Path, shipped: Shipped
) -> None:
    (folder / "script.py").write_text(WHO, encoding="utf-8")
    for path in python(*how).split():
        assert Path(path).is_relative_to(shipped.libraries)


def test_every_module_of_it_is_imported_without_any_extra(python: Callable[..., str], shipped: Shipped) -> None:
    found = [name.removesuffix(".py") for name in shipped.product() if name.endswith(".py")]
    names = {name.removesuffix("/__init__").replace("/", ".") for name in found}
    hidden = f"import sys, importlib; sys.modules.update(dict.fromkeys({HIDDEN!r}))"
    own_needs = {"tachograph.engine.callbacks.loggers.offline"}  # imported by its logger alone, which asks first
    python("-c", f"{hidden}\nfor name in {sorted(names - own_needs)!r}: importlib.import_module(name)")


STUB_RUN = """
import sys
sys.modules["torch"] = None
from tachograph.drivers import StubDriver
from tachograph.engine import Trainer
Trainer(None, StubDriver(), [1, 2, 3], None, n_epochs=2, run_dir="run", progress_bar=None).run()
"""
STUB_SHOW = 'import sys; sys.modules["torch"] = None; from tachograph.engine.cli import main; main(["show", "run"])'


def test_the_command_is_there_and_reads_a_run_where_no_torch_is(
    python: Callable[..., str], folder: Path, shipped: Shipped
) -> None:
    command = shipped.python.with_name("tachograph")
    assert "usage: tachograph" in run(command, "--help", cwd=folder)
    python("-c", STUB_RUN)
    told = run(command, "show", "run", cwd=folder)
    assert "Run run" in told
    assert python("-c", STUB_SHOW) == told


MINE = """
import sys

def test_it_is_there_and_has_imported_nothing(pytestconfig, request):
    assert pytestconfig.pluginmanager.has_plugin("tachograph")
    assert not {"torch", "attrs", "tachograph.states"} & sys.modules.keys()
    for fixture in ("assert_deterministic", "assert_resumes_exactly"):
        assert request._fixturemanager.getfixturedefs(fixture, request.node)
"""


def test_pytest_finds_the_plugin_which_imports_no_torch(python: Callable[..., str], folder: Path) -> None:
    (folder / "test_mine.py").write_text(MINE, encoding="utf-8")
    alone = ("-p", "no:cacheprovider", "-p", "no:xdist", "-p", "no:hypothesispytest")
    assert "1 passed" in python("-m", "pytest", *alone)


TYPED = """
from tachograph.states import Stepped, TrainerState, training_machine

def counted(state: TrainerState) -> int:
    return state.optimizer_steps

reveal_type(TrainerState().seq)
reveal_type(training_machine().rows)
counted("state")
"""
TYPED_TRAINER = """
from tachograph.drivers import StubDriver
from tachograph.engine import Callback, Trainer

class Mine(Callback):
    def on_train_batch_end(self, trainer: Trainer) -> None:
        reveal_type(trainer.trainer_state)

trainer = Trainer(None, StubDriver(), [1, 2], None, callbacks=[Mine()], run_dir=None)
reveal_type(trainer.run())
Trainer(None, StubDriver(), [1], None, n_epochs="many")
"""


def types_of(text: str, python: Path, folder: Path) -> str:
    """What mypy says of a user's script, with the packages of an interpreter."""
    (folder / "mine.py").write_text(text, encoding="utf-8")
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(python), "--cache-dir", "cache"]
    ran = subprocess.run(
        [*mypy, "mine.py"], cwd=folder, capture_output=True, text=True, check=False, timeout=600, env=ENVIRONMENT
    )
    return ran.stdout + ran.stderr


def test_a_user_s_types_are_checked_against_ours(shipped: Shipped, tmp_path: Path) -> None:
    """C9."""
    said = types_of(TYPED, shipped.python, tmp_path)
    assert len(re.findall(r"error:", said)) == 1, said
    assert 'Argument 1 to "counted" has incompatible type "str"; expected "TrainerState"' in said
    assert 'Revealed type is "int"' in said.replace("builtins.", "")
    assert "Row" in said


@pytest.mark.sweep
@pytest.mark.parametrize("installed", ["wheel", "as it is worked on"])
def test_a_trainer_s_types_are_known_whatever_way_it_is_installed(
    installed: str, shipped: Shipped, tmp_path: Path
) -> None:
    """C9."""
    said = types_of(TYPED_TRAINER, shipped.python if installed == "wheel" else Path(sys.executable), tmp_path)
    assert len(re.findall(r"error:", said)) == 1, said
    assert 'Argument "n_epochs" to "Trainer" has incompatible type "str"' in said
    assert said.count('TrainerState"') == 2


# -- the versions of Python --------------------------------------------------------------------------------


def test_every_file_is_written_in_the_oldest_python_that_is_named() -> None:
    oldest = tuple(map(int, NAMED[0].split(".")))
    for path in sources(*FLOORS, "examples"):
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=oldest)


COMPILED = """
import sys
for name in sys.argv[1:]:
    with open(name, encoding="utf-8") as file:
        compile(file.read(), name, "exec", dont_inherit=True)
"""


@pytest.mark.parametrize("version", NAMED)
def test_every_file_compiles_in_each_python_that_is_named_and_the_states_work(version: str, tmp_path: Path) -> None:
    interpreter = found(version)
    if interpreter is None:
        pytest.skip(f"there is no Python {version} on this machine")
    run(interpreter, "-W", "error", "-c", COMPILED, *sources(*FLOORS, "examples"), cwd=tmp_path)
    (tmp_path / "tachograph").mkdir()
    (tmp_path / "tachograph" / "states").symlink_to(ROOT / "states")
    lent = f"import sys; sys.dont_write_bytecode = True; sys.path[:0] = {[str(Path(attrs.__file__).parent.parent)]!r}"
    told = "from tachograph.states import training_machine; print(training_machine().mermaid())"
    assert "fetch --> step" in run(interpreter, "-c", f"{lent}\n{told}", cwd=tmp_path)


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from tachograph.drivers import StubDriver
from tachograph.engine import Journal, Trainer, diff, replay
from tachograph.engine.exports import export

def go_on(run_dir, n_epochs):
    limits = {"n_epochs": n_epochs, "seed": 1, "run_dir": run_dir}
    return Trainer(None, StubDriver(), [1, 2, 3], None, progress_bar=None, **limits).run(resume_from="auto")

go_on("a", 2), go_on("b", 1), go_on("b", 2)
heard = []
replay("a").on("step -> fetch", lambda trainer: heard.append(trainer.trainer_state.optimizer_steps)).run()
assert heard == [1, 2, 3, 4, 5, 6], heard
assert diff("a", "b") is None and Journal("a").chain == Journal("b").chain
export("a", "sqlite", "a.db")
"""


@pytest.mark.sweep
@pytest.mark.parametrize("version", NAMED)
def test_what_needs_no_torch_works_in_each_python_that_is_named(
    version: str, shipped: Shipped, tmp_path: Path, metadata: Message
) -> None:
    interpreter = found(version)
    if interpreter is None:
        pytest.skip(f"there is no Python {version} on this machine")
    needed = [line for line in metadata.get_all("Requires-Dist", []) if ";" not in line and "torch" not in line]
    run(interpreter, "-m", "venv", tmp_path / "env", cwd=tmp_path)
    python = tmp_path / "env" / "bin" / "python"
    pip = (python, "-m", "pip", "install", "--quiet")
    if subprocess.run([*pip, *needed], env=ENVIRONMENT, capture_output=True, check=False).returncode:
        pytest.skip(f"no index has {', '.join(needed)} for Python {version} here")
    run(*pip, "--no-deps", "--no-index", shipped.wheel, cwd=tmp_path)
    run(python, "-W", "error::DeprecationWarning:tachograph", "-c", WITHOUT_TORCH, cwd=tmp_path)
    assert "Run a" in run(python.with_name("tachograph"), "show", "a", cwd=tmp_path)
