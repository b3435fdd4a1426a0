"""An environment of its own for each peer, all with the torch of the Python that makes them.

torch and what it requires aren't installed again: they are linked into one folder, which a `.pth` file shows to every
environment. So all measure with the same torch, the environments are small, and what a peer asks for beside torch is
its own: pip puts another release of a shared package before the linked one.

Nothing but the standard library is imported here.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

OURS = "tachograph"
FOLDER = Path(__file__).parent.parent.parent / ".venv-peers"
LINKED = "torch"  # the folder of links
MADE = "made.json"  # what an environment was made of; written last


@dataclass(frozen=True)
class Environment:
    """What a peer's environment holds.

    Attributes:
        name: its folder's.
        requires: what pip installs with all that it requires.
        alone: what pip installs without what it requires, since it forbids this torch; before `requires`.
    """

    name: str
    requires: tuple[str, ...]
    alone: tuple[str, ...] = ()

    @property
    def folder(self) -> Path:
        return FOLDER / self.name

    @property
    def python(self) -> Path:
        return self.folder / ("Scripts" if os.name == "nt" else "bin") / "python"

    @property
    def asked(self) -> dict[str, object]:
        """What it has to be made of."""
        wanted = {"requires": list(self.requires), "alone": list(self.alone)}
        return {**wanted, "torch": torch_version(), "python": sys.version.split()[0]}

    @property
    def lacking(self) -> str:
        """Why it can't be used; empty if it can."""
        try:
            held = json.loads((self.folder / MADE).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return "has no environment yet"
        there = held == self.asked and (FOLDER / LINKED / "torch").exists()
        return "" if there else "has an environment of another torch, Python or release"

    def make(self) -> None:
        """Make it anew.

        Raises:
            CalledProcessError: pip can't install something; its last lines are in `stderr`.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        venv.create(self.folder, with_pip=True)
        shown = subprocess.check_output(
            [self.python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], text=True
        )
        (Path(shown.strip()) / "linked_torch.pth").write_text(f"{FOLDER / LINKED}\n", encoding="utf-8")
        (self.folder / "constraints.txt").write_text(f"torch=={torch_version()}\n", encoding="utf-8")
        if self.alone:
            self._pip("--no-deps", *self.alone)
        self._pip(*self.requires)
        (self.folder / MADE).write_text(json.dumps(self.asked), encoding="utf-8")

    def _pip(self, *arguments: str) -> None:
        pip = [self.python, "-m", "pip", "install", "-qq", "-c", self.folder / "constraints.txt"]
        subprocess.run([*pip, *arguments], check=True, stderr=subprocess.PIPE, text=True)


# Composer forbids torch >= 2.7.1, though it runs with it; what it requires is given by hand. torchtnt reads versions
# with pkg_resources, which setuptools 81 and later hasn't.
ENVIRONMENTS = {
    environment.name: environment
    for environment in (
        Environment("ignite", ("pytorch-ignite==0.5.5", "numpy")),
        Environment("torchtnt", ("torchtnt==0.2.4", "setuptools<81")),
        Environment("fastnlp", ("fastnlp==1.0.1",)),
        Environment("skorch", ("skorch==1.4.0",)),
        Environment("accelerate", ("accelerate==1.15.0",)),
        Environment("lightning", ("lightning==2.6.6",)),
        Environment("transformers", ("transformers==5.24.0", "accelerate==1.15.0")),
        Environment(
            "composer",
            (
                "torchvision",
                "coolname<3",
                "importlib-metadata<9",
                "mosaicml-cli<0.8",
                "numpy<2.3",
                "packaging<25.1",
                "pillow<12",
                "psutil<8",
                "py-cpuinfo<10",
                "pyyaml<7",
                "requests<3",
                "tabulate==0.9.0",
                "torch_optimizer<0.4",
                "torchmetrics<1.7.5",
                "tqdm<5",
            ),
            alone=("mosaicml==0.32.1",),
        ),
    )
}


def wanted(only: str | None) -> list[str]:
    """Return which libraries to run, ours first among all: those of "A,B", or every one.

    Raises:
        SystemExit: one of them isn't known.
    """
    every = [OURS, *ENVIRONMENTS]
    names = only.split(",") if only else every
    if unknown := sorted(set(names) - set(every)):
        sys.exit(f"nothing is called {', '.join(unknown)}; there are {', '.join(every)}")
    return names


def python_of(name: str) -> Path | None:
    """Return the Python that runs a library; None, and a sentence is printed, if it has none here."""
    if name == OURS:
        return Path(sys.executable)
    if why := ENVIRONMENTS[name].lacking:
        print(f"left out: {name} {why}; `python benchmarks/peers {name}` makes it")
        return None
    return ENVIRONMENTS[name].python


def setting_of(name: str) -> dict[str, str]:
    """Return the environment variables that a library is run with: one thread, no GPU, no network, no paths of ours."""
    held = {key: value for key, value in os.environ.items() if name == OURS or key != "PYTHONPATH"}
    return {
        **held,
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "PYTHONWARNINGS": "ignore",
    }


def torch_version() -> str:
    """Return the release of this Python's torch, without what names its build."""
    return metadata.version("torch").partition("+")[0]


def link_torch() -> Path:
    """Link torch, and all that it requires, from this Python's packages into one folder; return it."""
    folder = FOLDER / LINKED
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    found: dict[str, metadata.Distribution] = {}
    waiting = ["torch"]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        try:
            found[name] = metadata.distribution(name)
        except metadata.PackageNotFoundError:  # asked for on another system, or with an extra
            continue
        asked = (line.partition(";") for line in found[name].requires or ())
        waiting += [re.split(r"[^\w.-]", what.strip(), maxsplit=1)[0] for what, _, when in asked if "extra" not in when]
    for distribution in found.values():
        for top in {path.parts[0] for path in distribution.files or ()} - {"..", "__pycache__"}:
            link = folder / top
            if not link.exists():
                link.symlink_to(Path(str(distribution.locate_file(top))).resolve())
    return folder
