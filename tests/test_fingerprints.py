"""Fingerprints: what tensors hold, bit for bit; of updates, beside their transitions; of all that is in a snapshot."""

from __future__ import annotations

import hashlib
import importlib
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tachograph.drivers import StubDriver, fingerprints
from tachograph.drivers.extras import PARTS
from tachograph.engine import Callback, Events, Fingerprints, GradClip, Journal, NanGuard, Trainer, diff, recording
from tachograph.engine.snapshots import catalogue, digest_of_commit
from tachograph.states.errors import CallerError
from tests.toys import Run, sides, stop_at, stub

WORDS = fingerprints.WORDS
BLOCK = 8 * WORDS
ORDER = ("batch", *PARTS)


def of(value: Any) -> str:
    found = fingerprints.of_trees({"value": value})["value"]
    assert found is not None
    return found


# -- the sum -------------------------------------------------------------------------------------------------


def splitmix64(index: int) -> int:
    z = (index + 1) * 0x9E3779B97F4A7C15 % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def as_documented(about: str, raw: bytes) -> str:
    """The fingerprint of a tensor or an array, in whole numbers of Python."""
    total = 0
    for at in range(0, len(raw), 8):
        word = int.from_bytes(raw[at : at + 8].ljust(8, b"\0"), "little")
        block, place = divmod(at // 8, WORDS)
        low, high = splitmix64(place) | 1, splitmix64(WORDS + place) | 1
        total += (word * low + (word >> 32) * high) * (splitmix64((1 << 40) + block) | 1)
    head = about.encode() + (total % 2**64).to_bytes(8, "little")
    return hashlib.blake2b(len(head).to_bytes(8, "little") + head, digest_size=8).hexdigest()


LENGTHS = [0, 1, 3, 7, 8, 9, 64, 1001, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 3 * BLOCK + 13]


@pytest.mark.parametrize("length", LENGTHS)
def test_a_fingerprint_is_what_is_documented(length: int) -> None:
    """R38."""
    raw = np.random.default_rng(length).integers(0, 256, length, dtype=np.uint8)
    told = f"({length},)"
    assert of(torch.from_numpy(raw)) == as_documented(f"tensor torch.uint8 {told} torch.strided", raw.tobytes())
    assert of(raw) == as_documented(f"array |u1 {told}", raw.tobytes())


@pytest.mark.parametrize("length", [n for n in LENGTHS if n])
@pytest.mark.parametrize("offset", [0, 3])
def test_a_device_adds_up_to_the_same(length: int, offset: int) -> None:
    """R38: the operations that an accelerator is given, here on the CPU."""
    raw = torch.randint(0, 256, (length + offset,), dtype=torch.uint8)[offset:]
    there = fingerprints._sum_on_device(raw)
    assert fingerprints._at_host([there, 5]) == [fingerprints._sum_on_host(raw.numpy()), 5]


DTYPES = [
    *(torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2),
    *(torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (3, 0, 2), (3, 5)], ids=str)
def test_values_of_any_kind_have_one(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """R38: half floats, 0 dimensions, no elements, odd numbers of bytes."""
    tensor = torch.randn(shape).to(dtype)
    raw = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    assert of(tensor) == as_documented(f"tensor {dtype} {shape} torch.strided", raw)


bits = st.integers(0, 2**32 - 1)


@given(st.lists(bits, min_size=1, max_size=40), st.data())
def test_one_bit_that_is_flipped_anywhere_shows(values: list[int], data: st.DataObject) -> None:
    """R38."""
    held = np.array(values, dtype=np.uint32)
    other = held.copy()
    at, bit = data.draw(st.integers(0, len(values) - 1)), data.draw(st.integers(0, 31))
    other[at] ^= np.uint32(1 << bit)
    assert of(torch.from_numpy(held)) != of(torch.from_numpy(other))


@given(st.lists(bits, min_size=2, max_size=40), st.data())
def test_two_elements_that_change_places_show(values: list[int], data: st.DataObject) -> None:
    """R38."""
    places = st.integers(0, len(values) - 1)
    i, j = data.draw(places), data.draw(places)
    other = list(values)
    other[i], other[j] = values[j], values[i]
    same = values == other
    assert (of(np.array(values, np.uint32)) == of(np.array(other, np.uint32))) == same


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int8], ids=str)
@pytest.mark.parametrize("width", [1, 2, 4, 8])
@pytest.mark.parametrize("far", [1, WORDS, 2 * WORDS + 3])
def test_runs_of_values_that_differ_in_their_sign_alone_show_when_they_change_places(
    dtype: torch.dtype, width: int, far: int
) -> None:
    """R38: the highest bit of a word is what a weighted sum of whole words can't place."""
    tensor = torch.ones(4 * width * (far + 1), dtype=dtype)
    tensor[:width] = -1
    other = torch.ones_like(tensor)
    other[4 * width * far : 4 * width * far + width] = -1
    assert of(tensor) != of(other)


