"""What tests of launchers share: the battery's two tiers, and the command `run` as a process."""

import os

import pytest

from tests import tally
from tests.commands import command
from tests.reliability.harness import there

#: Clusters take minutes: they are started where they are asked for.
WANTED = tally.FILE or os.environ.get("LLAMA_ABLATE_LAUNCHERS")


def pytest_collection_modifyitems(items):
    skip = pytest.mark.skip(reason="starts a cluster: part of `make launchers` and `make torture`")
    for item in items:
        if item.path.name in ("test_ray.py", "test_slurm.py") and not WANTED:
            item.add_marker(skip)


@pytest.fixture(autouse=True)
def _timeout(monkeypatch):
    """A busy machine must beat in it."""
    monkeypatch.setenv("LLAMA_ABLATE_LEASE_S", "5")


@pytest.fixture
def launch(launch):
    """Start the command `run`; its runs write checkpoints often."""

    def start(file, results, *options, **env):
        words = command(file, results, "--checkpoint-every", "0.2", *options)
        return launch(words, env=os.environ | env)

    return start


@pytest.fixture
def checkpoints():
    """List the checkpoints that lie in results in which others are at work."""
    return lambda root: there(root, "working/*/checkpoint-*")
