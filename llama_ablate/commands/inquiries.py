"""Inquiries: files that ask of identities, counts and timings, and train nothing."""

import math
from argparse import Namespace
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from llama_ablate.commands.answer import Answer
from llama_ablate.errors import ConfigError

if TYPE_CHECKING:
    from llama_ablate.bench.timing import Table


def outline(options: Namespace) -> Answer:
    """Say what an inquiry would look at."""
    from llama_ablate.inquiry import load

    asked, _ = load(options.file)
    lines = [f"{asked.name}: {asked.question}", "", f"{len(asked.findings)} findings, no training"]
    if asked.bench:
        lines.append(f"benchmark {asked.bench.name}, {asked.bench.rounds} rounds")
    return Answer("\n".join(lines), asked.model_dump(mode="json"))


def inquire(options: Namespace) -> Answer:
    """Look at everything that an inquiry asks for, and write it down."""
    import pandas as pd

    from llama_ablate.inquiry import ask, load
    from llama_ablate.launch.environment import environment
    from llama_ablate.report import claimed, tables
    from llama_ablate.results import folders

    for given, flag in (
        (options.sets, "--set"),
        (options.workers, "--workers"),
        (options.launcher != "local", "--launcher"),
        (options.ray_address, "--ray-address"),
        (options.slurm, "--slurm"),
        (options.keep_weights != "all", "--keep-weights"),
    ):
        if given:
            raise ConfigError(f"{flag}: an inquiry trains nothing, and takes no such option")
    asked, marked = load(options.file)
    timed: list[Table] = []
    setup = None

    def ratio(table: str, case: str, to: str) -> tuple[float, float, float]:
        found = next((t for t in timed if t.title == table), None)
        if found is None or not {case, to} <= found.seconds.keys():
            return math.nan, math.nan, math.nan
        of = found.ratio(case, to)
        return of.value, of.low, of.high

    try:
        if asked.bench:
            timed, setup = _timed(asked.bench, options.device)
        rows = ask(asked, ratio)
    except ConfigError as error:
        raise marked.locate(error) from None
    values: dict[str, Any] = {
        "name": asked.name,
        "question": asked.question,
        "findings": rows,
        "setup": setup,
        "tables": [table.to_dict() for table in timed],
        "environment": environment(),
    }
    cells = pd.DataFrame(
        {
            "claim": [row["claim"] for row in rows],
            "source": [row["source"] for row in rows],
            "source said": [row["said"] for row in rows],
            "measured": [claimed.number(row) for row in rows],
            "finding": [row["finding"] for row in rows],
        }
    )
    page = f"# {asked.name}\n\n{asked.question}\n\n{tables.markdown(cells)}"
    report = folders.keep_inquiry(options.results / asked.slug, values, page)
    return Answer(f"{tables.text(cells)}\n\nreport: {report}", values)


def _timed(bench: Any, device: str) -> tuple[list["Table"], dict[str, Any]]:
    from llama_ablate.bench import run
    from llama_ablate.bench.timing import Setup
    from llama_ablate.training.compute import pick_device

    setup = Setup(device=pick_device(device), **bench.model_dump(exclude={"name"}))
    try:
        found, _ = run(bench.name, setup)
    except ConfigError as error:
        raise error.under("bench") from None
    return found, asdict(setup)
