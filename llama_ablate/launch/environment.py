"""Records of runs, with their software and hardware: versions, commit, processor, GPU."""

import os
import platform
import subprocess
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from llama_ablate import __version__
from llama_ablate.config import plugins
from llama_ablate.results.plan_document import PlanDocument
from llama_ablate.results.record import Environment, Record
from llama_ablate.training.compute import Compute

_PACKAGES = ("numpy", "datasets", "tokenizers")


@cache
def environment() -> Environment:
    """Return software versions, commit and hardware, without names of users, hosts or folders."""
    return {
        "packages": {
            "llama-ablate": __version__,
            "torch": str(torch.__version__),  # with the build, which a wheel's metadata may lack
            **{name: _version(name) for name in _PACKAGES},
        },
        "code": commit(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": cores(),
        "plugins": {Path(name).name: digest for name, digest in plugins.loaded().items()},
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def commit() -> str | None:
    """Return the git commit of the source tree; None for an installed package.

    A plus is appended if the tree has uncommitted changes.
    """
    folder = Path(__file__).parents[2]
    if not (folder / ".git").exists():
        return None
    try:
        command = ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--abbrev=10"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=True)  # noqa: S603  fixed words
        return done.stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def make_record(plan: PlanDocument, run_id: str, compute: Compute, **measured: Any) -> Record:
    """Return the record of a planned run on this machine; `measured` has its other fields."""
    run, table = plan.runs[run_id], plan.table_of(run_id)
    variant = table.variant(run.variant)
    return Record(
        id=run_id,
        label=variant.label,
        variant=variant.id,
        seed=run.seed,
        model=variant.model,
        train=run.train_config(plan.experiment.train).model_dump(mode="json"),
        data=table.text_of(variant).fingerprint,
        compute=compute.to_dict(),
        environment=environment(),
        **measured,
    )
