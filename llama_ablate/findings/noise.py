"""The memory of noise: what finished experiments show of it, and what a plan is to expect."""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from llama_ablate.config.experiment import ExperimentFile
from llama_ablate.errors import ConfigError
from llama_ablate.evidence.noise import FEWEST, NoiseMemory, Seen
from llama_ablate.evidence.text_error import StandardError
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.findings.rows import grouped
from llama_ablate.results import Results
from llama_ablate.results.layout import experiments_in
from llama_ablate.results.plan_document import (
    PlanDocument,
    PlannedNoise,
    PlannedTable,
    PlannedVariant,
)

OFF = "none"
#: Corpora whose text is drawn, and whose noise is of another kind.
MADE = ("depo", "induction", "lag-copy", "mano", "mqar", "recall")


def seen(experiments: Iterable[Frames]) -> NoiseMemory:
    """Return the noise of the rows of experiments, those of one kind in one table as one.

    Controls have none, as nothing is expected of them. Experiments that share runs of a baseline
    are one, and so are tables of an experiment that share text and baseline.
    """
    rows: list[Seen] = []
    groups: dict[str, str] = {}
    for frames in experiments:
        bases = {
            run.id
            for table in frames.plan.tables
            for run in table.runs
            if run.variant == table.baseline.id
        }
        known = (groups[run] for run in bases if run in groups)
        name = next(known, frames.plan.experiment.name)
        groups |= dict.fromkeys(bases, name)
        tables: dict[tuple[str, str], TableFrames] = {}
        for table in frames.tables:
            tables.setdefault((table.plan.text.fingerprint, table.plan.baseline.id), table)
        rows += [one for table in tables.values() for one in _seen(name, table)]
    return NoiseMemory(tuple(rows))


def _seen(name: str, table: TableFrames) -> Iterator[Seen]:
    if not _is_of_text(table.plan):
        return
    plan, errors, found = table.plan, table.text_errors(), table.differences()
    documents = plan.text.size(table.split)[2]
    told = {label for label, own in found.items() if len(own) > 1 and np.var(own) > 0}
    known = [v for v in plan.variants if not v.role and v.label in told]
    for kind, variants in grouped(known, plan.kind).items():
        each = [found[variant.label] for variant in variants]
        dfs = [len(own) - 1 for own in each]
        texts = [errors[v.id].se ** 2 for v in variants if v.id in errors]
        yield Seen(
            name,
            corpus(plan),
            kind,
            plan.baseline.non_embedding,
            plan.tokens_per_run,
            math.sqrt(np.average([np.var(own, ddof=1) for own in each], weights=dfs)),
            sum(dfs),
            math.sqrt(np.mean(texts) * documents) if texts and documents else math.nan,
        )


def _is_of_text(table: PlannedTable) -> bool:
    """Return whether losses are in nats, and of text that somebody wrote."""
    return not table.has_tokenizers and corpus(table) not in MADE


def corpus(table: PlannedTable) -> str:
    """Return the name of a table's corpus."""
    entry = table.text.source.corpus
    return entry if isinstance(entry, str) else str(entry["name"])


def stated(source: ExperimentFile) -> NoiseMemory | None:
    """Return the memory that an experiment states: the shipped one, none, or that of a folder.

    A folder has results or packs in its folders. Raises ConfigError where those are fewer than
    five, or where one is damaged.
    """
    name = source.experiment.noise
    if name is None:
        return NoiseMemory.shipped()
    if name == OFF:
        return None
    folders = experiments_in(Path(name).expanduser())
    memory = seen(Frames.of(Results.open(folder)) for folder in folders)
    if memory.experiments < FEWEST:
        error = ConfigError(
            f"'{name}' has {memory.experiments} finished experiments with two seeds or more, and a "
            f"memory of noise needs {FEWEST}; allowed: a folder of results or packs, or '{OFF}'",
            ("noise",),
        )
        raise source.locate(error)
    return memory


def expecting(plan: PlanDocument, memory: NoiseMemory | None) -> PlanDocument:
    """Return a plan with what a memory expects of the noise of each row in nats.

    What an experiment of the same name has seen does not count.
    """
    memory = memory and memory.without(plan.experiment.name)
    known: dict[tuple[str, int, int], StandardError | None] = {}  # a grid has few kinds

    def noise(table: PlannedTable, variant: PlannedVariant) -> PlannedNoise | None:
        if memory is None or variant.baseline or variant.role or not _is_of_text(table):
            return None
        like = table.kind(variant), table.baseline.non_embedding, table.tokens_per_run
        if like not in known:
            known[like] = memory.expected(*like)
        found = known[like]
        return PlannedNoise(sd=found.se, df=found.df) if found else None

    return plan.expecting(noise)
