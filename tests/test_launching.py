"""Several processes from one script: launched by itself, by torchrun, or in a group of the user's.

Everything runs in real processes on the CPU; what a choice comes to before any is started is tried here.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import types
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tachograph.drivers import (
    all_gather,
    broadcast_object,
    choose,
    choose_driver,
    is_rank_zero,
    rank,
    rank_zero_call,
    seed_everything,
    world_size,
)
from tachograph.drivers.among_ranks import local_rank
from tachograph.drivers.launch_environment import Launch, launch_of, local_rank_of, rank_of, world_size_of
from tachograph.drivers.launching import again
from tachograph.drivers.output import OutputOfOthers
from tachograph.drivers.places import Places, places_of
from tachograph.engine import Evaluator, Journal, Trainer
from tachograph.engine.signals import Signals
from tachograph.engine.snapshots import catalogue
from tachograph.states.errors import CallerError
from tests.toys import Regression

ROOT = Path(__file__).parent.parent
PATIENCE = 120
JOB = ["-m", "tests.jobs.launched_job"]
LAUNCH = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"}
MEETING = {"MASTER_ADDR": "localhost", "MASTER_PORT": "29500"}


def environment(**more: str) -> dict[str, str]:
    """What a process gets that belongs to no launch."""
    own = {name: value for name, value in os.environ.items() if name not in (*LAUNCH, *MEETING)}
    return {**own, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **more}


def started(*command: str, **more: str) -> subprocess.Popen[str]:
    whole = [sys.executable, *command]
    pipe = subprocess.PIPE
    return subprocess.Popen(whole, cwd=ROOT, env=environment(**more), stdout=pipe, stderr=pipe, text=True)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for a process; return its status and what it printed."""
    out, error = process.communicate(timeout=PATIENCE)
    return process.returncode, out, error


