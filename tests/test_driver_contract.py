"""The public contract of drivers, held against every driver there is; and drivers with one fault each, all caught."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tachograph.drivers.contract import DriverContract
from tachograph.engine import Diverged
from tachograph.engine.contract import RunContract
from tests.faulty_drivers import IN_HALF_PRECISION, MEASURING_LATE, WITH_TORCH, WITHOUT_TORCH, Faulty
from tests.jobs.contract_job import FP16, LATE, RANKS, StubSubject, TorchSubject
from tests.jobs.ranks import RankForks


class TestStub(StubSubject, DriverContract, RunContract):
    """C7."""


class TestTorch(TorchSubject, DriverContract, RunContract):
    """C7."""


class TestTorchInHalfPrecision(TorchSubject, DriverContract, RunContract):
    options = FP16


class TestTorchThatMeasuresLate(TorchSubject, DriverContract, RunContract):
    """As on an accelerator."""

    options = LATE


@pytest.mark.sweep
class TestTorchInBrainFloats(TorchSubject, DriverContract, RunContract):
    options = {"precision": "bf16"}


# -- many ranks ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def forks() -> Iterator[RankForks]:
    forks = RankForks("tests.jobs.contract_job")
    yield forks
    forks.close()


@pytest.mark.parametrize(
    "subject", [pytest.param(name, marks=pytest.mark.sweep) if "fp16" in name else name for name in RANKS]
)
def test_drivers_of_many_processes_keep_the_contract_in_each_of_them(forks: RankForks, subject: str) -> None:
    """C7. D11."""
    ended = forks.run(2, subject=subject, seconds=300)
    assert [(rank.status, rank.out) for rank in ended] == [(0, "")] * 2, "\n".join(rank.err for rank in ended)


# -- faults --------------------------------------------------------------------------------------------------

CASES: list[tuple[Faulty, type, dict[str, Any]]] = [
    *((faulty, StubSubject, {}) for faulty in WITHOUT_TORCH),
    *((faulty, TorchSubject, {}) for faulty in WITH_TORCH),
    *((faulty, TorchSubject, FP16) for faulty in IN_HALF_PRECISION),
    *((faulty, TorchSubject, LATE) for faulty in MEASURING_LATE),
]


@pytest.mark.parametrize(("faulty", "subject", "options"), CASES, ids=lambda part: getattr(part, "fault", ""))
def test_a_driver_with_a_fault_is_caught(faulty: Faulty, subject: type, options: dict[str, Any]) -> None:
    broken: Any = type("Broken", (subject, DriverContract), {"kind": faulty.kind, "options": options})
    sound: Any = type("Sound", (subject, DriverContract), {"options": options})
    with pytest.raises(AssertionError):
        broken().run(f"test_{faulty.test}")
    sound().run(f"test_{faulty.test}")


WHOLE = [
    ("the gradients of an open window are lost", "a_run_stopped_after_any_kind_of_transition_goes_on_to_the_same_end"),
    ("generators are lost", "a_run_killed_after_any_kind_of_transition_goes_on_to_the_same_end"),
    ("a capture moves training", "a_run_killed_after_any_kind_of_transition_goes_on_to_the_same_end"),
    ("the number of updates is lost", "a_run_stopped_after_any_kind_of_transition_goes_on_to_the_same_end"),
]


@pytest.mark.parametrize(("fault", "test"), WHOLE)
def test_a_fault_is_caught_in_whole_runs_too(fault: str, test: str) -> None:
    (kind,) = [faulty.kind for faulty in WITHOUT_TORCH if faulty.fault == fault]
    broken: Any = type("Broken", (StubSubject, RunContract), {"kind": kind})
    with pytest.raises((AssertionError, Diverged)):
        broken().run(f"test_{test}")


def test_failures_are_returned_by_the_names_of_the_tests() -> None:
    broken: Any = type("Broken", (StubSubject, DriverContract), {"kind": WITHOUT_TORCH[0].kind})
    failed = broken().failures()
    assert str(failed[f"test_{WITHOUT_TORCH[0].test}"]) == "set_optimizers(object()) must raise CallerError"
    assert len(broken().failures(most=1)) == 1


def test_a_subject_without_make_says_so() -> None:
    with pytest.raises(NotImplementedError, match=r"DriverContract must override make\(\)"):
        DriverContract().make()