def nan(bits: int) -> torch.Tensor:
    return torch.tensor([bits], dtype=torch.int32).view(torch.float32)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.ones(4), torch.zeros(4)),
        (torch.zeros(4), torch.zeros(5)),
        (torch.zeros(4), torch.zeros(2, 2)),
        (torch.zeros(0), torch.zeros(0, 3)),
        (torch.zeros(4), torch.zeros(4, dtype=torch.int32)),
        (torch.zeros(4, dtype=torch.float16), torch.zeros(4, dtype=torch.bfloat16)),
        (torch.zeros(3), -torch.zeros(3)),
        (nan(0x7FC00000), nan(0x7FC00001)),
        (torch.eye(2), torch.eye(2).to_sparse()),
        (torch.zeros(2), np.zeros(2, np.float32)),
    ],
    ids=[
        *("ones and zeros", "another length", "another shape", "another emptiness", "another dtype", "half floats"),
        *("zeros of two signs", "NaNs of two payloads", "dense and sparse", "tensor and array"),
    ],
)  # fmt: skip
def test_what_differs_is_told_apart(a: Any, b: Any) -> None:
    """R38."""
    assert of(a) != of(b)


def test_equal_values_have_one_fingerprint_however_they_lie() -> None:
    """R38."""
    whole = torch.randn(6, 4, 5, 7)
    assert of(whole.permute(3, 1, 0, 2)) == of(whole.permute(3, 1, 0, 2).contiguous())
    assert of(whole.to(memory_format=torch.channels_last)) == of(whole)
    assert of(whole[1:, ::2]) == of(whole[1:, ::2].clone())
    assert of(torch.ones(1).expand(9)) == of(torch.ones(9))
    assert of(torch.arange(9, dtype=torch.int8)[1:]) == of(torch.arange(1, 9, dtype=torch.int8))
    numbers = torch.randn(5, dtype=torch.complex64)
    assert of(numbers.conj()) == of(numbers.conj().resolve_conj())
    assert of(numbers.conj().imag) == of(numbers.conj().imag.resolve_neg())
    assert of(nn.Parameter(whole)) == of(whole)
    twice = torch.sparse_coo_tensor([[0, 0]], [1.0, 2.0], (3,))
    assert of(twice) == of(torch.sparse_coo_tensor([[0]], [3.0], (3,)))


def test_the_number_of_threads_makes_no_difference() -> None:
    """R38."""
    large, before = torch.randn(3 * WORDS + 5), torch.get_num_threads()
    try:
        found = set()
        for threads in range(1, 5):
            torch.set_num_threads(threads)
            found.add(of(large))
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ({"x": torch.ones(2), "y": torch.zeros(2)}, {"x": torch.zeros(2), "y": torch.ones(2)}),
        ([torch.ones(2), torch.zeros(2)], [torch.zeros(2), torch.ones(2)]),
        ([torch.ones(2), [torch.zeros(2)]], [[torch.ones(2)], torch.zeros(2)]),
        ({"x": 1}, {"x": 1.0}),
        ("a", b"a"),
        (SimpleNamespace(x=torch.ones(2)), SimpleNamespace(x=torch.zeros(2))),
    ],
    ids=["keys", "places", "nesting", "int and float", "text and bytes", "objects"],
)
def test_trees_that_differ_are_told_apart(a: Any, b: Any) -> None:
    """R38: a batch is any tree of tensors, arrays, plain data and objects."""
    assert of(a) != of(b)


