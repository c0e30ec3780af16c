"""What tests of reliability share: leases that expire in a second, and experiments of seconds."""

import pytest

TRAIN = "{steps: 6, batch: 2, lr: 1e-3, precision: float32, kernel: math, evals: 1}"


@pytest.fixture(autouse=True)
def _short_lease(monkeypatch):
    monkeypatch.setenv("LLAMA_ABLATE_LEASE_S", "1")


@pytest.fixture
def four(experiment_file):
    """An experiment of four runs."""
    return experiment_file(train=TRAIN, measure="[perplexity]")


@pytest.fixture
def one(experiment_file):
    """An experiment of one run."""
    return experiment_file(train=TRAIN, measure="[perplexity]", seeds="1", variants="{}")


@pytest.fixture
def two(experiment_file):
    """An experiment of two short runs of one variant."""
    train = TRAIN.replace("steps: 6", "steps: 3")
    return experiment_file(train=train, measure="[perplexity]", variants="{}")
