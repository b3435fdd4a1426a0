"""Real processes that get real signals while they stand still in a known place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest

from tachograph.drivers import StubDriver
from tachograph.engine import Engine, Events, Journal
from tachograph.engine.snapshots import catalogue
from tachograph.states import Event, Failed, Machine, Row, Stopped
from tachograph.states.errors import CallerError
from tests.jobs import signal_job, torch_signal_job
from tests.jobs.forking import Server
from tests.toys import equal, sides, stub, transitions

STATUS = {"SIGTERM": 143, "SIGUSR1": 128 + signal.SIGUSR1, "SIGINT": -signal.SIGINT}
"""How a process ends by each signal; Python ends by SIGINT itself after a KeyboardInterrupt, and shells say 130."""
SIGNALS = list(STATUS)
STATES = ["sanity_check", "epoch_begin", "fetch", "step", "validate", "epoch_end"]
PLACES = [*signal_job.METHODS, *signal_job.POINTS]
AFTER_THE_END = ("the last transition", "the clean-up")


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Runs `signal_job` in fresh processes."""
    server = Server(signal_job.__name__, tmp_path_factory.mktemp("jobs"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run that no signal struck."""
    trainer = signal_job.build(tmp_path_factory.mktemp("straight") / "run")
    trainer.run()
    return trainer


def expect_the_straight_run(run_dir: Path, straight: Any) -> None:
    """Resume, and hold the end against the straight run's."""
    trainer: Any = signal_job.build(run_dir)
    assert trainer.run(resume_from="auto").state == "done"
    assert trainer.journal.chain == straight.journal.chain
    assert trainer.driver.weight == straight.driver.weight
    assert dict(trainer.state) == dict(straight.state)
    assert trainer.listeners.state_dict(trainer) == straight.listeners.state_dict(straight)
    assert sides(run_dir, "diverged") == []


def expect_told(run_dir: Path, name: str) -> int:
    """Hold the last record against the signal; return its number."""
    last = Journal(run_dir).last
    assert last is not None
    if name == "SIGINT":
        assert (last.event, last.dest, last.data["kind"]) == ("Failed", "exception", "KeyboardInterrupt")
    else:
        assert (last.event, last.dest, last.data) == ("Stopped", "done", {"reason": name})
    return last.seq


# -- one signal --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("place", [p for p in PLACES if p not in (*AFTER_THE_END, "the reading of a snapshot")])
def test_a_signal_is_heeded_at_the_next_transition_with_one_snapshot_and_its_status(
    jobs: Server, run_dir: Path, straight: Any, place: str, name: str
) -> None:
    """R11, R25: also in the middle of a validation, which is begun anew."""
    ended = jobs.start(run_dir, place).stands().strike(name).ends()
    assert (ended.status, ended.out) == (STATUS[name], ""), ended.error
    assert ("KeyboardInterrupt" in ended.error) == (name == "SIGINT")
    seq = expect_told(run_dir, name)
    saved = sides(run_dir, "saved")
    if place == "the start":
        assert (seq, saved) == (1, [])
    else:
        assert (saved[-1]["at"], saved[-1]["exact"]) == (seq - 1, True)
        assert place == "a snapshot" or len(saved) == 1
    assert len(catalogue(run_dir)[0]) == len(saved)
    assert len(list((run_dir / "snapshots").glob("*"))) == len(saved)
    expect_the_straight_run(run_dir, straight)


@pytest.mark.parametrize("state", STATES)
def test_a_signal_that_comes_where_a_state_is_entered_finds_it_left_by_the_stop(
    jobs: Server, run_dir: Path, straight: Any, state: str
) -> None:
    """R11: in any state, nothing of its work is done."""
    ended = jobs.start(run_dir, state).stands().strike("SIGTERM").ends()
    assert (ended.status, ended.out) == (143, ""), ended.error
    assert transitions(run_dir)[-1] == f"{state} --Stopped--> done"
    expect_the_straight_run(run_dir, straight)


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("place", AFTER_THE_END)
def test_a_signal_that_comes_when_the_run_has_just_ended_is_not_lost(
    jobs: Server, run_dir: Path, straight: Any, place: str, name: str
) -> None:
    """R11, R25: the run is done, and the script doesn't go on."""
    ended = jobs.start(run_dir, place).stands().strike(name).ends()
    assert (ended.status, ended.out) == (STATUS[name], ""), ended.error
    assert transitions(run_dir)[-1] == "epoch_end --EpochEnded--> done"
    assert Journal(run_dir).chain == straight.journal.chain


@pytest.mark.parametrize("name", SIGNALS)
def test_a_signal_that_comes_while_a_snapshot_is_read_leaves_the_run_as_it_was(
    jobs: Server, run_dir: Path, straight: Any, name: str
) -> None:
    """R11: no other snapshot is taken, since this one says it all."""
    jobs.start(run_dir, "a step").stands().strike("SIGTERM").ends()
    ended = jobs.start(run_dir, "the reading of a snapshot").stands().strike(name).ends()
    assert (ended.status, ended.out) == (STATUS[name], ""), ended.error
    expect_told(run_dir, name)
    assert len(catalogue(run_dir)[0]) == 1
    expect_the_straight_run(run_dir, straight)


def test_a_shell_sees_130_after_ctrl_c(run_dir: Path) -> None:
    """R25: Ctrl-C reaches the shell as well, which goes on here to tell the status."""
    script = f"trap : INT; {sys.executable} {signal_job.__file__} {run_dir} 'a step'; echo status $?"
    shell = subprocess.Popen(["sh", "-c", script], stdin=-1, stdout=-1, stderr=-1, text=True, start_new_session=True)
    assert shell.stdout is not None
    assert shell.stdout.readline() == "here\n"
    os.killpg(shell.pid, signal.SIGINT)
    assert shell.communicate(timeout=60)[0] == "status 130\n"


# -- a second one ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("place", ["a step", "a validation", "a snapshot", "a listener"])
def test_a_second_signal_acts_at_once(jobs: Server, run_dir: Path, straight: Any, place: str, name: str) -> None:
    """R11: nothing is waited for, and what was committed stays."""
    job = jobs.start(run_dir, place, twice=True, snapshot_every=1).stands().strike(name).let_go().stands()
    ended = job.strike(name).falls()
    assert (ended.status, ended.out) == (-getattr(signal, name), "")
    assert transitions(run_dir)[-1].endswith("exception") == (name == "SIGINT")
    expect_the_straight_run(run_dir, straight)


# -- workers -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def torch_jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Runs `torch_signal_job` in fresh processes."""
    server = Server(torch_signal_job.__name__, tmp_path_factory.mktemp("jobs"))
    yield server
    server.close()


@pytest.fixture(scope="module")
def torch_straight(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The run with workers that no signal struck."""
    trainer = torch_signal_job.build(tmp_path_factory.mktemp("straight") / "run")
    trainer.run(num_eval_sanity_batch=0)
    return trainer


def expect_the_bits(run_dir: Path, straight: Any) -> None:
    trainer: Any = torch_signal_job.build(run_dir)
    assert trainer.run(num_eval_sanity_batch=0, resume_from="auto").state == "done"
    assert trainer.journal.chain == straight.journal.chain
    assert equal([*trainer.driver.model.parameters()], [*straight.driver.model.parameters()])


@pytest.mark.parametrize(
    ("place", "name"), [("a fetch", name) for name in SIGNALS] + [("a step", "SIGTERM"), ("a validation", "SIGTERM")]
)
def test_workers_that_get_the_signal_too_go_on_until_the_run_ends_them(
    torch_jobs: Server, run_dir: Path, torch_straight: Any, place: str, name: str
) -> None:
    """R11, R25: Ctrl-C in a terminal, or a scheduler that tells all processes. Only the run has anything to say."""
    ended = torch_jobs.start(run_dir, place).stands().strike(name, group=True).ends()
    assert (ended.status, ended.out, ended.left) == (STATUS[name], "", False), ended.error
    assert ended.error.count("Traceback") == (name == "SIGINT")
    assert ended.error.strip().startswith("Traceback") == (name == "SIGINT")
    seq = expect_told(run_dir, name)
    assert [(s["at"], s["exact"]) for s in sides(run_dir, "saved")] == [(seq - 1, True)]
    expect_the_bits(run_dir, torch_straight)


@pytest.mark.sweep
def test_spawned_workers_go_on_too(torch_jobs: Server, run_dir: Path, torch_straight: Any) -> None:
    """R11: they inherit no handlers."""
    job = torch_jobs.start(run_dir, "a step", context="spawn").stands().strike("SIGTERM", group=True)
    ended = job.ends()
    assert (ended.status, ended.out, ended.error) == (STATUS["SIGTERM"], "", "")
    expect_the_bits(run_dir, torch_straight)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_second_signal_ends_workers_too(torch_jobs: Server, run_dir: Path, torch_straight: Any, name: str) -> None:
    """R11: and what was committed stays."""
    job = torch_jobs.start(run_dir, "a step, twice").stands().strike(name, group=True).let_go().stands()
    ended = job.strike(name, group=True).falls()
    assert ended.status == -getattr(signal, name), ended.error
    expect_the_bits(run_dir, torch_straight)


# -- handlers ----------------------------------------------------------------------------------------------


def handlers() -> list[Any]:
    return [signal.getsignal(getattr(signal, name)) for name in SIGNALS]


def test_the_handlers_are_put_back_after_a_run_and_after_an_error_and_at_a_second_run() -> None:
    """R11."""
    before, during = handlers(), []
    driver = StubDriver(on={"train_step": lambda driver: during.append(handlers())})
    trainer = stub([1], driver, n_epochs=1)
    trainer.on(Events.on_train_epoch_end(once=2), lambda trainer: throw(ValueError("the second time")))
    trainer.run()
    assert handlers() == before
    trainer.n_epochs = 2
    with pytest.raises(ValueError, match="the second time"):
        trainer.run()
    assert handlers() == before
    assert len(during) == 2
    assert not {id(handler) for held in during for handler in held} & set(map(id, before))


def throw(error: BaseException) -> None:
    raise error


def test_a_run_inside_a_run_leaves_the_outer_one_s_handlers_in_place() -> None:
    """R11."""
    seen: list[Any] = []
    outer = stub([1, 2], n_epochs=1)
    outer.on(Events.on_train_batch_begin, lambda trainer, batch, ids: seen.append(handlers()))
    outer.on(Events.on_train_batch_end, lambda trainer: stub([3], n_epochs=1).run())
    before = handlers()
    outer.run()
    assert seen[0] == seen[1] != before
    assert handlers() == before


def test_a_handler_of_the_user_s_own_is_left_alone() -> None:
    """R11."""

    def own(number: int, frame: Any) -> None: ...

    seen: list[Any] = []
    before = signal.signal(signal.SIGUSR1, own)
    try:
        trainer = stub([1])
        trainer.on(Events.on_train_begin, lambda trainer: seen.extend(handlers()))
        trainer.run()
        assert signal.getsignal(signal.SIGUSR1) is own
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert seen[SIGNALS.index("SIGUSR1")] is own
    assert own not in (seen[SIGNALS.index("SIGTERM")], seen[SIGNALS.index("SIGINT")])


def test_a_handler_of_the_user_s_own_may_ask_for_the_same(jobs: Server, run_dir: Path, straight: Any) -> None:
    """R11: `trainer.interrupt(number)`."""
    ended = jobs.start(run_dir, "a step", own=True).stands().strike("SIGTERM").ends()
    assert (ended.status, ended.out) == (143, ""), ended.error
    assert sides(run_dir, "saved")[-1]["at"] == expect_told(run_dir, "SIGTERM") - 1
    expect_the_straight_run(run_dir, straight)


def test_outside_the_main_thread_signals_do_what_they_always_did(jobs: Server, run_dir: Path, straight: Any) -> None:
    """R11: only the main thread may have handlers."""
    ended = jobs.start(run_dir, "a step", thread=True).stands().strike("SIGTERM").falls()
    assert (ended.status, ended.out) == (-signal.SIGTERM, "")
    assert transitions(run_dir)[-1] == "fetch --Fetched--> step"
    expect_the_straight_run(run_dir, straight)


def test_a_trainer_may_run_in_a_thread_where_no_signals_can_be_caught() -> None:
    trainer = stub([1, 2])
    thread = threading.Thread(target=trainer.run)
    thread.start()
    thread.join()
    assert trainer.trainer_state.state == "done"


def test_a_run_in_a_thread_is_interrupted_from_another_one(run_dir: Path) -> None:
    """R11: it is the caller's to hand signals on."""
    trainer = stub([1, 2], run_dir=run_dir)
    begun, told, status = threading.Event(), threading.Event(), []
    trainer.on(Events.on_train_batch_end(once=1), lambda trainer: (begun.set(), told.wait()))

    def run() -> None:
        try:
            trainer.run()
        except SystemExit as ended:
            status.append(ended.code)

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    trainer.interrupt(signal.SIGTERM)
    told.set()
    thread.join()
    assert status == [143]
    assert transitions(run_dir)[-1] == "fetch --Stopped--> done"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_run_may_be_interrupted_before_it_begins_and_the_next_one_is_not(run_dir: Path, number: int) -> None:
    """R11: a signal that comes while data are prepared isn't lost; any number may be told."""
    trainer = stub([1, 2], run_dir=run_dir)
    trainer.interrupt(number)
    with pytest.raises((SystemExit, KeyboardInterrupt)) as ended:
        trainer.run()
    if number == signal.SIGINT:
        assert ended.type is KeyboardInterrupt
    else:
        assert ended.value.code == 128 + number  # type: ignore[attr-defined]
    assert [t.split(" ")[0] for t in transitions(run_dir)] == ["init"]
    assert trainer.driver.seen == []  # type: ignore[union-attr]
    assert not trainer.interrupted()
    assert trainer.run().state == "done"
    assert trainer.driver.seen == [1, 2, 1, 2]  # type: ignore[union-attr]


def test_a_number_that_is_no_signal_s_is_refused() -> None:
    trainer = stub([1])
    with pytest.raises(ValueError, match="999"):
        trainer.interrupt(999)
    assert not trainer.interrupted()


# -- Ctrl-C where somebody sits ----------------------------------------------------------------------------


def test_ctrl_c_returns_the_state_where_that_is_asked_for(jobs: Server, run_dir: Path, straight: Any) -> None:
    """A2.R10, R25: the script goes on, and is told."""
    ended = jobs.start(run_dir, "a step", catch=True).stands().strike("SIGINT").ends()
    assert (ended.status, ended.out) == (0, "the script goes on: exception KeyboardInterrupt\n"), ended.error
    expect_told(run_dir, "SIGINT")
    expect_the_straight_run(run_dir, straight)


@pytest.mark.parametrize("prompt", ["ps1", "ipykernel"])
@pytest.mark.parametrize("asked", [None, False])
def test_ctrl_c_returns_the_state_in_a_notebook_unless_that_is_unwanted(
    monkeypatch: pytest.MonkeyPatch, run_dir: Path, prompt: str, asked: bool | None
) -> None:
    """A2.R10, R25."""
    if prompt == "ps1":
        monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    else:
        monkeypatch.setitem(sys.modules, "ipykernel", sys)
    trainer = stub([1, 2], StubDriver(on={"train_step": ctrl_c_at(2)}), run_dir=run_dir)
    if asked is None:
        assert trainer.run().state == "exception"
    else:
        with pytest.raises(KeyboardInterrupt):
            trainer.run(catch_KeyboardInterrupt=asked)
    assert isinstance(trainer.exception, KeyboardInterrupt)
    assert trainer.run(catch_KeyboardInterrupt=asked).state == "done"  # the cell is run again
    assert trainer.driver.seen == [1, 2, 1, 2]  # type: ignore[union-attr]
    assert trainer.exception is None


def ctrl_c_at(step: int) -> Any:
    def strike(driver: StubDriver) -> None:
        if driver.calls.count("train_step") == step:
            os.kill(os.getpid(), signal.SIGINT)

    return strike


# -- machines of a user's own ------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Learned(Event):
    pass


@attrs.frozen(kw_only=True)
class Where:
    state: str = "learn"
    seq: int = 0


def engine(run_dir: Path, rows: Sequence[Row], work: Any, **settings: Any) -> Engine:
    table = [Row("learn", Learned, "learn"), Row("*", Failed, "exception"), *rows]
    machine = Machine(table, initial="learn", final={row.dest for row in table} - {"learn"})
    return Engine(machine, {"learn": work}, state=Where(), driver=StubDriver(), run_dir=run_dir, **settings)


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_a_signal_ends_a_machine_that_can_only_fail(run_dir: Path, name: str) -> None:
    """R11: it has no row for a stop: the record says that it failed, and the status is the signal's."""
    requeued: list[str] = []

    def work(state: Where) -> Event:
        assert state.seq < 3, "the signal was passed over"
        if state.seq == 1:
            os.kill(os.getpid(), getattr(signal, name))
        return Learned()

    with pytest.raises(SystemExit) as ended, slurm():
        engine(run_dir, [], work, requeue=requeued.append).run()
    assert ended.value.code == STATUS[name]
    assert transitions(run_dir)[-1] == "learn --Failed--> exception"
    assert sides(run_dir, "saved")[0]["at"] == 2
    assert requeued == (["17"] if name == "SIGUSR1" else [])


def test_long_work_of_a_user_s_own_state_may_leave_off(run_dir: Path) -> None:
    """R11: `interrupted` and `give_up`."""
    done: list[str] = []

    def work(state: Where) -> Event:
        if state.seq < 2:
            return Learned()
        for part in range(5):
            if learner.interrupted():
                return learner.give_up()
            done.append(f"part {part}")
            os.kill(os.getpid(), signal.SIGTERM)
        return Learned()

    learner = engine(run_dir, [Row("*", Stopped, "done")], work)
    with pytest.raises(SystemExit) as ended:
        learner.run()
    assert (ended.value.code, done) == (143, ["part 0"])
    assert transitions(run_dir)[-1] == "learn --Stopped--> done"
    assert [s["at"] for s in sides(run_dir, "saved")] == [2]


# -- Slurm -------------------------------------------------------------------------------------------------


@contextmanager
def slurm(**environ: str) -> Iterator[None]:
    """Be a Slurm job."""
    with pytest.MonkeyPatch.context() as patch:
        for key, value in {"SLURM_JOB_ID": "17", **environ}.items():
            patch.setenv(key, value)
        yield


@pytest.fixture
def requeuer(tmp_path: Path) -> tuple[str, Path]:
    """A command that notes what it was called with and which snapshots it saw, and its notes."""
    script, notes = tmp_path / "requeue", tmp_path / "notes"
    script.write_text(f'#!/bin/sh\necho "$@" $(ls {tmp_path}/run/snapshots/*/COMMIT) >> {notes}\n')
    script.chmod(0o755)
    return str(script), notes


def test_a_job_that_runs_out_of_its_time_is_requeued_when_its_snapshot_is_whole(
    jobs: Server, run_dir: Path, straight: Any, requeuer: tuple[str, Path]
) -> None:
    """R11: SIGUSR1 is what `sbatch --signal` sends."""
    command, notes = requeuer
    environ = {"SLURM_JOB_ID": "17"}
    ended = jobs.start(run_dir, "a step", environ=environ, requeue=[command, "now"]).stands().strike("SIGUSR1").ends()
    assert (ended.status, ended.out, ended.error) == (138, "", "")
    (snapshot,) = catalogue(run_dir)[0]
    assert notes.read_text() == f"now 17 {snapshot.path}/COMMIT\n"
    expect_the_straight_run(run_dir, straight)


@pytest.mark.parametrize(
    ("name", "environ", "called"),
    [
        ("SIGUSR1", {}, None),
        ("SIGUSR1", {"SLURM_JOB_ID": ""}, None),
        ("SIGUSR1", {"SLURM_JOB_ID": "18", "SLURM_ARRAY_JOB_ID": "17", "SLURM_ARRAY_TASK_ID": "3"}, "17_3"),
        ("SIGTERM", {"SLURM_JOB_ID": "17"}, None),
        ("SIGINT", {"SLURM_JOB_ID": "17"}, None),
    ],
)
def test_only_a_slurm_job_is_requeued_and_only_for_its_time(
    jobs: Server, run_dir: Path, requeuer: tuple[str, Path], name: str, environ: dict[str, str], called: str | None
) -> None:
    """R11: SIGTERM is how `scancel` ends a job."""
    command, notes = requeuer
    ended = jobs.start(run_dir, "a step", environ=environ, requeue=[command]).stands().strike(name).ends()
    assert ended.status == STATUS[name]
    assert (notes.read_text().split()[0] if notes.exists() else None) == called


def test_a_job_that_fails_or_ends_is_not_requeued(run_dir: Path) -> None:
    requeued: list[str] = []
    with slurm():
        trainer = stub([1, 2], StubDriver(on={"train_step": throw_at(2)}), run_dir=run_dir, requeue=requeued.append)
        trainer.on(Events.on_train_batch_end(once=1), lambda trainer: os.kill(os.getpid(), signal.SIGUSR1))
        with pytest.raises(SystemExit) as ended:
            trainer.run()
        assert ended.value.code == 138
        assert requeued == ["17"]
        with pytest.raises(ValueError, match="a step"):
            trainer.run()
        trainer.run()
    assert (trainer.trainer_state.state, requeued) == ("done", ["17"])


def throw_at(step: int) -> Any:
    def strike(driver: StubDriver) -> None:
        if driver.calls.count("train_step") == step:
            raise ValueError("a step")

    return strike


@pytest.mark.parametrize(
    ("requeue", "said"),
    [
        (["false"], "wasn't requeued by 'false 17': it ended with status 1"),
        (["no-such-command"], "wasn't requeued by 'no-such-command 17': .*No such file"),
        (["sh", "-c", "exec sleep 60"], "wasn't requeued by 'sh -c exec sleep 60 17': .*timed out"),
        (lambda job: throw(OSError("no Slurm here")), "wasn't requeued by .*lambda.*: no Slurm here"),
        (True, "wasn't requeued by 'scontrol requeue 17': "),
    ],
)
def test_a_requeue_that_fails_is_told_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch, run_dir: Path, requeue: Any, said: str
) -> None:
    monkeypatch.setattr("tachograph.engine.requeue.PATIENCE", 0.1)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    with slurm():
        trainer = stub([1, 2], StubDriver(on={"train_step": usr1}), run_dir=run_dir, requeue=requeue)
    with pytest.warns(UserWarning, match=said), pytest.raises(SystemExit) as ended:
        trainer.run()
    assert ended.value.code == 138
    assert transitions(run_dir)[-1] == "fetch --Stopped--> done"


def usr1(driver: StubDriver) -> None:
    os.kill(os.getpid(), signal.SIGUSR1)


@pytest.mark.parametrize("requeue", ["scontrol requeue", [], [1], ["scontrol", 2], 1, {"command": "scontrol"}])
def test_a_requeue_that_is_neither_a_command_nor_a_function_is_refused(requeue: Any) -> None:
    with pytest.raises(CallerError, match="requeue must be True, a command as a list of strings, or a function"):
        stub([1], requeue=requeue)
