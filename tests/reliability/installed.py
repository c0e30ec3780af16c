"""`llama-ablate` with a module's `install` done first, in its own process and in its workers'.

A worker comes from a fork server, and imports no script of its launcher.
"""

from functools import partial
from importlib import import_module

from llama_ablate.commands.cli import script
from llama_ablate.launch import processes
from llama_ablate.launch.processes import _child as real


def script_with(module):
    """Run the command that the process was started with."""
    import_module(module).install()
    processes._child = partial(child, module)
    script()


def child(module, *arguments):
    """Do what a worker's process does."""
    import_module(module).install()
    real(*arguments)
