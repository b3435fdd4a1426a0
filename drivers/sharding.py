"""Sharding a model with FSDP2's `fully_shard`: over which mesh, how, and what moves along.

Sharding gives a module new parameters. The optimizers were built over the old ones, so theirs are exchanged in place;
groups, their values and their order stay what they are.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch import nn

from tachograph.states.errors import CallerError

from .fsdp_api import DeviceMesh, FSDPModule, MixedPrecisionPolicy, fully_shard, init_device_mesh


def mesh_of(mesh: Any, device: torch.device, world_size: int) -> DeviceMesh:
    """Return the mesh that a model is sharded over.

    Args:
        mesh: a `DeviceMesh` of one dimension, or of two: copies, and shares of each copy; or its sizes, (copies,
            shares); None: one share for each rank.
        device: of this rank.
        world_size: of all ranks.

    Raises:
        CallerError: it isn't one, or leaves out ranks.
    """
    if mesh is None:
        return init_device_mesh(device.type, (world_size,), mesh_dim_names=("shard",))
    sizes = mesh.shape if isinstance(mesh, DeviceMesh) else mesh
    plain = isinstance(sizes, (tuple, list)) and all(isinstance(size, int) for size in sizes)
    if not plain or len(sizes) not in (1, 2) or torch.Size(sizes).numel() != world_size:
        raise CallerError(
            f"mesh={mesh!r} can't be used: give a DeviceMesh or sizes (shares,) or (copies, shares), whose product is "
            f"the {world_size} processes that there are"
        )
    if isinstance(mesh, DeviceMesh):
        return mesh
    return init_device_mesh(device.type, tuple(mesh), mesh_dim_names=("replicate", "shard")[-len(mesh) :])


@attrs.frozen
class Options:
    """How a model is sharded.

    Attributes:
        mesh: over what.
        precision: the mixed precision of each unit.
        reshard_after_forward: as `fully_shard` takes it.
        find_unused: some ranks may leave parameters unused in a step that others use.
        sums: this build's averaging was found wrong, so that sums are divided here.
    """

    mesh: DeviceMesh
    precision: MixedPrecisionPolicy
    reshard_after_forward: bool | int | None = None
    find_unused: bool = False
    sums: bool = False


def shard(model: nn.Module, units: Sequence[nn.Module], options: Options) -> None:
    """Shard a model over a mesh, unit by unit; its parameters are others then.

    Batch norms are units of their own, whose parameters aren't cast: their statistics aren't either.

    Raises:
        CallerError: torch refuses it; the reason is in the message.
    """
    plain = attrs.evolve(options, precision=MixedPrecisionPolicy())
    held = set(units)
    try:
        for module in reversed(list(model.modules())):
            norm = isinstance(module, nn.modules.batchnorm._BatchNorm) and module.affine
            if module in held or module is model or (norm and options.precision.param_dtype is not None):
                _shard(module, plain if norm else options)
    except (ValueError, AssertionError, NotImplementedError) as error:
        raise CallerError(f"{type(model).__name__} can't be sharded: {error}") from error


def _shard(module: nn.Module, options: Options) -> None:
    sharded = fully_shard(
        module,
        mesh=options.mesh,
        reshard_after_forward=options.reshard_after_forward,
        mp_policy=options.precision,
    )
    add_up([sharded], options)
    if options.find_unused:
        sharded.set_reduce_scatter_unused_params(True, recurse=False)


def add_up(units: Sequence[FSDPModule], options: Options) -> None:
    """Have units add gradients up and divide the sum, where a mean isn't to be had."""
    for unit in units if options.sums else ():
        unit.set_force_sum_reduction_for_comms(True)


def policy_of(precision: str) -> MixedPrecisionPolicy:
    """Return the mixed precision of "fp32", "bf16" or "fp16"; autocast chooses that of each operation, as elsewhere."""
    if precision == "fp32":
        return MixedPrecisionPolicy()
    dtype = torch.bfloat16 if precision == "bf16" else torch.float16
    return MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False)


def sharded_modules(model: nn.Module) -> list[FSDPModule]:
    """List the units of a sharded model, itself included."""
    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def alike_on_all(model: nn.Module, device: torch.device) -> None:
    """Give every rank the parameters and buffers of rank 0, one by one."""
    for tensor in [*model.parameters(), *model.buffers()]:
        if not tensor.is_meta:
            sent = tensor.detach().to(device)
            dist.broadcast(sent, src=0)
            tensor.detach().copy_(sent)


class Moved:
    """Which parameter took the place of which.

    Args:
        model: before it is sharded.
    """

    def __init__(self, model: nn.Module) -> None:
        self._old = {name: weakref.ref(parameter) for name, parameter in model.named_parameters()}
        self._new: dict[int, tuple[weakref.ref[nn.Parameter], nn.Parameter]] = {}

    def sharded(self, model: nn.Module) -> None:
        """Take the parameters of the sharded model."""
        for name, parameter in model.named_parameters():
            old = self._old[name]
            self._new[id(old())] = old, parameter

    def of(self, parameter: Any) -> Any:
        """Return the parameter that took this one's place; itself if none did."""
        old, new = self._new.get(id(parameter), (None, None))
        return new if old is not None and old() is parameter else parameter

    def into(self, optimizer: Any) -> None:
        """Have an optimizer go on with the new parameters: in place, group by group."""
        for group in optimizer.param_groups:
            group["params"][:] = map(self.of, group["params"])


def check_unused(optimizers: Sequence[Any]) -> None:
    """Refuse optimizers that have stepped already: what they keep is of the whole parameters."""
    for optimizer in optimizers:
        if optimizer.state:
            raise CallerError(
                f"the {type(optimizer).__name__} has taken steps on the model before it is sharded, and what it keeps "
                "of them can't be carried over: give a new one, or load a snapshot of driver='torch_fsdp'"
            )


__all__ = [
    "Moved",
    "Options",
    "add_up",
    "alike_on_all",
    "check_unused",
    "mesh_of",
    "policy_of",
    "shard",
    "sharded_modules",
]
