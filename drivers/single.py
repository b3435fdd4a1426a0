"""`driver="torch"`: one process, one device (cpu, cuda, mps).

It holds the model and the optimizers and does everything with tensors. The counters, the order of the calls and
what is heard between them are the engine's.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import Optimizer

from tachograph.states.errors import CallerError

from . import compiling, fingerprints, generators, gradients, hyperparameters, measuring, restoring, storage
from .averaging import WeightAverages
from .calls import batch_size, caller_of, check_optimized, device_of, train_fn_of
from .deterministic import flags, variables
from .devices import cpu
from .driver import NO_BATCH
from .evaluations import Evaluations
from .extras import PARTS
from .lengths import length_of
from .loaders import BatchSource, EvaluationSource, check_loader, hash_ids, settings_of, source_of
from .loaders.kept import KeptSource
from .loss_faults import fault_of
from .measuring import LAG, Losses, read_scalar, scalar
from .plain_models import read_model
from .precision import choose_precision, forget_unscaled, take_step, unscale
from .summary import summary
from .trials import Trials
from .weights import copy_weights, has_weights, put_weights


class TorchDriver(Evaluations, Trials):
    """Trains on one device.

    Args:
        model: an `nn.Module`.
        device: "cpu", "cuda:0", "mps", an index, a `torch.device`; None takes where the model's parameters are.
        precision: "fp32", "bf16" or "fp16"; None means fp32, or fp16 with `fp16=True`.
        fp16: the reference trainer's switch.
        train_fn: the name of the model's method for a training batch; None means `train_step` if it has one, else
            its forward pass.
        auto_call: fill the model's parameters by name from dict batches; False passes every batch whole.
        set_grad_to_none: clear gradients by dropping them.
        non_blocking: move batches without waiting.
        scaler_options: keyword arguments of `torch.amp.GradScaler`.
        measure_lag: steps after which a loss is read, >= 0; None means 0 on the CPU, 8 elsewhere, so that a step never
            waits for the device.

    Raises:
        CallerError: the model, the device, the precision or `train_fn` can't be used.
    """

    _share: bool | None = None  # whether the training loader is dealt out to ranks; None: if it can be
    _loader: Any = None  # an engine of one's own may get its data elsewhere
    _max_batches: int = -1

    def __init__(
        self,
        model: Any,
        device: Any = None,
        *,
        precision: str | None = None,
        fp16: bool = False,
        train_fn: str | None = None,
        auto_call: bool = True,
        set_grad_to_none: bool = True,
        non_blocking: bool = True,
        scaler_options: Mapping[str, Any] | None = None,
        measure_lag: int | None = None,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise CallerError(f"model must be a torch.nn.Module, not {type(model).__name__}")
        if isinstance(model, nn.parallel.DistributedDataParallel):
            raise CallerError(
                "a DistributedDataParallel model belongs to many processes, and this driver to one: use "
                "driver='torch_ddp', or unwrap it"
            )
        self.model = model
        self.device = device_of(device, model)
        self.precision = choose_precision(precision, fp16, self.device, dict(scaler_options or {}))
        self.optimizers: list[Optimizer] = []
        self._scaler = self.precision.scaler
        self._autocast = self.precision.autocast
        self._set_to_none = self._plain_zero = set_grad_to_none
        self._non_blocking = non_blocking
        self._auto_call = auto_call
        self._train_fn_name = train_fn or ("train_step" if hasattr(model, "train_step") else "forward")
        self._compile: dict[str, Any] | None = None
        self._train_fn = train_fn_of(model, train_fn, auto_call)
        self._on_cpu = self.device.type == "cpu"
        lag = (0 if self._on_cpu else LAG) if measure_lag is None else measure_lag
        self._losses = Losses(lag) if lag else None
        self._built: dict[str, Any] | None = None
        self._source: BatchSource | None = None
        self._overfit = 0
        self._evaluated: dict[tuple[int, bool | None], EvaluationSource] = {}
        self._source_loader: Any = None
        self._digest: Callable[[], int] = int

    # -- building ------------------------------------------------------------------------------------------

    def set_optimizers(self, optimizers: Any) -> None:
        given = [optimizers] if isinstance(optimizers, Optimizer) else optimizers
        if not isinstance(given, Sequence) or not given:
            raise CallerError(f"optimizers must be one torch Optimizer or a sequence of them, not {_named(optimizers)}")
        for optimizer in given:
            if not isinstance(optimizer, Optimizer):
                raise CallerError(f"optimizers must hold torch Optimizers, not {_named(optimizer)}")
        if len({id(optimizer) for optimizer in given}) != len(given):
            raise CallerError("an optimizer is given twice: it would take two steps in one update")
        check_optimized(self.model, given)
        self.optimizers = list(given)
        own = any(type(optimizer).zero_grad is not Optimizer.zero_grad for optimizer in given)
        self._plain_zero = self._set_to_none and not own
        self._built = None

    def set_dataloader(self, dataloader: Any, max_batches: int = -1) -> None:
        check_loader(dataloader)
        self._loader, self._max_batches = dataloader, max_batches

    def overfit(self, batches: int) -> None:
        self._overfit = batches

    def kept_batches(self, seed: int) -> Iterator[Any]:
        if not isinstance(self._source, KeptSource):
            self._source = self._sourced(seed)
        assert isinstance(self._source, KeptSource), "overfit() comes first"
        return self._source.batches()

    def compile(self, options: Mapping[str, Any]) -> None:
        self._compile = compiling.checked(options)
        self._train_fn = caller_of(self.model, self._train_fn_name, self._auto_call, self._compile)

    def setup(self, seed: int, whole_digest: bool) -> None:
        self.model.to(self.device)
        self._as_built()
        self._seed = seed
        self._source = None if self._loader is None else self._sourced(seed)
        self._digest = generators.digest_reader(whole_digest, self.device)

    def fingerprint(self) -> dict[str, Any]:
        """Name the model by its class and the names, shapes and dtypes of its state; the optimizers by their groups.

        Of these, only `train_fn` may be changed at a resume.
        """
        tensors = [f"{k} {tuple(v.shape)} {v.dtype}" for k, v in self.model.state_dict().items() if hasattr(v, "shape")]
        digest = hashlib.blake2b("\n".join(tensors).encode(), digest_size=8).hexdigest()
        sizes = [[len(group["params"]) for group in o.param_groups] for o in self.optimizers]
        return {
            "model": f"{type(self.model).__name__} with {len(tensors)} tensors, digest {digest}",
            "optimizers": [
                f"{type(o).__name__} with groups of {s}" for o, s in zip(self.optimizers, sizes, strict=True)
            ],
            "precision": self.precision.name,
            "train_fn": self._train_fn_name,
            **({} if self._loader is None else settings_of(self._loader, -1, self.ranks, self._share)),
        }

    def _sourced(self, seed: int) -> BatchSource:
        """Read the loader from where it stands: in a second run of this object it has been read before."""
        before = self._source
        if self._overfit:
            return self._kept(seed)
        source = source_of(self._loader, seed, self._max_batches, self._told, self.ranks, self._share)
        if before is not None and self._source_loader is self._loader:
            source.load(before.state())
        self._source_loader = self._loader
        return source

    def _kept(self, seed: int) -> KeptSource:
        held = self._source
        if not isinstance(held, KeptSource) or not held.is_of(self._loader, seed, self._overfit):
            held = KeptSource(self._loader, seed, self._overfit, self._told, self.ranks, self._share)
        held.most = self._max_batches
        return held

    def _told(self, text: str) -> None:
        warnings.warn(text, stacklevel=4)
        self.tell(text)

    def hyperparameters(self) -> dict[str, Any]:
        built = self._as_built()
        found = hyperparameters.named(built["optimizers"])
        return {**found, "scaler": built["scaler"]} if built["scaler"] else found

    def environment(self) -> dict[str, Any]:
        return {
            "torch": torch.__version__,
            "numpy": np.__version__,
            "device": str(self.device),
            "cpu": cpu(),
            "threads": torch.get_num_threads(),
            "num_workers": getattr(self._loader, "num_workers", 0),
            "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            **flags(),
            **variables(),
        }

    def initial_seed(self) -> int:
        return torch.initial_seed() & ((1 << 63) - 1)

    def seed_generators(self, seed: int) -> None:
        generators.seed_all(seed)

    # -- training ------------------------------------------------------------------------------------------

    def length(self) -> int | None:
        if self._loader is None:
            return None
        length = length_of(self._loader) if self._source is None else self._source.length()
        limits = [most for most in (self._max_batches, self._overfit) if most > 0]
        return None if length is None else min([length, *limits])

    def open_epoch(self, epoch: int, done: int, samples: int | None = None) -> int | None:
        if self._loader is None:
            raise CallerError(
                "no training loader was given, so there is no epoch to open: set_dataloader() comes first"
            )
        assert self._source is not None, "setup() comes first"
        length = self._source.open(epoch, done, samples)
        cut = length is not None and length < done and self._max_batches > 0
        return done if cut else length  # fewer batches may be used now than were consumed

    def next_batch(self) -> Any:
        source = self._source
        try:
            batch = source.next()  # type: ignore[union-attr]
        except BaseException:
            self.batch_ids = source.ids  # type: ignore[union-attr]
            raise
        if batch is NO_BATCH:
            return NO_BATCH
        ids, samples = source.ids, source.samples  # type: ignore[union-attr]
        self.batch_ids = ids
        self.batch_samples = samples or (len(ids) if ids is not None else batch_size(batch))
        if self.input_mapping is not None:
            batch = self.input_mapping(batch)
        return batch if self._on_cpu else self.to_device(batch)

    def ids_digest(self) -> int:
        return hash_ids(self.batch_ids)  # type: ignore[arg-type]

    def to_device(self, batch: Any) -> Any:
        """Move the tensors of a batch (dicts, lists, tuples, objects with `.to`) to the device."""
        if self._on_cpu:
            return batch
        moved = storage.mapped(batch, lambda t: t.to(self.device, non_blocking=self._non_blocking))
        if moved is batch and hasattr(batch, "to"):
            return batch.to(self.device)
        return moved

    def train_step(self, batch: Any) -> Any:
        if self._autocast is None:
            return self._train_fn(batch)
        with self._autocast():
            return self._train_fn(batch)

    def backward(self, loss: Any, divisor: int) -> None:
        if divisor != 1:
            loss = loss / divisor
        if self._scaler is not None:
            loss = self._scaler.scale(loss)
        loss.backward()

    def loss_fault(self, loss: Any) -> str:
        return fault_of(loss)

    def unscale(self) -> None:
        if self._scaler is not None:
            unscale(self._scaler, self.optimizers)

    def optimizer_step(self) -> bool:
        if self._scaler is None:
            for optimizer in self.optimizers:
                optimizer.step()
            return True
        return take_step(self._scaler, self.optimizers)

    def gradient_norm(self, norm_type: float = 2.0) -> torch.Tensor:
        return gradients.norm(self._parameters(), norm_type)

    def clip_gradients_by_norm(
        self, most: float, parameters: Any = None, *, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        clipped = list(self._parameters() if parameters is None else parameters)
        strict = error_if_nonfinite and self._scaler is None
        return gradients.clip_by_norm(clipped, most, norm_type, strict)

    def clip_gradients_by_value(self, most: float, parameters: Any = None) -> None:
        gradients.clip_by_value(list(self._parameters() if parameters is None else parameters), most)

    def averages(self, *, buffers: bool = False) -> WeightAverages:
        return WeightAverages(self.model, buffers=buffers, ranks=self.ranks)

    def leave_out_step(self) -> None:
        if self._scaler is not None:
            forget_unscaled(self._scaler)

    def scale_gradients(self, factor: float) -> None:
        gradients.scale(self._parameters(), factor)

    def _parameters(self) -> Iterator[torch.Tensor]:
        seen: set[int] = set()
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if id(parameter) not in seen:
                        seen.add(id(parameter))
                        yield parameter

    def scalar(self, value: Any) -> Any:
        return scalar(value)

    def is_finite(self, loss: Any) -> bool:
        return bool(torch.isfinite(loss.detach()).all()) if isinstance(loss, torch.Tensor) else super().is_finite(loss)

    def gradients_are_finite(self) -> bool:
        if self._scaler is not None:
            return True
        grads = [p.grad for p in self._parameters() if p.grad is not None]
        finite = [torch.isfinite(g._values() if g.is_sparse else g).all().to(self.device) for g in grads]
        return bool(torch.stack(finite).all()) if finite else True

    def zero_grad(self) -> None:
        if not self._plain_zero:
            for optimizer in self.optimizers:
                optimizer.zero_grad(set_to_none=self._set_to_none)
            return
        for optimizer in self.optimizers:  # what Optimizer.zero_grad does, without its profiler range
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = None

    def train_mode(self) -> None:
        self.model.train()

    def measure(self, loss: Any, seq: int) -> tuple[float | None, Sequence[Any]]:
        if self._losses is None:
            return read_scalar(loss), ()
        return None, self._losses.put(loss, seq)

    def measured_late(self) -> list[list[Any]]:
        return [] if self._losses is None else self._losses.rest()

    def plain(self, value: Any) -> Any:
        return storage.mapped(value, lambda t: t.item() if t.numel() == 1 else t.tolist())

    def memory(self) -> dict[str, int]:
        return measuring.memory(self.device)

    def summary(self, depth: int = 1) -> list[dict[str, Any]]:
        return summary(self.model, depth)

    def fingerprints(self, parts: Sequence[str] = PARTS) -> dict[str, str | None]:
        held: dict[str, Callable[[], Any]] = {
            "gradients": lambda: {n: p.grad for n, p in self.model.named_parameters() if p.grad is not None},
            "parameters": lambda: dict(self.model.named_parameters()),
            "buffers": lambda: dict(self.model.named_buffers()),
            "optimizers": lambda: fingerprints.of_optimizers(self.model, self.optimizers),
            "scaler": lambda: None if self._scaler is None else self._scaler.state_dict(),
        }
        return fingerprints.of_trees({part: held[part]() for part in parts})

    def fingerprint_of(self, value: Any) -> str:
        return fingerprints.of_tree(value)

    def learning_rates(self) -> list[float]:
        rates = [group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups]
        for rate in rates:
            if rate.__class__ is not float:  # a tensor's, or an int
                return [float(rate) for rate in rates]
        return rates

    def rng_digest(self) -> int:
        return self._digest()

    def save_model(self, target: Any) -> None:
        storage.write_model(self.model.state_dict(), target)

    def load_model(self, source: Any) -> None:
        held = read_model(source)
        restoring.check_model(self.model, held)
        self.model.load_state_dict(held)

    def weights(self) -> Any:
        return copy_weights(self.model)

    def put_weights(self, held: Any) -> None:
        put_weights(self.model, held)

    def has_weights(self, held: Any) -> bool:
        return has_weights(self.model, held)

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def close(self) -> None:
        sources: list[Any] = [*self._evaluated.values(), *([] if self._source is None else [self._source])]
        self._evaluated.clear()
        with ExitStack() as stack:  # all of them, although one may fail
            for source in sources:
                stack.callback(source.close)


def _named(value: object) -> str:
    return f"an empty {type(value).__name__}" if value in ([], ()) else type(value).__name__
