"""How much memory is free where a model computes."""

import psutil
import torch


def free_bytes(device: torch.device | str) -> int:
    """Return the bytes that are free on a GPU, or to processes of this machine."""
    if torch.device(device).type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return int(psutil.virtual_memory().available)
