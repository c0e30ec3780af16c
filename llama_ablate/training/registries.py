"""Registries of training components, by their key in the `train` section."""

from llama_ablate.config.registry import Registry
from llama_ablate.training.losses import LOSSES
from llama_ablate.training.optimizers import OPTIMIZERS
from llama_ablate.training.schedules import SCHEDULES

REGISTRIES: dict[str, Registry] = {
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "losses": LOSSES,
}
