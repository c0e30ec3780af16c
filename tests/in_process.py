"""Commands without processes and without pictures, where a test is about neither.

A real grid starts a fork server that imports torch, a process for each run and two for measuring,
and draws ten figures: ten seconds of CPU, where its training takes a tenth of one.
"""

import runpy
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from subprocess import CompletedProcess

import pytest

from llama_ablate.commands.cli import main
from llama_ablate.config import plugins
from llama_ablate.data.tokenizer import TOKENIZERS
from llama_ablate.launch import local, measurement, processes, worker
from llama_ablate.launch.environment import environment
from llama_ablate.launch.queue import Gone, News
from llama_ablate.measure import METRICS
from llama_ablate.model import counts
from llama_ablate.model.components import REGISTRIES
from llama_ablate.report import page, pictures
from llama_ablate.training.losses import LOSSES
from llama_ablate.training.optimizers import OPTIMIZERS, optimizer_bytes


class Inline:
    """A launcher without processes: a run is done when it is submitted."""

    slots = 1

    def __init__(self, store, *_device_and_workers):
        self._store, self._news = store, News()

    def submit(self, runs):
        for run in runs:
            self._news.gone.append(Gone(run, f"ended {worker.run(self._store.root, run)}"))

    def poll(self):
        news, self._news = self._news, News()
        return news

    def stop(self):
        pass


@contextmanager
def in_process(*, figures=False):
    """Let commands train, measure and report inside, in this process and without pictures.

    With `figures`, these are drawn nevertheless, and saved as empty files.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "warm", lambda: None)
        patch.setattr(processes, "call", _call)
        for name in ("PROCESSES", "MAX_PROCESSES"):  # each takes speeds again and again
            patch.setattr(measurement, name, 2)
        patch.setattr(local, "Local", Inline)
        if figures:
            patch.setattr(pictures, "write", save_nothing)
        else:
            patch.setattr(page, "_draw", draw_nothing)
        yield


@contextmanager
def own_registries():
    """Let what is registered or loaded inside be forgotten, as what a process has of its own."""
    with pytest.MonkeyPatch.context() as patch:
        for registry in (*REGISTRIES.values(), METRICS, OPTIMIZERS, LOSSES, TOKENIZERS):
            for kind in ("_components", "_schemas"):
                patch.setattr(registry, kind, dict(getattr(registry, kind)))
        patch.setattr(METRICS, "_kinds", dict(METRICS._kinds))
        patch.setattr(plugins, "_loaded", {})
        _forget_counts()
        yield
    _forget_counts()


def _forget_counts():
    optimizer_bytes.cache_clear()
    counts.forget()
    environment.cache_clear()  # it has the plug-ins of the command before


def run_in_process(file, results, *options, figures=False):
    """Do what the command `run` does, without processes and pictures; return its exit code."""
    with in_process(figures=figures):
        return main(["run", str(file), "--results", str(results), "--device", "cpu", *options])


def run_script(path, *words):
    """Do what `python path words` does; return its exit code and what it prints."""
    out, error, code = StringIO(), StringIO(), 0
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(error):
        patch.setattr("sys.argv", [str(path), *map(str, words)])
        try:
            runpy.run_path(str(path), run_name="__main__")
        except SystemExit as ended:
            code = ended.code
    return CompletedProcess(words, code, out.getvalue(), error.getvalue())


def _call(task, *arguments, log, report=lambda _value: None, anew=False):  # noqa: ARG001
    """Do what `processes.call` does in a fresh process."""
    log.parent.mkdir(parents=True, exist_ok=True)
    log.touch()
    return task(report, *arguments)


def save_nothing(*_given, **_options):
    """Return a file in which nothing is drawn."""
    return b'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"/>'


def draw_nothing(_pictures, _folder=None):
    """Draw none of the pictures of a page."""
    return iter(())
