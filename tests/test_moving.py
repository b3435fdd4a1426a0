"""Memory copied by several threads, as a snapshot's copy is."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tachograph.drivers import moving
from tachograph.drivers.moving import movable, move
from tachograph.drivers.staging import Staging

LARGE = moving.MUCH // 4 + 3  # floats: helpers are woken, and the last block is a short one


def room_for(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(LARGE),
        lambda: torch.randn(LARGE // 1000 + 1, 1000).t(),
        lambda: torch.randn(4, 3, 512, 512).to(memory_format=torch.channels_last),
        lambda: torch.randn(2 * LARGE).bfloat16(),
        lambda: torch.randint(0, 2, (5 * LARGE,)).bool(),
        lambda: torch.randn(2 * LARGE)[LARGE:],
    ],
)
def test_large_tensors_are_copied_bit_for_bit(make: Callable[[], torch.Tensor]) -> None:
    """R12."""
    tensors = [make(), torch.randn(3), make()]
    assert all(map(movable, tensors))
    copies = [room_for(tensor) for tensor in tensors]
    move(list(zip(copies, tensors, strict=True)))
    assert all(map(torch.equal, copies, tensors))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.randn(4, 4)[:, :2],
        torch.randn(1).expand(4),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.imag(torch.randn(3, dtype=torch.complex64).conj()),
        torch.randn(4).to_sparse(),
        torch.nn.Parameter(torch.randn(2)),
        torch.empty(2, device="meta"),
    ],
)
def test_what_is_no_plain_stretch_of_memory_is_left_to_torch(tensor: torch.Tensor) -> None:
    assert not movable(tensor)


def test_a_large_snapshot_is_copied_into_the_memory_of_the_one_before() -> None:
    """R12: what training does to the weights afterwards doesn't reach the copy."""
    weights = [torch.randn(LARGE // 2), torch.randn(LARGE // 2), torch.randn(7)]
    first = Staging()
    before = first.copied("model", weights)
    pointers = [copy.data_ptr() for copy in before]
    held = [tensor.clone() for tensor in weights]
    for tensor in weights:
        tensor += 1
    assert all(map(torch.equal, before, held))
    after = Staging(first).copied("model", weights)
    assert [copy.data_ptr() for copy in after] == pointers
    assert all(map(torch.equal, after, weights))


def test_a_helper_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "_threads", lambda: 4)
    busy = threading.Event()
    helpers = moving._helpers(os.getpid())
    for _ in range(3):
        helpers.submit(busy.wait)
    tensor = torch.randn(LARGE)
    copy = torch.zeros(LARGE)
    try:
        move([(copy, tensor)])
        assert torch.equal(copy, tensor)
    finally:
        busy.set()


def test_where_no_thread_can_be_had_the_caller_copies_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(process: int) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(moving, "_helpers", refuse)
    monkeypatch.setattr(moving, "_threads", lambda: 2)
    tensor = torch.randn(LARGE)
    copy = torch.zeros(LARGE)
    move([(copy, tensor)])
    assert torch.equal(copy, tensor)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_copies_too_although_its_parent_has_the_threads() -> None:
    tensor = torch.randn(LARGE)
    copy = torch.zeros(LARGE)
    move([(copy, tensor)])
    child = os.fork()
    if not child:
        copy.numpy().fill(0)  # an operator of torch would look for the parent's threads
        move([(copy, tensor)])
        os._exit(0 if np.array_equal(copy.numpy(), tensor.numpy()) else 1)
    assert os.waitpid(child, 0)[1] == 0