# -- beside the transitions ----------------------------------------------------------------------------------


def told(run_dir: Path) -> list[dict[str, Any]]:
    return sides(run_dir, "fingerprint")


def parted(a: Path, b: Path) -> tuple[int, str] | None:
    """The first transition and part, in causal order, at which two runs' fingerprints differ."""
    for one, other in zip(told(a), told(b), strict=True):
        assert one["at"] == other["at"]
        for part in ORDER:
            if one[part] != other[part]:
                return one["at"], part
    return None


class Two(nn.Module):
    """Two parts with an optimizer each."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 3), nn.BatchNorm1d(3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        return {"loss": (self.two(self.one(x)).mean(-1) - y).pow(2).mean()}


class Loop:
    """A loop of the user's own over one epoch."""

    def run(self, trainer: Any, loader: Any) -> None:
        for batch in loader:
            batch = trainer.move_data_to_device(batch)
            trainer.on_train_batch_begin(batch)
            with trainer.get_no_sync_context():
                outputs = trainer.train_step(batch)
                trainer.backward(outputs)
            trainer.step()
            trainer.zero_grad()
            trainer.batch_idx_in_epoch += 1
            trainer.global_forward_batches += 1
            trainer.on_train_batch_end()


def by_hand(trainer: Any, batch: Any) -> None:
    """A step of the user's own that calls the optimizer itself."""
    outputs = trainer.train_step(batch)
    trainer.backward(outputs)
    for optimizer in trainer.driver.optimizers:
        optimizer.step()
        optimizer.zero_grad()


def with_loop(run: Run) -> Run:
    run.trainer.train_batch_loop = Loop()
    return run


