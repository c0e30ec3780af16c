"""Data-parallel training: several processes (ranks) share the batches of one run.

Li et al. 2020 (arXiv:2006.15704): each rank has the whole model; gradients are averaged during the
backward pass. The first rank makes all decisions, and is the only rank that writes to disk.
"""

import os
import sys
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True)
class Ranks:
    """Rank of this process among the processes that train the same run."""

    index: int = 0
    count: int = 1

    @property
    def first(self) -> bool:
        """True on the first rank, which decides, reports and writes."""
        return self.index == 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """Wrap a model so that its gradients are averaged over all ranks."""
        if self.count == 1:
            return model
        # All ranks start from the same seed or checkpoint and apply the same updates, so weights
        # and buffers need no broadcast.
        return nn.parallel.DistributedDataParallel(model, init_sync=False, broadcast_buffers=False)

    def share(self, batch: Tensor) -> Tensor:
        """Return this rank's rows of a batch, whose size is divisible by the rank count."""
        return batch.chunk(self.count)[self.index]

    def mean(self, value: Tensor) -> Tensor:
        """Average a tensor over the ranks, in place if there are several."""
        if self.count > 1:
            dist.all_reduce(value)
            value /= self.count
        return value

    def agreed(self, *flags: bool) -> tuple[bool, ...]:
        """Broadcast the first rank's flags, so that all ranks act alike."""
        if self.count == 1:
            return flags
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        decided = torch.tensor(flags, device=device)
        dist.broadcast(decided, 0)
        return tuple(bool(flag) for flag in decided)

    def leave(self) -> None:
        """End the process group."""
        if self.count > 1:
            dist.destroy_process_group()


ALONE = Ranks()


def join() -> Ranks:
    """Join the process group of torchrun; return a single rank outside of torchrun."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return Ranks()
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    elif sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
    dist.init_process_group("nccl" if cuda else "gloo")
    return Ranks(dist.get_rank(), dist.get_world_size())


def is_lost(error: Exception) -> bool:
    """Return whether an error means that another rank has died."""
    return isinstance(error, dist.DistError) or "gloo" in str(error).lower()
