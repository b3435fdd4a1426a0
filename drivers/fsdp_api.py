"""What torch has for sharded models, which older versions haven't got, or have elsewhere."""

from __future__ import annotations

import torch

from tachograph.states.errors import CallerError

try:
    from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
    from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
    from torch.distributed.tensor import DTensor, Replicate, Shard
except ImportError as error:
    raise CallerError(f"driver='torch_fsdp' needs torch 2.6 or newer, and this is {torch.__version__}") from error

__all__ = [
    "DTensor",
    "DeviceMesh",
    "FSDPModule",
    "MixedPrecisionPolicy",
    "Replicate",
    "Shard",
    "fully_shard",
    "init_device_mesh",
    "register_fsdp_forward_method",
]
