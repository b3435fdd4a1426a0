"""The assertions that users put in their own tests: what is sound passes, and each planted fault is found and named."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tachograph.drivers import storage
from tachograph.drivers.comparing import unequal
from tachograph.engine import Callback, Journal, Trainer
from tachograph.engine.testing import assert_deterministic, assert_resumes_exactly
from tachograph.states import CallerError
from tests.jobs import builders
from tests.jobs.builders import trainer

pytest_plugins = ["pytester"]


def failure(assertion: Callable[..., Any], *args: Any, **how: Any) -> str:
    with pytest.raises(AssertionError) as found:
        assertion(*args, **how)
    return str(found.value)


# -- what is sound -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [builders.sound, builders.without_parameters])
def test_a_sound_builder_passes_with_or_without_parameters(build: Any, tmp_path: Path) -> None:
    assert_deterministic(build, 12, runs=3, folder=tmp_path)
    assert_resumes_exactly(build, 12, folder=tmp_path)
    assert not list(tmp_path.iterdir())  # the runs are gone, and the folder that was given is not


def test_the_cuts_are_of_every_kind_that_the_run_has(tmp_path: Path) -> None:
    """R01 R05."""
    cuts = assert_resumes_exactly(builders.sound, 20, folder=tmp_path)
    said = "\n".join(cut.where for cut in cuts)
    for state in ("sanity_check", "epoch_begin", "fetch", "step", "validate", "epoch_end"):
        assert f"in state '{state}'" in said
    assert "in an open window" in said
    assert "after Validated, in state 'fetch'" in said
    assert len({cut.seq for cut in cuts}) == len(cuts) >= 10


def test_cuts_may_be_chosen(tmp_path: Path) -> None:
    assert [cut.seq for cut in assert_resumes_exactly(builders.sound, 6, at=[9, 4], folder=tmp_path)] == [4, 9]
    with pytest.raises(CallerError, match=r"can't be cut after transition 900: it has 1 to \d+"):
        assert_resumes_exactly(builders.sound, 6, at=900, folder=tmp_path)


def test_the_callers_generators_are_left_as_they_were(tmp_path: Path) -> None:
    before = torch.get_rng_state()
    assert_deterministic(builders.sound, 3, folder=tmp_path)
    assert_resumes_exactly(builders.sound, 3, at=2, folder=tmp_path)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_trainer_without_a_seed_passes_if_its_builder_seeds_torch(tmp_path: Path) -> None:
    assert_deterministic(lambda **settings: trainer({**settings, "seed": None}), 6, folder=tmp_path)


# -- planted faults ----------------------------------------------------------------------------------------

FOUND = {
    builders.unseeded_model: (r"before the first step these differ already: model/body.0.weight", "torch.manual_seed"),
    builders.unseeded_run: (r"the trainer has no seed of its own", r"Trainer\(seed="),
    builders.unseeded_data: (r"the batch fetched in transition \d+ holds other values", "the dataset"),
    builders.rough_model: (r"the loss differs though samples|data\.(results\.)?loss", r"deterministic=True"),
}
LOST = {
    builders.aging_data: (r"data/train\.dataset\.read was \d+ where the run was cut, and is 0", "sample's index"),
    builders.forgetful_callback: (r"callbacks/Forgetful\.updates was \d+ .* and is 0", r"state_dict\(\)"),
    builders.counting_model: (r"model\.calls was \d+ where the run was cut, and is 0", "register_buffer"),
}


@pytest.mark.parametrize(("build", "said"), FOUND.items(), ids=lambda v: getattr(v, "__name__", ""))
def test_a_run_that_isnt_deterministic_fails_and_the_cause_is_named(build: Any, said: Any, tmp_path: Path) -> None:
    """R38."""
    for text in (failure(check, build, 8, folder=tmp_path) for check in (assert_deterministic, assert_resumes_exactly)):
        assert re.search(r"transition \d+ differs: |the ends differ in ", text)
        assert all(re.search(pattern, text, re.IGNORECASE) for pattern in said), text


@pytest.mark.parametrize(("build", "said"), LOST.items(), ids=lambda v: getattr(v, "__name__", ""))
def test_what_no_snapshot_holds_is_named_where_a_resume_misses_it(build: Any, said: Any, tmp_path: Path) -> None:
    assert_deterministic(build, 12, folder=tmp_path)
    text = failure(assert_resumes_exactly, build, 12, folder=tmp_path)
    assert re.search(r"that is cut after transition \d+ \(after \w+, in state '\w+', epoch \d, batch \d", text)
    assert re.search(r"transition \d+ differs: data\.\w+ is ", text)
    assert all(re.search(pattern, text) for pattern in said), text
    assert "listeners/" not in text  # what watches the runs isn't taken for the user's


def test_what_a_snapshot_does_hold_isnt_missed(tmp_path: Path) -> None:
    class Kept(builders.Forgetful):
        def state_dict(self) -> dict[str, Any]:
            return {"updates": self.updates}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.updates = state["updates"]

    assert_resumes_exactly(lambda **settings: trainer(settings, callbacks=Kept()), 12, folder=tmp_path)


def test_a_function_that_counts_for_itself_is_named(tmp_path: Path) -> None:
    def build(**settings: Any) -> Trainer:
        steps = 0

        def step(trainer: Trainer, batch: Any) -> None:
            nonlocal steps
            steps += 1
            trainer.backward({"loss": trainer.train_step(batch)["loss"] * (1 + steps / 100)})
            trainer.step()
            trainer.zero_grad()

        return trainer(settings, batch_step_fn=step)

    text = failure(assert_resumes_exactly, build, 12, folder=tmp_path)
    assert re.search(r"functions/step\.steps was \d+ where the run was cut, and is 0", text)
    assert "trainer.state" in text


def test_a_run_that_cant_be_gone_on_with_is_a_failure_that_names_the_cut(tmp_path: Path) -> None:
    class Shy(Callback):
        def __init__(self) -> None:
            self.seen = 0

        def on_train_batch_end(self, trainer: Trainer) -> None:
            self.seen += 1

        def state_dict(self) -> dict[str, Any]:
            return {"seen": self.seen} if self.seen else {}  # so a fresh one seems to have no state

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise KeyError("count")

    text = failure(assert_resumes_exactly, lambda **s: trainer(s, callbacks=Shy()), 6, at=12, folder=tmp_path)
    assert re.match(
        r"a run of <lambda>\(\) that is cut after transition 12 \(.*\) can't be gone on with: KeyError", text
    )


def test_runs_that_failed_are_kept(tmp_path: Path) -> None:
    text = failure(assert_deterministic, builders.unseeded_model, 3, folder=tmp_path)
    a, b = re.findall(r"tachograph diff (\S+) (\S+)", text)[0]
    assert Journal(a).chain != Journal(b).chain
    assert Path(a).parent.parent == tmp_path


def test_an_entry_may_be_left_out(tmp_path: Path) -> None:
    from time import perf_counter_ns

    def build(**settings: Any) -> Trainer:
        made = trainer(settings)
        made.state["at"] = perf_counter_ns()
        return made

    text = failure(assert_deterministic, build, 3, folder=tmp_path)
    assert "extra/user/at: " in text
    assert_deterministic(build, 3, ignore=["extra/user/at"], folder=tmp_path)


# -- in processes ------------------------------------------------------------------------------------------


def test_in_processes_of_their_own_a_hash_seed_is_found_that_one_process_cant_show(tmp_path: Path) -> None:
    assert_deterministic(builders.hashed, 2, folder=tmp_path)
    assert "differs: data.loss" in failure(assert_deterministic, builders.hashed, 2, processes=True, folder=tmp_path)


def test_killed_processes_are_gone_on_with_in_new_ones(tmp_path: Path) -> None:
    """R01 R02."""
    cuts = assert_resumes_exactly(builders.sound, 9, at=[21], kill=True, folder=tmp_path)
    assert [cut.seq for cut in cuts] == [21]


def test_a_modules_global_is_found_by_a_real_kill(tmp_path: Path) -> None:
    text = failure(assert_resumes_exactly, builders.globally, 6, at=8, kill=True, folder=tmp_path)
    assert "that is cut after transition 8" in text
    assert re.search(r"transition \d+ differs: data\.loss", text)


@pytest.mark.parametrize("way", [{"kill": True}, {"at": 3, "kill": True}])
def test_a_builder_that_no_other_process_finds_is_refused(way: Any, tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="at the top of a module"):
        assert_resumes_exactly(lambda: builders.sound(), 3, folder=tmp_path, **way)


# -- builders that can't be used ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: 3, "returned int: it must return a Trainer"),
        (lambda: trainer({"fast_dev_run": True}), "fast_dev_run"),
        (7, "build must be a function"),
    ],
)
def test_what_cant_be_used_is_refused_in_a_sentence(build: Any, said: str, tmp_path: Path) -> None:
    for assertion in (assert_deterministic, assert_resumes_exactly):
        with pytest.raises(CallerError, match=said):
            assertion(build, 3, folder=tmp_path)


def test_a_trainer_that_was_run_is_refused(tmp_path: Path) -> None:
    def build() -> Trainer:
        made = trainer({"n_batches": 1})
        made.run()
        return made

    with pytest.raises(CallerError, match="was run already"):
        assert_deterministic(build, 3, folder=tmp_path)


@pytest.mark.parametrize("wrong", [0, -1, 2.5, True])
def test_a_number_of_steps_that_is_none_is_refused(wrong: Any, tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="steps must be"):
        assert_deterministic(builders.sound, wrong, folder=tmp_path)


# -- how snapshots are compared ----------------------------------------------------------------------------


def compared(a: Any, b: Any, folder: Path) -> list[str]:
    for name, value in (("a", a), ("b", b)):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "rank-0.pt").unlink(missing_ok=True)
        storage.write({"x": value}, folder / name / "rank-0.pt")
    return [str(entry) for entry in unequal(folder / "a", folder / "b")]


def nan(payload: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(struct.pack("<I", 0x7FC00000 | payload)), dtype=torch.float32).clone()


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        (torch.tensor([0.0]), torch.tensor([-0.0]), "0.0 and -0.0"),
        (nan(0), nan(1), "nan and nan"),
        (torch.zeros(2), torch.zeros(2, dtype=torch.bfloat16), "bfloat16"),
        (torch.zeros(2, 3), torch.zeros(3, 2), "(2, 3) and"),
        (torch.arange(6).view(2, 3), torch.tensor([[0, 1, 2], [3, 9, 9]]), "2 of 6 values differ, the first at [1, 1]"),
        ({"n": 1}, {"n": 1, "m": 2}, "only the second has it"),
        ([1, 2], [1, 2, 3], "2 entries and 3"),
        (1, True, "1 and True"),
        (0.0, -0.0, "0.0 and -0.0"),
    ],
)  # fmt: skip
def test_bits_are_compared_and_the_first_place_is_named(a: Any, b: Any, said: str, tmp_path: Path) -> None:
    (found,) = compared(a, b, tmp_path)
    assert said in found


@pytest.mark.parametrize(
    "value", [nan(3), torch.zeros(0, 4), torch.tensor(True), torch.ones(2, 3).T, torch.tensor([1j]), float("nan"), []]
)
def test_equal_bits_are_equal_whatever_they_are(value: Any, tmp_path: Path) -> None:
    assert compared(value, value, tmp_path) == []


# -- the plugin --------------------------------------------------------------------------------------------

USERS = """
import pytest
from tests.jobs import builders

def test_sound(assert_deterministic, assert_resumes_exactly):
    assert_deterministic(builders.sound, 4)
    assert [cut.seq for cut in assert_resumes_exactly(builders.sound, 4, at=5)] == [5]

def test_faulty(assert_resumes_exactly):
    assert_resumes_exactly(builders.counting_model, 4)
"""


def test_the_plugin_gives_both_as_fixtures_and_a_failure_reads_as_one(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_users=USERS)
    found = pytester.inline_run("-q", "-p", "no:cacheprovider")
    passed, _, failed = found.listoutcomes()
    assert ([report.location[2] for report in passed], [report.location[2] for report in failed]) == (
        ["test_sound"],
        ["test_faulty"],
    )
    assert "model.calls was" in failed[0].longreprtext
    assert "testing/" not in failed[0].longreprtext  # the traceback ends in the user's test


def test_the_plugin_costs_pytest_no_import_of_torch() -> None:
    code = (
        "import sys, tachograph.engine.pytest_plugin as p; sys.exit('torch' in sys.modules or 'attrs' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
