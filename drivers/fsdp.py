"""`driver="torch_fsdp"`: many processes that share one model out (FSDP2's `fully_shard`).

Each rank holds a share of every parameter, of its gradient and of what the optimizers keep of it. The whole of a unit
is gathered when its forward or backward pass comes, and let go after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist

from tachograph.states.errors import CallerError, nearest

from . import sharded_gradients
from .calls import caller_of
from .fsdp_api import FSDPModule, MixedPrecisionPolicy, register_fsdp_forward_method
from .pending import Pending
from .reduction import averaging
from .sharded_weights import ShardedAverages, ShardedWeights
from .sharding import (
    Moved,
    Options,
    add_up,
    alike_on_all,
    check_unused,
    mesh_of,
    policy_of,
    shard,
    sharded_modules,
)
from .spread import local
from .units import units_of

_STEPS = ("train_step", "validate_step", "test_step", "predict_step")
_OPTIONS = ("wrap_policy", "mixed_precision", "mesh", "reshard_after_forward", "find_unused_parameters")


class TorchFSDPDriver(ShardedWeights):
    """Trains one model in many processes, each of which holds a share of it.

    Args:
        model: an `nn.Module`; or one that `fully_shard` was applied to, which is taken as it is.
        device: as `ManyProcesses` takes it.
        wrap_policy: which modules are units, gathered and freed as one: module classes, one or several; or
            `f(module) -> bool`; None: the blocks in the model's `ModuleList`s, and its direct children with a million
            values or more. The model itself always is one.
        mixed_precision: a `MixedPrecisionPolicy`; None: parameters in the dtype of `precision` while a unit is
            gathered, gradients averaged in fp32.
        mesh: a `DeviceMesh` of one dimension, or of two: copies, and shares of each copy (hybrid sharding); or its
            sizes; None: one share for each rank.
        reshard_after_forward: as `fully_shard` takes it.
        find_unused_parameters: some ranks leave parameters unused in a step that others use; they count as zero.
        fsdp_options: any of these five, by their names.
        options: those of `ManyProcesses`.

    Raises:
        CallerError: there is no group of processes, or an argument can't be used.
    """

    keeps_step = True

    def __init__(
        self,
        model: Any,
        device: Any = None,
        *,
        wrap_policy: Any = None,
        mixed_precision: Any = None,
        mesh: Any = None,
        reshard_after_forward: bool | int | None = None,
        find_unused_parameters: bool = False,
        fsdp_options: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        chosen = (wrap_policy, mixed_precision, mesh, reshard_after_forward, find_unused_parameters)
        self._fsdp = {**dict(zip(_OPTIONS, chosen, strict=True)), **_checked(fsdp_options)}
        given = self._fsdp["mixed_precision"]
        if given is not None and not isinstance(given, MixedPrecisionPolicy):
            raise CallerError(
                f"mixed_precision must be a torch.distributed.fsdp.MixedPrecisionPolicy, not {given!r}; "
                "precision='bf16' makes the usual one"
            )
        if isinstance(model, FSDPModule) and any(value not in (None, False) for value in self._fsdp.values()):
            raise CallerError("the model is sharded already: give these options to fully_shard, where that is done")
        super().__init__(model, device, **options)
        self._kind = type(model).__name__.removeprefix("FSDP" if isinstance(model, FSDPModule) else "")
        self._pending: Pending | None = None
        self._waiting = False  # gradients may be waiting for their exchange
        self._moved: Moved | None = None
        self._called: set[str] = set()

    # -- sharding ------------------------------------------------------------------------------------------

    def setup(self, seed: int, whole_digest: bool) -> None:
        self._shard()
        super().setup(seed, whole_digest)

    def _shard(self) -> None:
        """Shard the model, once: all ranks come here at the same time."""
        if self._pending is not None:
            return
        options = self._options()
        if isinstance(self.model, FSDPModule):
            add_up(sharded_modules(self.model), options)  # type: ignore[arg-type]
        else:
            self._shard_anew(options)
        self._units = sharded_modules(self.model)
        self._pending = Pending(self.model)
        for name in {self._train_fn_name, *_STEPS}:
            self._gathers(self.model, name)
        self._train_fn = caller_of(self.model, self._train_fn_name, self._auto_call, self._compile)

    def _options(self) -> Options:
        """Decide on how the model is sharded, or was, and try out whether gradients are averaged then."""
        first: Any = next(self.model.parameters(), None)
        given = getattr(first, "device_mesh", self._fsdp["mesh"])
        self._mesh = mesh_of(given, self.device, self.world_size)
        precision = self._fsdp["mixed_precision"] or policy_of(self.precision.name)
        unused = bool(self._fsdp["find_unused_parameters"])
        wanted = Options(self._mesh, precision, self._fsdp["reshard_after_forward"], unused)
        options = averaging(wanted, self.device, self.ranks)
        if options.sums and self.ranks.first:
            self._told("the ranks' gradients were summed where a mean was asked for: the sums are divided here")
        return options

    def _shard_anew(self, options: Options) -> None:
        check_unused(self.optimizers)
        units = units_of(self.model, self._fsdp["wrap_policy"])
        alike_on_all(self.model, self.device)
        self._moved = Moved(self.model)
        shard(self.model, units, options)
        self._moved.sharded(self.model)
        for optimizer in self.optimizers:
            self._moved.into(optimizer)

    def _gathers(self, model: Any, name: str) -> None:
        """Have a method of the model gather its parameters, as its forward pass does."""
        if name == "forward" or name in self._called or not callable(getattr(model, name, None)):
            return
        method = getattr(model, name)
        register_fsdp_forward_method(model, name)
        if hasattr(method, "__func__"):  # else inspect.signature takes its first parameter for self
            getattr(model, name).__func__.__wrapped__ = method.__func__
        self._called.add(name)

    def fingerprint(self) -> dict[str, Any]:
        told = super().fingerprint()
        told["model"] = told["model"].replace(type(self.model).__name__, self._kind, 1)  # before and after sharding
        return told

    def summary(self, depth: int = 1) -> list[dict[str, Any]]:
        rows = super().summary(depth)
        return [{**row, "kind": row["kind"].removeprefix("FSDP")} for row in rows] if self._units else rows

    # -- training ------------------------------------------------------------------------------------------

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        root: Any = self.model
        root.set_requires_gradient_sync(False)
        self._waiting = True
        try:
            with self.kept_apart():
                yield
        finally:
            root.set_requires_gradient_sync(True)

    def exchange_gradients(self) -> None:
        assert self._pending is not None, "setup() comes first"
        self._pending.exchange(self.ranks)
        self._waiting = False

    def scale_gradients(self, factor: float) -> None:
        super().scale_gradients(factor)
        if self._waiting and self._pending is not None:
            self._pending.scale(factor)

    def zero_grad(self) -> None:
        super().zero_grad()
        if self._waiting and self._pending is not None:
            self._pending.clear()
            self._waiting = False

    def restore(self, held: Any, *, training: bool = True) -> Any:
        batch = super().restore(held, training=training)
        self._waiting = True
        return batch

    def gradient_norm(self, norm_type: float = 2.0) -> torch.Tensor:
        return sharded_gradients.norm(self._parameters(), norm_type, self._mesh)

    def clip_gradients_by_norm(
        self, most: float, parameters: Any = None, *, norm_type: float = 2.0, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        strict = error_if_nonfinite and self._scaler is None
        return sharded_gradients.clip_by_norm(self._own(parameters), most, norm_type, strict, self._mesh)

    def clip_gradients_by_value(self, most: float, parameters: Any = None) -> None:
        super().clip_gradients_by_value(most, self._own(parameters))

    def _own(self, parameters: Any) -> list[Any]:
        """Return what those parameters are now which somebody holds; None: all that are trained."""
        held = list(self._parameters() if parameters is None else parameters)
        return held if self._moved is None else [self._moved.of(parameter) for parameter in held]

    def gradients_are_finite(self) -> bool:
        if self._scaler is not None:
            return True
        grads = [local(p.grad) for p in self._parameters() if p.grad is not None]
        finite = all(bool(torch.isfinite(grad).all()) for grad in grads)
        return not self.ranks.agree(int(not finite))

    def optimizer_step(self) -> bool:
        """Take a step; a gradient scaler learns of an overflow in any rank's share, since it looks at whole tensors."""
        taken = super().optimizer_step()
        self._reshard()  # a forward pass of a listener's own may have left parameters that are old now
        return taken

    def averages(self, *, buffers: bool = False) -> ShardedAverages:
        self._shard()
        self._reshard()
        return ShardedAverages(self.model, buffers=buffers, ranks=self.ranks)

    def tidy_up(self) -> None:
        root: Any = self.model
        if self._units and hasattr(root, "reset_iter_state"):
            root.reset_iter_state()
        self._waiting = True
        super().tidy_up()

    @contextmanager
    def untouched(self) -> Iterator[None]:
        self._shard()
        with super().untouched():
            yield

    # -- evaluation ----------------------------------------------------------------------------------------

    @contextmanager
    def evaluating(self, model: Any, eval_mode: bool = True) -> Iterator[None]:
        """Evaluate the same model on every rank."""
        if model is not self.model:
            with super().evaluating(model, eval_mode):
                yield
            return
        if self.ranks.world_size < dist.get_world_size():
            raise CallerError("a model that is shared out is evaluated by all ranks, and not under rank_zero_call")
        self._shard()
        try:
            with self._with_buffers_of_rank_0(), super().evaluating(model, eval_mode):
                yield
        finally:
            self._reshard()

    def evaluate_fn(self, model: Any, mode: str) -> Callable[[Any], Any]:
        if model is self.model:
            self._gathers(model, mode)
        return super().evaluate_fn(model, mode)


def _checked(options: Mapping[str, Any] | None) -> dict[str, Any]:
    for name in options or ():
        if name not in _OPTIONS:
            raise CallerError(f"torch_fsdp has no option {name!r}. {nearest(str(name), _OPTIONS)}")
    return dict(options or {})


__all__ = ["TorchFSDPDriver"]