CASES: dict[str, Callable[..., Run]] = {
    "plain": lambda **given: Run(**given),
    "accumulated": lambda **given: Run(accumulation_steps=4, **given),
    "half floats": lambda **given: Run(precision="fp16", **given),
    "a loop of one's own": lambda **given: with_loop(Run(**given)),
    "a step of one's own": lambda **given: Run(batch_step_fn=by_hand, **given),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:batch_step_fn")
def test_a_run_has_the_same_history_with_fingerprints_and_without(tmp_path: Path, name: str) -> None:
    """R38."""
    bare = CASES[name](run_dir=tmp_path / "bare")
    bare.run()
    taken = Fingerprints(1)
    watched = CASES[name](run_dir=tmp_path / "watched", callbacks=lambda run: [taken])
    watched.run()
    assert watched.chain == bare.chain
    assert taken.taken == told(tmp_path / "watched")[-1]
    assert told(tmp_path / "bare") == []


def test_each_update_that_is_due_is_told_beside_its_transition(tmp_path: Path) -> None:
    """R38."""
    Run(run_dir=tmp_path / "run", callbacks=lambda run: [Fingerprints(4)]).run()
    journal = Journal(tmp_path / "run")
    steps = [record.seq for record in journal if record.event == "Stepped"]
    found = list(journal.sides("fingerprint"))
    assert [side.data["at"] for side in found] == steps[3::4] == [side.seq for side in found]
    for side in found:
        assert list(side.data) == ["at", *ORDER]
        assert [len(side.data[part]) for part in ORDER[:-1]] == [16] * 5
        assert side.data["scaler"] is None


def test_a_gradient_scaler_has_a_fingerprint_too(tmp_path: Path) -> None:
    """R38."""
    Run(run_dir=tmp_path / "run", precision="fp16", callbacks=lambda run: [Fingerprints(1)]).run()
    assert len({each["scaler"] for each in told(tmp_path / "run")} - {None}) > 1


@pytest.mark.parametrize("known", [True, False])
def test_of_a_window_every_micro_batch_is_told_and_what_the_update_made_of_them(tmp_path: Path, known: bool) -> None:
    """R38: a window that turns out to end with its epoch has no batch in hand."""
    trainer = stub([1, 2, 3, 4, 5], StubDriver(known_length=known), accumulation_steps=2, run_dir=tmp_path / "run")
    trainer.add_callback(Fingerprints(1))
    trainer.run()
    records = {record.seq: record for record in Journal(tmp_path / "run")}
    found = told(tmp_path / "run")
    batches = [StubDriver().fingerprint_of(batch) for batch in (1, 2, 3, 4, 5)]
    assert [each["batch"] for each in found] == 2 * (batches if known else [*batches, None])
    events = [records[each["at"]].event for each in found]
    assert events == 2 * ["Stepped"] * 5 if known else 2 * [*["Stepped"] * 5, "Exhausted"]
    closed = [not records[each["at"]].state.accumulated for each in found]
    for part in ("gradients", "parameters", "buffers", "optimizers"):
        assert [each[part] is not None for each in found] == closed


def test_gradients_are_those_that_the_optimizer_is_given(tmp_path: Path) -> None:
    """R38: after all who change them, whoever was there first."""
    for name, callbacks in {
        "before": lambda run: [Fingerprints(1), GradClip(0.01)],
        "after": lambda run: [GradClip(0.01), Fingerprints(1)],
        "unclipped": lambda run: [Fingerprints(1)],
    }.items():
        Run(run_dir=tmp_path / name, callbacks=callbacks).run()
    assert told(tmp_path / "before") == told(tmp_path / "after")
    assert parted(tmp_path / "before", tmp_path / "unclipped") == (told(tmp_path / "before")[0]["at"], "gradients")


def test_a_skipped_update_is_told_and_the_next_one_too(tmp_path: Path) -> None:
    """R38: who counts updates counts those that were taken."""
    trainer = stub(driver=StubDriver(skip=[1]), run_dir=tmp_path / "run", callbacks=Fingerprints(2))
    trainer.run()
    steps = [record for record in Journal(tmp_path / "run") if record.event == "Stepped"]
    assert [record.seq for record in steps if record.data["skipped"]] == [steps[1].seq]
    assert [each["at"] for each in told(tmp_path / "run")] == [steps[n].seq for n in (1, 2, 4)]


def test_an_update_that_a_listener_leaves_out_is_told_with_its_gradients(tmp_path: Path) -> None:
    """R38."""
    trainer = stub(
        driver=StubDriver(loss=lambda batch, n: float("nan") if n == 2 else float(batch)),
        run_dir=tmp_path / "run",
        callbacks=[NanGuard("skip"), Fingerprints(1)],
    )
    trainer.run()
    found = told(tmp_path / "run")
    assert len(found) == 6
    assert None not in [each["gradients"] for each in found]
    assert found[1]["parameters"] == found[2]["parameters"] != found[3]["parameters"]


def test_with_a_loop_of_ones_own_an_epoch_is_told_with_its_last_update(tmp_path: Path) -> None:
    """R38."""
    run = with_loop(Run(run_dir=tmp_path / "run", callbacks=lambda run: [Fingerprints(1)]))
    seen: list[dict[str, Any]] = []

    def look(trainer: Any, optimizers: Any) -> None:
        seen.append(trainer.driver.fingerprints(["gradients"]))

    run.trainer.on("on_train_batch_begin", lambda t, batch, ids: seen.append({"batch": t.driver.fingerprint_of(batch)}))
    run.trainer.on("on_before_optimizer_step", look)
    run.trainer.on("on_after_optimizer_step", lambda t, _: seen.append(t.driver.fingerprints(PARTS[1:])))
    run.run()
    found = told(tmp_path / "run")
    assert [{part: each[part] for part in ORDER} for each in found] == [
        {**seen[n], **seen[n + 1], **seen[n + 2]} for n in (15, 33)
    ]
    records = {record.seq: record.event for record in Journal(tmp_path / "run")}
    assert [records[each["at"]] for each in found] == ["Exhausted", "Exhausted"]


def test_several_optimizers_are_told_together(tmp_path: Path) -> None:
    """R38."""

    def run(name: str, rate: float) -> None:
        torch.manual_seed(1)
        model, data = Two(), [{"x": torch.randn(6, 4), "y": torch.randn(6)} for _ in range(3)]
        optimizers = [torch.optim.Adam(model.one.parameters()), torch.optim.SGD(model.two.parameters(), lr=rate)]
        loader = torch.utils.data.DataLoader(data, batch_size=None)
        settings: dict[str, Any] = {"run_dir": tmp_path / name, "n_epochs": 1, "seed": 1, "progress_bar": None}
        Trainer(model, "torch", loader, optimizers, callbacks=Fingerprints(1), **settings).run()

    run("a", 0.1)
    run("b", 0.2)
    first = told(tmp_path / "a")[0]["at"]
    assert parted(tmp_path / "a", tmp_path / "b") == (first, "parameters")
    assert told(tmp_path / "a")[0]["buffers"] == told(tmp_path / "b")[0]["buffers"]
    assert told(tmp_path / "a")[0]["optimizers"] != told(tmp_path / "b")[0]["optimizers"]


class At(Callback):
    """Does something at a moment, when so many updates are done."""

    def __init__(self, moment: str, updates: int, act: Callable[[Any], None]) -> None:
        self._moment, self._updates, self._act = moment, updates, act

    def subscribe(self, listeners: Any) -> None:
        listeners.add(self._moment, self._heard, owner=self)

    def _heard(self, trainer: Any, *given: Any) -> None:
        if trainer.trainer_state.optimizer_steps == self._updates:
            self._act(trainer)


def flip(tensor: torch.Tensor) -> None:
    """Flip the lowest bit of a tensor's first value."""
    tensor.detach().view(torch.int32).view(-1)[0] ^= 1


def first_parameter(trainer: Any) -> torch.Tensor:
    return next(trainer.model.parameters())  # type: ignore[no-any-return]


def swap_samples(trainer: Any) -> None:
    for value in trainer.batch.values():
        value.copy_(value.flip(0))


def first_moment(trainer: Any) -> torch.Tensor:
    return trainer.driver.optimizers[0].state[first_parameter(trainer)]["exp_avg"]  # type: ignore[no-any-return]


FAULTS: dict[str, tuple[str, Callable[[Any], None], str]] = {
    "samples of a batch are swapped": ("on_train_batch_begin", swap_samples, "batch"),
    "a bit of a gradient": ("on_before_optimizer_step", lambda t: flip(first_parameter(t).grad), "gradients"),  # type: ignore[arg-type]
    "a bit of a weight": ("on_after_optimizer_step", lambda t: flip(first_parameter(t)), "parameters"),
    "a bit of a moment": ("on_after_optimizer_step", lambda t: flip(first_moment(t)), "optimizers"),
    "a learning rate": ("on_after_optimizer_step", lambda t: t.driver.set_learning_rate(0.5), "optimizers"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_first_update_and_part_at_which_runs_differ_are_known(tmp_path: Path, name: str) -> None:
    """R38."""
    moment, act, part = FAULTS[name]
    for folder, planted in {"sound": [], "faulty": [At(moment, 4, act)]}.items():
        Run(run_dir=tmp_path / folder, callbacks=lambda run, p=planted: [*p, Fingerprints(1)]).run()  # type: ignore[misc]
    found = parted(tmp_path / "sound", tmp_path / "faulty")
    assert found == (told(tmp_path / "sound")[4]["at"], part)


def test_without_the_callback_nothing_is_computed(tmp_path: Path) -> None:
    """R38."""

    class Untouched(StubDriver):
        def fingerprints(self, parts: Any = PARTS) -> dict[str, str | None]:
            raise AssertionError

        def fingerprint_of(self, value: Any) -> str:
            raise AssertionError

    trainer = stub(driver=Untouched(), run_dir=tmp_path / "run")
    trainer.run()
    assert "on_before_optimizer_step" not in trainer.listeners.inside


def test_between_the_updates_that_are_due_nothing_is_computed() -> None:
    """R38."""
    calls: list[Any] = []

    class Counted(StubDriver):
        def fingerprints(self, parts: Any = PARTS) -> dict[str, str | None]:
            calls.append(list(parts))
            return dict.fromkeys(parts)

        def fingerprint_of(self, value: Any) -> str:
            calls.append(value)
            return "0" * 16

    stub([1, 2, 3, 4], Counted(), accumulation_steps=2, callbacks=Fingerprints(3), n_epochs=2).run()
    assert calls == [1, 2, ["gradients"], list(PARTS[1:])]


def test_without_a_run_directory_they_are_at_hand_all_the_same() -> None:
    """R38."""
    taken = Fingerprints(1)
    trainer = stub(callbacks=taken)
    assert taken.taken is None
    seen: list[Any] = []
    trainer.on("Stepped", lambda t: seen.append(taken.taken), priority=-(1 << 31))
    trainer.run()
    assert [each["at"] for each in seen] == [4, 6, 8, 13, 15, 17]
    assert len({each["parameters"] for each in seen}) == 6


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "2"])
def test_a_number_that_is_none_is_refused(every: Any) -> None:
    with pytest.raises(CallerError, match="every"):
        Fingerprints(every)


def test_a_driver_that_takes_none_is_told_of_as_unknown(tmp_path: Path) -> None:
    class Bare(StubDriver):
        def fingerprints(self, parts: Any = PARTS) -> dict[str, str | None]:
            return {}

        def fingerprint_of(self, value: Any) -> str | None:  # type: ignore[override]
            return None

    stub(driver=Bare(), run_dir=tmp_path / "run", callbacks=Fingerprints(1)).run()
    assert [each[part] for each in told(tmp_path / "run") for part in ORDER] == [None] * 6 * len(ORDER)


# -- over a resume -------------------------------------------------------------------------------------------


def settings(run_dir: Path, **given: Any) -> dict[str, Any]:
    return {"run_dir": run_dir, "n_epochs": 2, "snapshot_every": 1, "callbacks": lambda run: [Fingerprints(1)], **given}


@pytest.mark.parametrize("steps", [1, 2])
def test_a_resumed_run_tells_what_the_straight_one_does(tmp_path: Path, steps: int) -> None:
    """R38, R66: from before and after each kind of transition, a batch in hand included."""
    given = {"n": 6, "accumulation_steps": steps}
    Run(**settings(tmp_path / "straight", **given)).run()
    straight = told(tmp_path / "straight")
    last = Journal(tmp_path / "straight").last
    assert last is not None
    for seq in range(2, last.seq - 1):
        run_dir = tmp_path / str(seq)
        first = Run(**settings(run_dir, **given))
        for target in ("fetch", "step", "epoch_begin", "epoch_end"):
            first.trainer.on(target, lambda t, seq=seq: t.request_snapshot() if t.trainer_state.seq == seq else None)  # type: ignore[misc]
        first.run()
        kept = []
        for path in (run_dir / "snapshots").iterdir():
            shutil.rmtree(path) if int(path.name) > seq else kept.append(path)
        again = Run(**settings(run_dir, **given, init=99))
        again.run(resume_from="auto")
        assert told(run_dir) == straight, f"resumed at {max(int(path.name) for path in kept)}"


def test_the_callback_may_be_added_and_left_out_at_a_resume(tmp_path: Path) -> None:
    """R38: what was recorded is expected all the same."""
    for callbacks, again in ((None, Fingerprints(1)), (Fingerprints(1), None)):
        run_dir = tmp_path / f"{callbacks is None}"
        first = stub(run_dir=run_dir, callbacks=callbacks, snapshot_every=1)
        stop_at("step", 4)(first)
        first.run()
        second = stub(run_dir=run_dir, callbacks=again, snapshot_every=1)
        second.run(resume_from="auto")
        assert sides(run_dir, "diverged") == []
        (resumed,) = sides(run_dir, "resumed")
        assert not resumed["felt"]
        straight = stub(run_dir=tmp_path / f"straight-{callbacks is None}")
        straight.run()
        assert diff(run_dir, straight.run_dir) is None  # type: ignore[arg-type]


# -- in snapshots --------------------------------------------------------------------------------------------


def in_snapshot(path: Path) -> dict[str, Any]:
    held: dict[str, Any] = json.loads((path / "fingerprints.json").read_text())
    return held


def differing(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """The names of what two snapshots' fingerprints differ in."""
    found = []
    for part in a:
        if isinstance(a[part], dict):
            found += [f"{part}: {k}" for k in {**a[part], **b[part]} if a[part].get(k) != b[part].get(k)]
        elif a[part] != b[part]:
            found.append(part)
    return found


def test_a_snapshot_tells_of_all_that_is_in_it(tmp_path: Path) -> None:
    """R66."""
    run = Run(run_dir=tmp_path / "run", accumulation_steps=4, snapshot_every=1)
    run.trainer.state["mine"] = torch.ones(2)
    run.run()
    held = [in_snapshot(snapshot.path) for snapshot in catalogue(tmp_path / "run")[0]]
    parts = ["format", "model", "optimizers", "gradients", "generators", "loader", "scaler", "listeners", "user"]
    for told_of in held:
        assert list(told_of) == parts
        assert list(told_of["model"]) == list(run.model.state_dict())
        assert list(told_of["generators"]) == ["python", "numpy", "torch"]
    last = held[-1]
    assert {"0.lr", "0.exp_avg.hidden.weight", "0.exp_avg_sq.out.bias", "0.step.out.bias"} <= set(last["optimizers"])
    assert any(told_of["gradients"] for told_of in held)
    read = {name: of(tensor) for name, tensor in run.model.state_dict().items()}
    assert last["model"] == read


def spoil_the_moments(run: Run) -> None:
    flip(run.optimizer.state[run.model.out.bias]["exp_avg"])


SPOILT: dict[str, tuple[Callable[[Run], Any], str]] = {
    "a moment of an optimizer": (spoil_the_moments, "optimizers: 0.exp_avg.out.bias"),
    "the learning rate": (lambda run: run.optimizer.param_groups[0].update(lr=0.5), "optimizers: 0.lr"),
    "a weight": (lambda run: flip(run.model.hidden.weight), "model: hidden.weight"),
    "a generator": (lambda run: torch.rand(1), "generators: torch"),
    "numpy's generator": (lambda run: np.random.rand(), "generators: numpy"),
    "the user's own": (lambda run: run.trainer.state.update(mine=2), "user"),
}


@pytest.mark.parametrize("name", SPOILT)
def test_two_snapshots_differ_in_what_was_spoilt_and_nothing_else(tmp_path: Path, name: str) -> None:
    """R66."""
    spoil, expected = SPOILT[name]
    held = []
    for folder in ("sound", "spoilt"):
        run = Run(run_dir=tmp_path / folder, n_epochs=1)
        run.trainer.state["mine"] = 1
        last = Events.on_train_batch_end(once=6)
        run.trainer.on(last, lambda t, spoilt=folder == "spoilt", run=run: spoil(run) if spoilt else None)  # type: ignore[misc]
        run.run()
        held.append(in_snapshot(catalogue(tmp_path / folder)[0][-1].path))
    assert differing(*held) == [expected]


def test_a_listeners_memory_has_one_by_its_name(tmp_path: Path) -> None:
    """R66."""

    class Counting(Callback):
        n = 0

        def on_train_batch_end(self, trainer: Any) -> None:
            self.n += 1

        def state_dict(self) -> dict[str, Any]:
            return {"n": self.n}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.n = state["n"]

    Run(run_dir=tmp_path / "run", snapshot_every=2, callbacks=lambda run: [Counting()]).run()
    held = [in_snapshot(snapshot.path) for snapshot in catalogue(tmp_path / "run")[0]]
    assert len({told_of["listeners"]["Counting"] for told_of in held}) == 6


def test_a_snapshot_without_them_is_as_good(tmp_path: Path) -> None:
    """R66: one of an older version, say."""
    first = Run(run_dir=tmp_path / "run", snapshot_every=2)
    stop_at("on_train_batch_end", 7)(first.trainer)
    first.run()
    for snapshot in catalogue(tmp_path / "run")[0]:
        commit = json.loads((snapshot.path / "COMMIT").read_text())
        del commit["files"]["fingerprints.json"], commit["digest"]
        (snapshot.path / "COMMIT").write_text(json.dumps({**commit, "digest": digest_of_commit(commit)}))
        (snapshot.path / "fingerprints.json").unlink()
    assert [snapshot.fault() for snapshot in catalogue(tmp_path / "run")[0]] == [""] * len(
        catalogue(tmp_path / "run")[0]
    )
    second = Run(run_dir=tmp_path / "run", snapshot_every=2, init=3)
    second.run(resume_from="auto")
    straight = Run(run_dir=tmp_path / "straight")
    straight.run()
    assert second.chain == straight.chain


def test_a_snapshot_of_the_stub_tells_of_its_numbers(tmp_path: Path) -> None:
    """R66."""
    trainer = stub(run_dir=tmp_path / "run", snapshot_every=1)
    trainer.run()
    held = [in_snapshot(snapshot.path) for snapshot in catalogue(tmp_path / "run")[0]]
    assert len({told_of["model"]["weight"] for told_of in held}) > 1
    assert held[-1]["model"]["weight"] == StubDriver().fingerprint_of(trainer.driver.weight)  # type: ignore[union-attr]


# -- the host, the machine, and the user's own code ------------------------------------------------------------


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module of the user's, loaded from the current folder."""
    path = tmp_path / "own" / "layers_of_mine.py"
    path.parent.mkdir()
    path.write_text("WIDTH = 3\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(path.parent))
    importlib.import_module("layers_of_mine")
    yield path
    del sys.modules["layers_of_mine"]


def test_a_run_tells_its_host_and_the_digests_of_the_users_own_code(tmp_path: Path, module: Path) -> None:
    """R38."""
    stub(run_dir="run").run()
    about = recording.load(tmp_path / "run")
    assert about["host"]
    assert about["code"] == {"own/layers_of_mine.py": hashlib.blake2b(b"WIDTH = 3\n", digest_size=8).hexdigest()}


@pytest.mark.parametrize("goes_on", ["in another process", "in the same object"])
def test_a_change_of_the_users_code_is_said_and_recorded_and_nothing_is_refused(module: Path, goes_on: str) -> None:
    """R38, R66."""
    trainer = stub(run_dir="run", n_epochs=1)
    trainer.run()
    old = recording.load(Path("run"))["code"]["own/layers_of_mine.py"]
    module.write_text("WIDTH = 4\n")
    new = hashlib.blake2b(b"WIDTH = 4\n", digest_size=8).hexdigest()
    said: list[str] = []

    def go_on(epochs: int) -> dict[str, Any]:
        nonlocal trainer
        if goes_on == "in another process":
            trainer = stub(run_dir="run", n_epochs=epochs)
        trainer.n_epochs = epochs
        said.clear()
        trainer.on(Events.on_notice, lambda t, text: said.append(text))
        trainer.run(**({"resume_from": "auto"} if goes_on == "in another process" else {}))
        return [*sides(Path("run"), "resumed"), *sides(Path("run"), "continued")][-1]

    assert go_on(2)["code"] == {"own/layers_of_mine.py": [old, new]}
    assert "own/layers_of_mine.py changed since the run was at work last" in said
    assert "code" not in go_on(3), "it is said once"
    assert not any("changed since" in text for text in said)
    module.unlink()
    assert "code" not in go_on(4), "what can't be read is left out"


def test_a_run_of_an_older_version_told_nothing_of_code_and_goes_on(module: Path) -> None:
    stub(run_dir="run", n_epochs=1).run()
    about = recording.load(Path("run"))
    recording.write_json(Path("run/run.json"), {k: v for k, v in about.items() if k not in ("code", "host")})
    stub(run_dir="run").run(resume_from="auto")
    assert "code" not in sides(Path("run"), "resumed")[-1]


def test_the_processor_and_its_kernels_are_told(tmp_path: Path) -> None:
    """R38: another one may round otherwise."""
    Run(run_dir=tmp_path / "run", n_epochs=1).run()
    told_of = recording.load(tmp_path / "run")["environment"]
    assert torch.backends.cpu.get_cpu_capability() in told_of["cpu"]
    assert told_of["platform"]
