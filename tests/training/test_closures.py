"""Optimizers that evaluate a step again do what they do with one micro-batch and one process."""

import os
import socket
import traceback
import warnings

import pytest
import torch
from torch import distributed

from llama_ablate.config.experiment import Train
from llama_ablate.model.decoder import new_model
from llama_ablate.training.compute import Compute, update
from llama_ablate.training.losses import Objective
from llama_ablate.training.optimizers import make_optimizer
from llama_ablate.training.ranks import ALONE, Ranks

MOE = {"name": "moe", "experts": 4, "width": 8, "balance": "loss", "balance_weight": 0.5}
STEPS, BATCH = 6, 8


def weights_after(spec, optimizer, accumulate, ranks=ALONE):
    """Return all weights after some steps in float64, with large changes of the weights."""
    model = new_model(spec(vocab=32, layers=1, feedforward=MOE), 0).double()
    keys = {"optimizer": optimizer, "lr": 0.01, "accumulate": accumulate, "steps": STEPS}
    config = Train.check({"batch": BATCH, **keys})
    objective = Objective(model)
    made = make_optimizer(objective, config)
    wrapped = ranks.wrap(objective)
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        tokens_BT1 = torch.randint(0, 32, (BATCH, 17), generator=generator)
        parts = tokens_BT1.chunk(accumulate)
        update(wrapped, made, parts, config, Compute("cpu", 1, "float32", "math"), ranks)
    return torch.cat([p.detach().flatten() for p in model.parameters()])


@pytest.fixture(params=[{"name": "sam", "rho": 1.0}, {"name": "sophia", "every": 2}], ids=str)
def optimizer(request, plugin):
    plugin(request.param["name"])
    return request.param


def test_micro_batches_change_no_step_that_is_evaluated_again(spec, optimizer):
    whole = weights_after(spec, optimizer, 1)
    assert torch.isfinite(whole).all()
    for accumulate in (2, 4):
        parts = weights_after(spec, optimizer, accumulate)
        torch.testing.assert_close(parts, whole, rtol=0, atol=1e-6)


def test_two_processes_change_no_step_that_is_evaluated_again(spec, optimizer, tmp_path):
    whole = weights_after(spec, optimizer, 1)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    children = []
    for index in range(2):
        if (child := os.fork()) == 0:
            code = 1
            try:
                warnings.simplefilter("ignore")  # as in a process that is not pytest's
                where = f"tcp://127.0.0.1:{port}"
                distributed.init_process_group("gloo", where, rank=index, world_size=2)
                found = weights_after(spec, optimizer, 2, Ranks(index, 2))
                torch.save(found, tmp_path / f"{index}.pt")
                code = 0
            except Exception:  # noqa: BLE001  shown by pytest
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    for index in range(2):
        shared = torch.load(tmp_path / f"{index}.pt")
        torch.testing.assert_close(shared, whole, rtol=0, atol=1e-6)
