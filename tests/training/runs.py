"""Short runs of a small model, and what they have in common."""

from functools import partial

import torch

from llama_ablate.config.experiment import Train
from llama_ablate.model.decoder import new_model
from llama_ablate.training.compute import Compute
from llama_ablate.training.loop import train

COMPUTE = Compute("cpu", 1, "float32", "math")
WSD = {"schedule": "wsd", "warmup": 0, "decay": 0.25}
MOE = {"name": "moe", "experts": 4, "width": 8, "balance_weight": 0.5}
BIASED = {"name": "moe", "experts": 4, "width": 8, "balance": "bias", "balance_rate": 0.01}
#: A loss without layers, and that of a plug-in, with some.
BOTH = ["z_loss", "multi_token"]


def trained(
    spec, tokens, compute=COMPUTE, *, steps=20, seed=0, saved=None, stop=None, sizes=(), **config
):
    """Train a model of a layer; return it, and how that ended."""
    model = new_model(spec(vocab=256, layers=1, **dict(sizes)), seed)
    keys = Train.check({"steps": steps, "batch": 4, "lr": 3e-3, "evals": 4, **config})
    more = {"compute": compute, "saved": saved, "stop": stop or (lambda: False)}
    return model, train(model, tokens, keys, steps=steps, seed=seed, **more)


def stop_after(calls):
    """Return a function that asks to stop after so many calls: a branch, and the run itself."""
    return partial(next, iter([False] * calls + [True] * 2))


def numbers(curve):
    return [{k: v for k, v in row.items() if k != "train_s"} for row in curve]


def same(one, other):
    states = one.state_dict(), other.state_dict()
    return all(torch.equal(states[1][name], value) for name, value in states[0].items())
