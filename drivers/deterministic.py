"""Kernels that give the same bits each time, and gradients that are looked at: while a run lasts, and no longer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"


@contextmanager
def debugged(mode: bool | str, detect: bool, device: torch.device, tell: Callable[[str], None]) -> Iterator[None]:
    """Run the body with both; see `deterministic` and `anomalies`."""
    with deterministic(mode, device, tell), anomalies(detect):
        yield


@contextmanager
def deterministic(mode: bool | str, device: torch.device, tell: Callable[[str], None]) -> Iterator[None]:
    """Run the body with deterministic algorithms, and put back what was chosen before.

    Args:
        mode: True: an operation that has none is an error; "warn": it is a warning; False changes nothing.
        device: where it trains.
        tell: takes a sentence on what the environment lacks.
    """
    if not mode:
        yield
        return
    if device.type == "cuda" and _CUBLAS not in os.environ:
        tell(f"deterministic={mode!r}: cuBLAS wants {_CUBLAS}=:4096:8 in the environment, before Python starts")
    cudnn = torch.backends.cudnn
    chosen = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    before = cudnn.deterministic, cudnn.benchmark
    torch.use_deterministic_algorithms(True, warn_only=mode == "warn")
    cudnn.deterministic, cudnn.benchmark = True, False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(chosen[0], warn_only=chosen[1])
        cudnn.deterministic, cudnn.benchmark = before


@contextmanager
def anomalies(detect: bool) -> Iterator[None]:
    """Run the body so that a backward pass that makes a NaN is an error, which shows the forward pass it belongs to."""
    if not detect:
        yield
        return
    before = torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()
    torch.autograd.set_detect_anomaly(True, check_nan=True)
    try:
        yield
    finally:
        torch.autograd.set_detect_anomaly(*before)


def flags() -> dict[str, Any]:
    """Return those of the flags above that are on, for `run.json`."""
    found = {
        "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "detect_anomaly": torch.is_anomaly_enabled(),
    }
    return {name: True for name, on in found.items() if on}


_THAT_DECIDE = ("ATEN_", "CUBLAS_", "DNNL_", "MKL_", "NVIDIA_TF32", "ONEDNN_", "TORCH_ALLOW_TF32")
_COUNTED = ("MKL_NUM_THREADS", "MKL_DYNAMIC")
"""Variables whose effect is told as the number of threads."""


def variables() -> dict[str, str]:
    """Return those variables of the environment that are set and decide which kernels are used, for `run.json`."""
    return {k: v for k, v in sorted(os.environ.items()) if k.startswith(_THAT_DECIDE) and k not in _COUNTED}