def wait_for(*paths: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not all(path.exists() and path.stat().st_size for path in paths):
        assert time.monotonic() < end, [path for path in paths if not path.exists()]
        time.sleep(0.02)


def told(folder: Path) -> list[Any]:
    """What each rank left."""
    return [json.loads((folder / f"rank-{k}.json").read_text(encoding="utf-8")) for k in range(2)]


# -- a script that launches itself -------------------------------------------------------------------------


def test_a_script_runs_itself_in_several_processes_and_asks_them_what_it_likes(tmp_path: Path) -> None:
    """D5, D6, D7, D9, D10, D11, D14, B30, N7, T5, T21: and a second trainer finds them there."""
    folder = tmp_path / "output" / "of others"
    words = ["helped", str(tmp_path), str(folder), "$$ ${local_rank} of"]
    status, out, error = ended(started("-X", "dev", "-W", "ignore", *JOB, *words))
    assert (status, error.replace("\n", "|")) == (0, "rank None complains|rank 0 complains|")
    assert out.splitlines() == ["rank None says so", "rank 0 says so"]
    assert sorted(path.name for path in folder.iterdir()) == ["1_err.log", "1_std.log"]
    assert (folder / "1_std.log").read_text(encoding="utf-8") == "rank 1 says so\n"
    assert (folder / "1_err.log").read_text(encoding="utf-8") == "rank 1 complains\n"
    for k, found in enumerate(told(tmp_path)):
        assert found["before"][:3] == [k, 2, k == 0]
        assert "2 processes were launched, but they haven't joined yet" in found["before"][3]
        assert found["ranks"] == [k, k, 2]
        assert found["argv"][1:] == words
        assert found["development"]
        assert found["told of its launcher's death by"] == (signal.SIGTERM if sys.platform == "linux" else 0)
        assert found["steps"] == [8, 8]
        assert found["backend"] == "gloo"
        assert found["heard"] == ([] if k else list(range(8)))
        assert found["alone"] == (None if k else [[0], 1])
        assert found["everywhere"] == [[0, 1], 2]
        assert found["gathered"] == [[[0], ["a", 0], None], [[1, 1], ["a", 1], None]]
        assert found["broadcast"] == [{"of": 0}, [1]]
        assert found["no such rank"] == "src=2: there are ranks 0 to 1"
        assert "3 processes asked for, but 2 launched" in found["three"]
        assert found["also three"] == found["three"]
        assert found["seeds"] == [3 + k, 3 + k, 3]
    for run in ("first", "second"):
        assert Journal(tmp_path / run, rank="all").ranks == [0, 1]


def test_the_status_is_that_of_the_rank_that_failed_and_all_listeners_heard_of_it(tmp_path: Path) -> None:
    """D7, D8, N9, R17: the others' standard output is dropped, their errors are not."""
    status, out, error = ended(started(*JOB, "failing", str(tmp_path), "only_error"))
    assert status == 1
    assert out.splitlines() == ["rank None says so", "rank 0 says so"]
    assert "rank 1 complains" in error
    assert "ArithmeticError: of rank 1 alone" in error
    assert "ChildFailedError" not in error
    assert "SystemExit" not in error
    heard = [(tmp_path / f"heard-{k}").read_text(encoding="utf-8") for k in range(2)]
    assert heard[0].startswith("RankFailed: rank 1 failed in state 'fetch'")
    assert heard[1] == "ArithmeticError: of rank 1 alone"


def test_a_signal_to_the_launcher_ends_all_ranks_at_one_transition_with_a_snapshot(tmp_path: Path) -> None:
    """D5, D7, R30: and rank 1 has the time it takes, after rank 0 has ended its work; nothing of it is shown.

    It reaches the ranks twice, as under Slurm, which signals all processes of a step.
    """
    launcher = started(*JOB, "waiting", str(tmp_path), "ignore")
    here = [tmp_path / f"here-{k}" for k in range(2)]
    wait_for(*here)
    launcher.send_signal(signal.SIGTERM)
    for path in here:
        os.kill(int(path.read_text(encoding="utf-8")), signal.SIGTERM)
    time.sleep(0.3)
    (tmp_path / "go").touch()
    status, out, error = ended(launcher)
    assert status == 128 + signal.SIGTERM
    assert out.splitlines() == ["rank None says so", "rank 0 says so"]
    assert "rank 1" not in error
    ends = [Journal(tmp_path / "run", rank=k).last for k in range(2)]
    assert [(end.seq, end.event, end.data) for end in ends if end] == [(11, "Stopped", {"reason": "SIGTERM"})] * 2
    assert [snapshot.seq for snapshot in catalogue(tmp_path / "run")[0]] == [10]


def test_the_same_signal_again_is_no_second_one_if_it_comes_soon() -> None:
    """R30: another one, or the same one later, acts at once."""
    heard: list[int] = []
    with Signals(heard.append, soon=60.0):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert heard == [signal.SIGTERM]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    with Signals(heard.append, soon=0.01):
        signal.raise_signal(signal.SIGINT)
        time.sleep(0.02)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert heard == [signal.SIGTERM, signal.SIGINT]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


SCRIPT = """
import os, signal, sys, time
if "RANK" not in os.environ:
    os.chdir("/")
    from tachograph.drivers.launching import launch
    launch(2, "all")
if sys.argv[1] == "wait":
    from tachograph.drivers.orphans import end_with_launcher
    end_with_launcher()
rank, got = os.environ["RANK"], []
def say(*words):
    os.write(1, " ".join(map(str, (rank, *words, "\\n"))).encode())
def caught(number, frame):
    got.append(number)
    say("got", number)
for name in ("SIGINT", "SIGUSR1", "SIGTERM"):
    if sys.argv[1] == "wait":
        signal.signal(getattr(signal, name), caught)
say("here")
while not got and sys.argv[1] == "wait":
    time.sleep(0.02)
time.sleep(0.4 + float(rank))
if sys.argv[1] == "die" and rank == "1":
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "fall" and rank == "1":
    sys.exit(7)
time.sleep(30 * (sys.argv[1] in ("die", "fall")))
say("end", got)
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A script whose processes need no torch."""
    path = tmp_path_factory.mktemp("script") / "script.py"
    path.write_text(SCRIPT, encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", ["SIGINT", "SIGUSR1"])
def test_a_signal_reaches_every_process_once_and_all_are_waited_for(script: str, name: str) -> None:
    """D5: in a session of their own, they have no other."""
    launcher = started(script, "wait")
    assert launcher.stdout is not None
    here = {launcher.stdout.readline() for _ in range(2)}
    assert here == {"0 here \n", "1 here \n"}
    number = int(getattr(signal, name))
    launcher.send_signal(number)
    status, out, _ = ended(launcher)
    assert status == 128 + number
    both = [[f"{k} got {number} ", f"{k} end [{number}] "] for k in range(2)]
    assert sorted(out.splitlines()) == sorted([*both[0], *both[1]])


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process that its parent has died")
def test_processes_whose_launcher_is_killed_are_told_to_end(script: str) -> None:
    """D5, R17: none is left to hold a GPU."""
    launcher = started(script, "wait")
    assert launcher.stdout is not None
    assert {launcher.stdout.readline() for _ in range(2)} == {"0 here \n", "1 here \n"}
    launcher.kill()
    status, out, _ = ended(launcher)
    assert status == -signal.SIGKILL
    once = {line.replace("15, ", "") for line in out.splitlines()}  # the system may tell them more than once
    assert once == {"0 end [15] ", "0 got 15 ", "1 end [15] ", "1 got 15 "}


@pytest.mark.parametrize(("how", "expected"), [("go", 0), ("fall", 7), ("die", 128 + signal.SIGKILL)])
def test_the_launcher_ends_with_the_status_of_the_process_that_failed_first(
    script: str, how: str, expected: int
) -> None:
    """D5, D8: 0 if none did; the others, which it ends, don't count. Another directory meanwhile is no matter."""
    status, out, error = ended(started(os.path.relpath(script, ROOT), how))
    assert status == expected
    assert "Traceback" not in error
    assert ("1 end []" in out) == (how == "go")


def test_where_there_is_no_script_nothing_is_launched_and_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """D5, N6: `python -c`, a prompt, a notebook, a child of multiprocessing."""
    code = "from tachograph.drivers import choose_driver as c; import torch; c('auto', torch.nn.ReLU(), ['cpu'] * 2)"
    status, _, error = ended(started("-c", code))
    assert status == 1
    said = "here there is no script to run. Put the code into a file and start it with `python file.py`, or with `torch"
    assert said in error
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    main.__spec__ = None
    main.__file__ = "<stdin>"  # python - < script
    with pytest.raises(CallerError, match="no script"):
        again()
    main.__file__ = __file__
    assert again()[0] == sys.executable
    with monkeypatch.context() as at_a_prompt:
        at_a_prompt.setattr(sys, "ps1", ">>> ", raising=False)
        with pytest.raises(CallerError, match="no script"):
            again()
    with monkeypatch.context() as in_a_notebook:
        in_a_notebook.setattr("builtins.get_ipython", lambda: None, raising=False)
        with pytest.raises(CallerError, match="no script"):
            again()
    with monkeypatch.context() as in_a_child:
        in_a_child.setattr(multiprocessing, "parent_process", lambda: "a process")
        with pytest.raises(CallerError, match="no script"):
            again()


# -- torchrun, and a group of the user's -------------------------------------------------------------------


def test_under_torchrun_a_group_of_the_user_s_is_joined_and_a_list_of_devices_is_passed_over(tmp_path: Path) -> None:
    """D5, D6, D9, T1, N6: the model that was wrapped by hand trains as the one that wasn't."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    status, out, error = ended(started(*torchrun, *JOB, "joined", str(tmp_path), "ignore"))
    assert status == 0, error
    assert sorted(out.splitlines()) == ["rank 0 says so", "rank 1 says so"], "torchrun's own flags say what is shown"
    for k, found in enumerate(told(tmp_path)):
        assert found["steps"] == [8, 8]
        assert found["driver"] == "TorchDDPDriver"
        assert found["group"] == 2
        assert len(found["told"]) == (k == 0)
        assert all("device=['cpu', 'cpu', 'cpu'] is ignored" in text for text in found["told"])
        assert "3 processes asked for, but 2 launched" in found["three"]
        assert found["weights"] == [told(tmp_path)[0]["weights"][0]] * 2


# -- what a choice comes to --------------------------------------------------------------------------------


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Return `f(driver, device=..., ...)`: the name of the driver that is built, and its device."""
    for name in (*LAUNCH, *MEETING):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(choose, "_built", lambda name, model, device, options: (name, device, options))
    return lambda driver, device="cpu", **more: choose_driver(driver, nn.Linear(1, 1), device, **more)


def launched_as(monkeypatch: pytest.MonkeyPatch, **changes: str) -> None:
    for name, value in {**LAUNCH, **MEETING, **changes}.items():
        monkeypatch.setenv(name, value)


def test_auto_goes_by_what_was_launched_and_what_is_asked_for(
    chosen: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """T2, T5, D5."""
    options = {"train_fn": None, "ddp_options": {}, "fsdp_options": {}}
    assert chosen("auto", **options) == ("torch", "cpu", {"train_fn": None})
    assert chosen("auto", ["cpu"]) == chosen("auto", "cpu", processes=1) == ("torch", "cpu", {})
    launched_as(monkeypatch)
    assert chosen("auto", **options) == ("torch_ddp", "cpu", {"train_fn": None, "ddp_options": {}})
    assert chosen("torch_fsdp", **options) == ("torch_fsdp", "cpu", {"train_fn": None, "fsdp_options": {}})
    with pytest.warns(UserWarning, match="WORLD_SIZE=4, and driver='torch' trains in one process"):
        assert chosen("torch")[0] == "torch"
    launched_as(monkeypatch, WORLD_SIZE="1", RANK="0", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1")
    assert chosen("auto")[0] == "torch"
    assert chosen("torch_ddp")[0] == "torch_ddp"


def test_auto_joins_a_group_that_the_user_has_made(
    chosen: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """D5, T1: there the user gives each process its device."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'meeting'}", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(Regression())
        assert choose_driver("auto", wrapped, None)[:2] == ("torch_ddp", None)  # type: ignore[index]
        assert [rank(), local_rank(), world_size(), is_rank_zero()] == [0, 0, 1, True]
        assert chosen("torch_ddp", "cpu", processes=1) == ("torch_ddp", "cpu", {})
        with pytest.raises(CallerError, match="2 processes asked for, but 1 launched"):
            chosen("torch_ddp", ["cpu", "cpu"])
        with pytest.raises(CallerError, match="there is a group of processes already: give each process its own devi"):
            chosen("torch_ddp", ["cpu"])
    finally:
        torch.distributed.destroy_process_group()


REFUSED = [
    (("torch_ddp", "cpu", None), "how many processes? Give a device for each"),
    (("torch_ddp", [], None), "device=[] holds no device"),
    (("torch_ddp", "cpu", 0), "processes must be an integer >= 1 or None, not 0"),
    (("torch_ddp", "cpu", True), "processes must be an integer >= 1 or None, not True"),
    (("auto", ["cpu", "cpu"], 3), "device=['cpu', 'cpu'] is for 2 processes, and processes=3: give one"),
    (("auto", [0, "cpu"], None), "device=[0, 'cpu'] mixes cpu and cuda"),
    (("auto", ["cuda:1", 1], None), "device=['cuda:1', 1] gives one device to several of 2 processes"),
    (("auto", "cuda:1", 2), "device='cuda:1' gives one device to several of 2 processes"),
    (("auto", [0, 99], None), "device 99: this machine has 4 CUDA devices"),
    (("auto", "cuda", 5), "device 'cuda:4': this machine has 4 CUDA devices"),
    (("torch", "cpu", 2), "processes=2, but driver='torch' trains in one: use driver='torch_ddp'"),
    (("torch", [0, 1], None), "driver='torch_ddp'"),
]


@pytest.mark.parametrize(("asked", "said"), REFUSED, ids=[str(asked) for asked, _ in REFUSED])
def test_what_cannot_be_launched_is_refused_before_anything_is(
    chosen: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, asked: tuple[Any, ...], said: str
) -> None:
    """T5."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    driver, device, processes = asked
    with pytest.raises(CallerError) as caught:
        chosen(driver, device, processes=processes)
    assert said in str(caught.value)


def test_all_gpus_are_a_process_on_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """T5."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert places_of(-1, None).to_launch() == 3
    assert places_of(-1, 3).devices == (0, 1, 2)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    with pytest.raises(CallerError, match="device=-1 asks for all GPUs, and this machine has none"):
        places_of(-1, None)


def launch(local_rank: int = 1, *, ours: bool = False, size: int = 2, local_size: int = 2) -> Launch:
    return Launch(rank=local_rank, world_size=size, local_rank=local_rank, local_world_size=local_size, ours=ours)


@pytest.mark.parametrize(
    ("device", "processes", "own"),
    [
        ([2, 0], None, 0),
        (["cpu", "cpu"], None, "cpu"),
        ("cuda", 2, "cuda:1"),
        (None, 2, "cuda:1"),
        ("cpu", None, "cpu"),
    ],
)
def test_a_process_that_was_launched_here_takes_the_device_that_was_named_for_it(
    monkeypatch: pytest.MonkeyPatch, device: Any, processes: int | None, own: Any
) -> None:
    """D5, T5."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert places_of(device, processes).in_launch(launch(ours=True)) == own


@pytest.mark.parametrize(
    ("device", "there", "own", "word"),
    [
        (None, True, "cuda:1", None),
        (None, False, "cpu", None),
        ("cpu", True, "cpu", None),
        ("cuda", True, "cuda:1", None),
        (torch.device("cuda"), True, "cuda:1", None),
        ("cuda:1", True, "cuda:1", None),
        (1, True, "cuda:1", None),
        ([0, 1], True, "cuda:1", None),
        (["cpu", "cpu"], True, "cpu", None),
        ([1, 0], True, "cuda:1", "each takes the GPU of its LOCAL_RANK"),
        (0, True, "cuda:1", "each takes the GPU of its LOCAL_RANK"),
        ([0, 1, 2], True, "cuda:1", "each takes the GPU of its LOCAL_RANK"),
        ([0, 1], False, "cpu", "each takes the CPU"),
    ],
)
def test_under_torchrun_each_process_takes_the_device_of_its_local_rank(
    monkeypatch: pytest.MonkeyPatch, device: Any, there: bool, own: str, word: str | None
) -> None:
    """D5, T5, N2: what was given is ignored with one warning, if that makes a difference."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there)
    first = Launch(rank=0, world_size=2, local_rank=1, local_world_size=2, ours=False)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert str(places_of(device, None).in_launch(first)) == own
        assert str(places_of(device, None).in_launch(launch(1))) == own
    assert [str(one.message).split(": ")[1] for one in said] == ([] if word is None else [word])


def test_the_only_process_of_a_machine_may_have_any_device_of_it() -> None:
    """D5, D6."""
    assert places_of("cuda:3", None).in_launch(launch(0, size=4, local_size=1)) == "cuda:3"


def test_gpus_that_are_hidden_become_as_many_processes_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """D2, T5."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.warns(UserWarning, match="device=\\[0, 1\\] becomes 2 processes on the CPU"):
        assert choose._visible([0, 1], "torch_ddp") == ["cpu", "cpu"]


def test_a_driver_that_is_built_has_its_processes() -> None:
    """T2."""
    held = choose_driver("torch", nn.Linear(1, 1))
    for build in (choose_driver, lambda driver, processes: Evaluator(driver=driver, processes=processes)):
        with pytest.raises(CallerError, match="processes=2 is for a driver that is built here, by its name"):
            build(held, processes=2)
    with pytest.raises(CallerError, match="processes=2"):
        Trainer(nn.Linear(1, 1), held, [1], [], processes=2)
    with pytest.raises(CallerError, match="processes=2, but driver='torch' trains in one"):
        Evaluator(nn.Linear(1, 1), processes=2)


# -- the environment ---------------------------------------------------------------------------------------


def test_a_launch_is_what_the_environment_says() -> None:
    """K12, C4, K10, D5."""
    assert launch_of({}) is None
    assert launch_of({"RANK": "0", "WORLD_SIZE": "1"}) is None
    assert [rank_of({}), rank_of({"RANK": ""}), rank_of({"RANK": "3"})] == [0, 0, 3]
    assert [local_rank_of({}), local_rank_of({"LOCAL_RANK": "2"})] == [0, 2]
    assert [world_size_of({}), world_size_of({"WORLD_SIZE": "2"})] == [1, 2]
    held = launch_of({**LAUNCH, **MEETING})
    assert held == Launch(rank=1, world_size=4, local_rank=1, local_world_size=2, ours=False)
    alone = launch_of({**MEETING, "RANK": "3", "WORLD_SIZE": "4"})
    assert alone == Launch(rank=3, world_size=4, local_rank=0, local_world_size=1, ours=False)


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"WORLD_SIZE": "2", "RANK": "0"}, "WORLD_SIZE=2: .* but MASTER_ADDR, MASTER_PORT are not set"),
        ({"WORLD_SIZE": "two"}, "WORLD_SIZE='two': it must be the number of processes, from 1"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE='0': it must be the number of processes, from 1"),
        ({**MEETING, "WORLD_SIZE": "2", "RANK": "first"}, "RANK='first': it must be the number of the process, from 0"),
        ({**LAUNCH, **MEETING, "LOCAL_RANK": "-1"}, "LOCAL_RANK='-1': it must be the number of the process on its mac"),
    ],
)
def test_an_environment_that_makes_no_sense_is_refused_with_what_it_says(environ: dict[str, str], said: str) -> None:
    """D5."""
    with pytest.raises(CallerError, match=said):
        launch_of(environ)


def test_before_a_trainer_the_environment_says_which_rank_this_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """D10, D11, D14."""
    for name in (*LAUNCH, *MEETING):
        monkeypatch.delenv(name, raising=False)
    assert [rank(), local_rank(), world_size(), is_rank_zero()] == [0, 0, 1, True]
    assert rank_zero_call(lambda: all_gather(4))() == [4]
    assert broadcast_object("word") == "word"
    launched_as(monkeypatch)
    assert [rank(), local_rank(), world_size(), is_rank_zero()] == [1, 1, 4, False]
    assert rank_zero_call(lambda: 1)() is None
    assert seed_everything(3) == torch.initial_seed() == 4
    with pytest.raises(CallerError, match="4 processes were launched, but they haven't joined yet"):
        all_gather(1)
    with pytest.raises(CallerError, match="seed must be an integer from 0 to"):
        seed_everything(-1)


# -- output ------------------------------------------------------------------------------------------------


def ends(output: Any, local_ranks: Sequence[int] = (0, 1), first: int = 0) -> list[tuple[str, str]]:
    """Where the output of ranks goes, of a machine whose first rank is `first`."""
    made = OutputOfOthers(output).reify({k: {"RANK": str(first + k)} for k in local_ranks})
    return [(made.stdouts[k], made.stderrs[k]) for k in local_ranks]


def test_the_output_of_others_goes_where_it_was_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """D7, B30: each rank has its own number in its files."""
    monkeypatch.chdir(tmp_path)
    here = ("", "")
    assert ends("all") == [here, here]
    assert ends("only_error") == [here, (os.devnull, "")]
    assert ends("ignore") == [here, (os.devnull, os.devnull)]
    folder = tmp_path / "logs"
    mine = [(str(folder / f"{k}_std.log"), str(folder / f"{k}_err.log")) for k in range(4)]
    assert ends("logs") == [here, mine[1]]
    assert ends("logs", first=2) == [mine[2], mine[3]]
    assert folder.is_dir()


@pytest.mark.parametrize("output", ["", " ", None, 3])
def test_an_output_that_is_no_place_is_refused(output: Any) -> None:
    """D7."""
    with pytest.raises(CallerError, match="output_from_new_proc must be 'all', 'only_error', 'ignore' or a folder"):
        OutputOfOthers(output)


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """D7."""
    (tmp_path / "file").touch()
    with pytest.raises(CallerError, match="file can't be made a folder"):
        OutputOfOthers(str(tmp_path / "file"))


def test_places_are_values() -> None:
    assert places_of("cpu", 2) == Places(device="cpu", devices=None, processes=2)
