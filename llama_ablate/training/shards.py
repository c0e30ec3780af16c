"""Sharded training: each rank keeps a part of weights, gradients and the optimizer's state.

Zhao et al. 2023 (arXiv:2304.11277), by torch's `fully_shard`: a layer's weights are gathered for
its forward and its backward pass and then let go; embedding and output head stay together from the
forward to the backward pass. Checkpoints hold whole tensors, so that any number of ranks can go on
from them. Torch's modules are imported where they are needed: they take two seconds.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map

from llama_ablate.training.losses import Objective


def is_part(value: Any) -> bool:
    """Return whether a value is a tensor that is cut over the ranks."""
    return hasattr(value, "full_tensor")


def joined(value: Any) -> Tensor:
    """Return a tensor whole, where it is cut: all ranks call it together."""
    full: Tensor = value.full_tensor() if is_part(value) else value
    return full


def shard(objective: Objective, device: str) -> Objective:
    """Cut the weights of an objective over all ranks, in place, and return it on the device.

    The model can be called by all ranks together, also alone: `model.hidden` gathers what it needs.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(device, (dist.get_world_size(),))
    model = objective.model
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    # What reads the output head calls `logits`, before and after the layers' backward passes.
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    register_fsdp_forward_method(model, "hidden")
    fully_shard(objective, mesh=mesh)
    return objective


def whole(values: Any, keep: bool = True) -> Any:
    """Return nested values with each cut tensor whole, in the memory of the CPU.

    All ranks call it together; those that do not `keep` the tensors get None in their place.
    """

    def gathered(value: Any) -> Any:
        if not is_part(value):
            return value
        full = joined(value)
        return full.cpu() if keep else None

    return tree_map(gathered, values)


def parts(values: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return whole tensors cut as those of the same names are, where those are."""
    return {name: _part(value, like[name]) for name, value in values.items()}


def optimizer_parts(
    values: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return an optimizer's state with its tensors cut as the parameters of its groups are."""
    parameters = [p for group in groups for p in group["params"]]
    state = {
        i: {key: _part(value, parameters[i]) for key, value in own.items()}
        for i, own in values["state"].items()
    }
    return {**values, "state": state}


def _part(value: Any, like: Tensor) -> Any:
    """Return a rank's part of a tensor; every rank has read all of it from the same file."""
    if not is_part(like) or not isinstance(value, Tensor) or value.shape != like.shape:
        return value
    from torch.distributed.tensor import distribute_tensor

    cut: Any = like
    return distribute_tensor(value, cut.device_mesh, cut.placements, src_data_rank=None)
