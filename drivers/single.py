"""`driver="torch"`: one process, one device (cpu, cuda, mps).

It holds the model and the optimizers and does everything with tensors. The counters, the order of the calls and
what is heard between them are the engine's.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from tachograph.states.errors import CallerError, nearest

from . import compiling, generators, gradients, hyperparameters, measuring, profiling, restoring, storage, trying
from .averaging import WeightAverages
from .deterministic import debugged, flags
from .driver import NO_BATCH, Driver
from .errors import RestoreFault
from .lengths import length_of
from .loaders import BatchSource, EvaluationSource, check_loader, described, hash_ids, settings_of, source_of
from .loaders.kept import KeptSource
from .matching import matched
from .measuring import LAG, Losses, read_scalar
from .precision import choose_precision, forget_unscaled, overflowed, unscale
from .staging import Staging
from .undisturbed import undisturbed
from .summary import summary
from .weights import copy_weights, has_weights, put_weights

_LOOKUP = {"validate": ("validate_step", "test_step"), "test": ("test_step", "validate_step")}


class TorchDriver(Driver):
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
                "a DistributedDataParallel model belongs to many processes, and this driver to one: unwrap it"
            )
        self.model = model
        self.device = _device(device, model)
        self.precision = choose_precision(precision, fp16, self.device, dict(scaler_options or {}))
        self.optimizers: list[Optimizer] = []
        self._scaler = self.precision.scaler
        self._autocast = self.precision.autocast
        self._set_to_none = set_grad_to_none
        self._non_blocking = non_blocking
        self._auto_call = auto_call
        self._train_fn_name = train_fn or ("train_step" if hasattr(model, "train_step") else "forward")
        self._compile: dict[str, Any] | None = None
        self._train_fn = _train_fn(model, train_fn, auto_call)
        self._on_cpu = self.device.type == "cpu"
        lag = (0 if self._on_cpu else LAG) if measure_lag is None else measure_lag
        self._losses = Losses(lag) if lag else None
        self._built: dict[str, Any] | None = None
        self._source: BatchSource | None = None
        self._overfit = 0
        self._evaluated: dict[int, EvaluationSource] = {}
        self._source_loader: Any = None
        self._digest: Callable[[], int] = int
        self._staging: Staging | None = None
        self._to_restore: tuple[Any, dict[str, str]] | None = None

    # -- building ------------------------------------------------------------------------------------------

    def set_optimizers(self, optimizers: Any) -> None:
        given = [optimizers] if isinstance(optimizers, Optimizer) else optimizers
        if not isinstance(given, Sequence) or not given:
            raise CallerError(f"optimizers must be one torch Optimizer or a sequence of them, not {_named(optimizers)}")
        for optimizer in given:
            if not isinstance(optimizer, Optimizer):
                raise CallerError(f"optimizers must hold torch Optimizers, not {_named(optimizer)}")
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
        self._train_fn = _caller(self.model, self._train_fn_name, self._auto_call, self._compile)

    def setup(self, seed: int, whole_digest: bool) -> None:
        self.model.to(self.device)
        self._as_built()
        self._source = self._sourced(seed)
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
            **settings_of(self._loader, -1),
        }

    def _sourced(self, seed: int) -> BatchSource:
        """Read the loader from where it stands: in a second run of this object it has been read before."""
        before = self._source
        if self._overfit:
            return self._kept(seed)
        source = source_of(self._loader, seed, self._max_batches, self._told)
        if before is not None and self._source_loader is self._loader:
            source.load(before.state())
        self._source_loader = self._loader
        return source

    def _kept(self, seed: int) -> KeptSource:
        held = self._source
        if not isinstance(held, KeptSource) or not held.is_of(self._loader, seed, self._overfit):
            held = KeptSource(self._loader, seed, self._overfit, self._told)
        held.most = self._max_batches
        return held

    def _told(self, text: str) -> None:
        warnings.warn(text, stacklevel=4)
        self.tell(text)

    def hyperparameters(self) -> dict[str, Any]:
        built = self._as_built()
        found = hyperparameters.named(built["optimizers"])
        return {**found, "scaler": built["scaler"]} if built["scaler"] else found

    def _as_built(self) -> dict[str, Any]:
        """Return the plain values of the optimizers and of the scaler, as they were before the first batch."""
        if self._built is None:
            scaler = {} if self._scaler is None else self._scaler.state_dict()
            self._built = {
                "optimizers": [hyperparameters.of_groups(o.param_groups) for o in self.optimizers],
                "scaler": {k: v for k, v in scaler.items() if not k.startswith("_")},
            }
        return self._built

    def environment(self) -> dict[str, Any]:
        return {
            "torch": torch.__version__,
            "device": str(self.device),
            "threads": torch.get_num_threads(),
            "num_workers": getattr(self._loader, "num_workers", 0),
            "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "float32_matmul_precision": torch.get_float32_matmul_precision(),
            **flags(),
        }

    def initial_seed(self) -> int:
        return torch.initial_seed() & ((1 << 63) - 1)

    def seed_generators(self, seed: int) -> None:
        generators.seed_all(seed)

    # -- training ------------------------------------------------------------------------------------------

    def length(self) -> int | None:
        length = length_of(self._loader)
        limits = [most for most in (self._max_batches, self._overfit) if most > 0]
        return None if length is None else min([length, *limits])

    def open_epoch(self, epoch: int, done: int, samples: int | None = None) -> int | None:
        assert self._source is not None, "setup() comes first"
        return self._source.open(epoch, done, samples)

    def next_batch(self) -> Any:
        source = self._source
        try:
            batch = source.next()  # type: ignore[union-attr]
        except BaseException:
            self.batch_ids = source.ids  # type: ignore[union-attr]
            raise
        if batch is NO_BATCH:
            return NO_BATCH
        ids = self.batch_ids = source.ids  # type: ignore[union-attr]
        self.batch_samples = len(ids) if ids is not None else _batch_size(batch)
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

    def unscale(self) -> None:
        if self._scaler is not None:
            unscale(self._scaler, self.optimizers)

    def optimizer_step(self) -> bool:
        if self._scaler is None:
            for optimizer in self.optimizers:
                optimizer.step()
            return True
        before = self._scaler.get_scale()
        if len(self.optimizers) == 1 or not overflowed(self._scaler, self.optimizers):
            for optimizer in self.optimizers:
                self._scaler.step(optimizer)
        self._scaler.update()  # once a window, however many optimizers there are
        return bool(self._scaler.get_scale() >= before)

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
        return WeightAverages(self.model, buffers=buffers)

    def leave_out_step(self) -> None:
        if self._scaler is not None:
            self._scaler.update(self._scaler.get_scale())  # forgets who was unscaled, and moves nothing

    def scale_gradients(self, factor: float) -> None:
        for parameter in self._parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def _parameters(self) -> Iterator[torch.Tensor]:
        seen: set[int] = set()
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    if id(parameter) not in seen:
                        seen.add(id(parameter))
                        yield parameter

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

    def learning_rates(self) -> list[float]:
        rates = [group["lr"] for optimizer in self.optimizers for group in optimizer.param_groups]
        plain = all(type(rate) is float for rate in rates)
        return rates if plain else [float(rate) for rate in rates]  # a tensor's, or an int

    def rng_digest(self) -> int:
        return self._digest()

    def save_model(self, target: Any) -> None:
        storage.write_model(self.model.state_dict(), target)

    def load_model(self, source: Any) -> None:
        held = storage.read(source)
        restoring.check_model(self.model, held)
        self.model.load_state_dict(held)

    def weights(self) -> Any:
        return copy_weights(self.model)

    def put_weights(self, held: Any) -> None:
        put_weights(self.model, held)

    def has_weights(self, held: Any) -> bool:
        return has_weights(self.model, held)

    # -- evaluation ----------------------------------------------------------------------------------------

    def describe(self, dataloader: Any) -> str:
        return described(dataloader, -1)

    def evaluation_batches(self, dataloader: Any) -> Generator[Any, None, None]:
        source = self._evaluated.setdefault(id(dataloader), EvaluationSource(dataloader))
        with closing(source.batches()) as batches:
            try:
                for batch in batches:
                    self.evaluation_ids = source.ids
                    yield batch
            except BaseException:
                self.evaluation_ids = source.ids
                raise

    def release(self, dataloader: Any) -> None:
        source = self._evaluated.pop(id(dataloader), None)
        if source is not None:
            source.close()

    def place(self, metric: Any) -> None:
        if callable(getattr(metric, "to", None)):
            metric.to(self.device)

    def to_host(self, outputs: Any) -> Any:
        return storage.copied(outputs)

    def forked(self) -> AbstractContextManager[Any]:
        return generators.forked()

    @contextmanager
    def evaluating(self, model: Any, eval_mode: bool = True) -> Iterator[None]:
        first = next(model.parameters(), None)
        if first is not None and first.device != self.device:  # no run has moved it yet
            model.to(self.device)
        with undisturbed(model, eval_mode), torch.no_grad(), self._autocast() if self._autocast else nullcontext():
            yield

    def evaluate_fn(self, model: Any, mode: str) -> Callable[[Any], Any]:
        if mode in _LOOKUP:
            first, second = _LOOKUP[mode]
            name = first if hasattr(model, first) else second if hasattr(model, second) else None
            if name == second:
                warnings.warn(f"{type(model).__name__} has no {first}: {second} is used instead", stacklevel=2)
        else:
            name = _method(model, mode, "evaluate_fn")
        return _caller(model, name, self._auto_call, self._compile)

    # -- debugging -----------------------------------------------------------------------------------------

    def debugging(self, deterministic: bool | str, detect_anomaly: bool) -> AbstractContextManager[None]:
        return debugged(deterministic, detect_anomaly, self.device, self._told)

    def profiler(
        self, schedule: Sequence[int] | None, activities: Sequence[Any] | None, ready: Callable[[], Path], options: Any
    ) -> Any:
        return profiling.profiler(schedule, activities, ready, options)

    @contextmanager
    def untouched(self) -> Iterator[None]:
        self.model.to(self.device)
        built, source = self._built, self._source
        with trying.buffers_kept(self.model), trying.data_kept(self._loader):
            self._source = None  # what is read for a trial isn't read from there
            held = self.capture({})
            try:
                yield
            finally:
                self.tidy_up()
                self.restore((held["model"], {**held, "faults": {}}))
                self.restore_generators()
                self._source, self._built, self._staging = source, built, None

    def trial_batches(self, dataloader: Any, seed: int, size: int | None = None) -> Iterator[Any]:
        for batch in trying.batches(dataloader, seed, size):
            yield self.to_device(batch if self.input_mapping is None else self.input_mapping(batch))

    def samples_in(self, dataloader: Any) -> int | None:
        return trying.samples_in(dataloader)

    def set_learning_rate(self, rate: float) -> None:
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                hyperparameters.put(group, {"lr": rate})

    def ran_out_of_memory(self, error: BaseException) -> bool:
        return trying.out_of_memory(error)

    def tidy_up(self) -> None:
        if self._scaler is not None:
            forget_unscaled(self._scaler)
        self.zero_grad()
        trying.give_back_memory()

    # -- snapshots -----------------------------------------------------------------------------------------

    def capture(self, extra: Mapping[str, Any], batch: Any = NO_BATCH) -> dict[str, Any]:
        """Copy model, optimizers, scaler, generators, gradients and the batch in hand to the CPU's memory.

        Optimizer entries are numbered in their order. A batch that isn't plain data is left to be fetched again.
        """
        staging, self._staging = Staging(self._staging), None  # it comes back when this capture is written
        states = generators.capture()
        grads = {n: p.grad for n, p in self.model.named_parameters() if p.grad is not None}
        in_hand = batch is not NO_BATCH
        plain = in_hand and storage.is_plain(batch)
        return {
            "staging": staging,
            "model": staging.copied("model", self.model.state_dict()),
            "optimizers": staging.copied("optimizers", [o.state_dict() for o in self.optimizers]),
            "scaler": None if self._scaler is None else self._scaler.state_dict(),
            "built": self._as_built(),
            "evaluating": [name for name, module in self.model.named_modules() if not module.training],
            "gradients": staging.copied("gradients", grads),
            "generators": states,
            "loader": None if self._source is None else self._source.state(again=in_hand and not plain),
            "batch": storage.copied(batch) if plain else None,
            "batch_ids": storage.copied(self.batch_ids) if storage.is_plain(self.batch_ids) else None,
            "batch_samples": self.batch_samples,
            "has_batch": plain,
            "losses": [] if self._losses is None else self._losses.state(),
            "extra": staging.copied("extra", dict(extra)),
        }

    def save(self, capture: Any, directory: Path) -> dict[str, tuple[int, str]]:
        rest = {key: value for key, value in capture.items() if key not in ("model", "staging")}
        try:
            return {
                "model.pt": storage.write(capture["model"], directory / "model.pt"),
                "rank-0.pt": storage.write(rest, directory / "rank-0.pt"),
            }
        finally:
            self._staging = capture["staging"]

    def size_of(self, capture: Any) -> int:
        return storage.bytes_in(capture)

    def what_is(self, path: Path) -> str:
        return restoring.what_is(path)

    def read(self, directory: Path, *, strict: bool = True) -> tuple[dict[str, Any], Any]:
        model, rest = (restoring.part(directory, name) for name in ("model.pt", "rank-0.pt"))
        restoring.check_entries(rest, () if strict else ("generators",))
        restoring.check_model(self.model, model)
        restoring.check_optimizers(self.optimizers, rest["optimizers"])
        built = self._as_built()["optimizers"]
        restoring.check_values(self.optimizers, rest["optimizers"], rest["built"]["optimizers"], built)
        restoring.check_scaler(self._scaler, rest["scaler"])
        if self._source is not None:
            self._source.check(rest["loader"])
        faults = generators.faults(rest.get("generators"), self.device)
        if faults and strict:
            raise RestoreFault(
                f"{directory}/rank-0.pt: {'; '.join(faults.values())}. Give another snapshot, or run(strict=False), "
                "which leaves these generators as they are"
            )
        states = rest.get("generators")
        held = {**rest, "generators": states if isinstance(states, dict) else {}, "faults": faults}
        return rest["extra"], (model, held)

    def restore(self, held: Any, *, training: bool = True) -> Any:
        model, rest = held
        old, new = rest["built"], self._as_built()
        self.model.load_state_dict(model)
        for i, (optimizer, state) in enumerate(zip(self.optimizers, rest["optimizers"], strict=True)):
            optimizer.load_state_dict(state)
            for group, was, now in zip(optimizer.param_groups, old["optimizers"][i], new["optimizers"][i], strict=True):
                hyperparameters.put(group, hyperparameters.merged(group, was, now) if training else now)
        if not training:
            return NO_BATCH
        if self._scaler is not None:
            self._scaler.load_state_dict(restoring.scaler_state(rest["scaler"], old["scaler"], new["scaler"]))
        for name, parameter in self.model.named_parameters():
            grad = rest["gradients"].get(name)
            parameter.grad = None if grad is None else grad.to(parameter.device)
        if self._losses is not None:
            self._losses.load(rest["losses"])
        evaluating = frozenset(rest["evaluating"])
        for name, module in self.model.named_modules():
            module.training = name not in evaluating
        if self._source is not None:
            self._source.load(rest["loader"])
        self._to_restore = rest["generators"], rest["faults"]
        self.batch_ids, self.batch_samples = rest["batch_ids"], rest["batch_samples"]
        return self.to_device(rest["batch"]) if rest["has_batch"] else NO_BATCH

    def restore_generators(self) -> str:
        if self._to_restore is None:
            return ""
        (states, faults), self._to_restore = self._to_restore, None
        generators.restore(states, but=faults)
        return "; ".join(faults.values())

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


def _device(device: Any, model: nn.Module) -> torch.device:
    if device is None:
        first = next(model.parameters(), None)
        return first.device if first is not None else torch.device("cpu")
    try:
        chosen = torch.device("cuda", device) if type(device) is int else torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise CallerError(f"device {device!r} isn't one: {str(error).splitlines()[0]}") from error
    if chosen.type == "cuda":
        count = torch.cuda.device_count()
        if (chosen.index or 0) >= count or (chosen.index or 0) < 0:
            raise CallerError(f"device {device!r}: this machine has {count} CUDA device{'' if count == 1 else 's'}")
    return chosen


def _method(model: nn.Module, name: str, parameter: str) -> str:
    if not callable(getattr(model, name, None)):
        own = [n for n in dir(type(model)) if not n.startswith("_") and n not in dir(nn.Module)]
        raise CallerError(
            f"{parameter}={name!r}: {type(model).__name__} has no such method. {nearest(name, own or ['forward'])}"
        )
    return name


def _train_fn(model: nn.Module, name: str | None, auto_call: bool) -> Callable[[Any], Any]:
    if name is None:
        name = "train_step" if hasattr(model, "train_step") else None
    else:
        name = _method(model, name, "train_fn")
    return _caller(model, name, auto_call)


def _caller(
    model: nn.Module, name: str | None, auto_call: bool, options: Mapping[str, Any] | None = None
) -> Callable[[Any], Any]:
    """Return `call(batch)` for a method of the model, compiled where there are options for that.

    The forward pass is called through its hooks.
    """
    fn = model if name in (None, "forward") else getattr(model, name)
    called = compiling.compiled(fn, options)
    if not auto_call:
        return called
    return matched(called, f"{type(model).__name__}.{name or 'forward'}", model.forward if fn is model else fn)


def _batch_size(batch: Any) -> int:
    """Guess the samples in a batch whose ids aren't known: the first tensor's first dimension, else 1."""
    stack = [batch]
    while stack:
        value = stack.pop(0)
        if isinstance(value, torch.Tensor):
            return int(value.shape[0]) if value.dim() else 1
        if isinstance(value, Mapping):
            stack.extend(value.values())
        elif isinstance(value, (list, tuple)):
            stack.extend(value)
    return 1
