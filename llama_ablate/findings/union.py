"""Union of experiments that share a baseline and a text, as one comparison table.

Each variant is still compared with the baseline's runs of its own experiment, of the same seed,
machine and precision. All rows form one family: the intervals are simultaneous over the rows of all
experiments. Experiments with other training settings answer another question, and are refused.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import pandas as pd

from llama_ablate.config.labels import entry_text
from llama_ablate.config.schema import Experiment
from llama_ablate.errors import ConfigError
from llama_ablate.files.strict_json import to_json
from llama_ablate.findings.frames import Frames, mark_ends
from llama_ablate.findings.outcomes import correct_outcomes
from llama_ablate.findings.table import Table
from llama_ablate.results.plan_document import PlanDocument, PlannedTable, PlannedVariant
from llama_ablate.terminal import listed

#: Keys of `train` that are compared separately, or that do not change what a model learns.
_NOT_LEARNED = ("tokens", "steps", "timeout_s", "evals", "branches", "precision", "kernel")


@dataclass(frozen=True, eq=False)
class UnionFrames(Frames):
    """Results of several experiments, joined into one."""

    tables: tuple[Table, ...]
    whole: tuple[Frames, ...]
    #: Sentences on the tables that match no table of the first experiment.
    left_out: tuple[str, ...]

    @property
    def experiments(self) -> list[Frames]:
        """Joined experiments, each limited to the tables that the union uses."""
        used = {id(part) for table in self.tables for part in table.parts}
        return [
            replace(frames, tables=tuple(table for table in frames.tables if id(table) in used))
            for frames in self.whole
        ]


def union(experiments: Sequence[Frames]) -> UnionFrames:
    """Join experiments: each table of the first with the matching tables of the others.

    The result has the tables of the first experiment that have a match in every other experiment.
    Raises ConfigError, naming the difference, if there is no such table.
    """
    every = _renamed(experiments)
    first, others = every[0], every[1:]
    tables: list[list[Table]] = []
    for table in first.tables:
        fitted = [_fitting(table, other) for other in others]
        fitting = [fit for fit in fitted if fit is not None]
        tables += [[table, *fitting]] * (len(fitting) == len(others))
    if not tables:
        why = next(filter(None, (_difference(first.table, other.table) for other in others)))
        raise ConfigError(f"{why}: no table of both")
    plan = _plan(every, tables)
    joined = zip(plan.tables, tables, strict=True)
    return UnionFrames(
        plan,
        " + ".join(frames.root for frames in every),
        tuple(_union_table(table, plan.experiment, parts) for table, parts in joined),
        (),
        "",
        first.environment,
        first.compute,
        lambda run: next(filter(None, (frames.folder(run) for frames in every)), None),
        tuple(every),
        tuple(
            f"Left out, as no table of the others fits it: '{table.plan.name}' of "
            f"'{table.experiment.name}'."
            for frames in every
            for table in frames.tables
            if all(table is not part for parts in tables for part in parts)
        ),
    )


def remarks(frames: UnionFrames) -> list[str]:
    """List the limits of comparing rows from different experiments."""
    sentences = []
    for table in frames.tables:
        rows = len(table.plan.variants) - 1
        sentences.append(
            "Each row is paired by seed with the baseline of its own experiment, and speeds are "
            f"ratios to it; the intervals hold for all {rows} rows at once."
        )
        for what in table.machines:
            machines = [", ".join(sorted({*part.machines.get(what, ())})) for part in table.parts]
            if len({*machines}) > 1:
                by_experiment = _by_experiment(table.parts, machines)
                sentences.append(f"Made with different {what}: {by_experiment}.")
    return [*dict.fromkeys(sentences), *frames.left_out]


def _by_experiment(parts: Sequence[Table], values: Sequence[str]) -> str:
    names: dict[str, list[str]] = {}
    for part, value in zip(parts, values, strict=True):
        names.setdefault(value, []).append(f"'{part.experiment.name}'")
    return "; ".join(f"{value} in {listed(where)}" for value, where in names.items())


def _difference(a: Table, b: Table) -> str:
    """Return the first difference that forbids joining two tables; "" for none."""
    for mine, other in zip(_list_requirements(a), _list_requirements(b), strict=True):
        if mine.value != other.value:
            return f"{mine.what} differ: {_first([mine.details, other.details], (a, b))}"
    for part in (a, b):
        if len(part.experiment.looks) > 1:
            return (
                f"the seeds of '{part.experiment.name}' come in looks, whose intervals count the "
                "rows of its own tables alone"
            )
    return ""


class Requirement(NamedTuple):
    """Value in which joined tables must agree, with details that explain a difference."""

    what: str
    value: object
    details: Mapping[str, object]


def _list_requirements(table: Table) -> list[Requirement]:
    plan, base = table.plan, table.plan.baseline
    model = {**base.model, **{f"train.{key}": value for key, value in base.train.items()}}
    read = {"evaluation": plan.read_as, "fingerprint": plan.text.fingerprint}
    text = {**plan.text.source.model_dump(mode="json"), **read}
    train = _train_config(table)
    return [
        Requirement("the baselines", base.id, model),
        Requirement("the units of losses", table.unit, {"unit": table.unit.full}),
        Requirement("the texts", plan.evaluated_on, text),
        Requirement("the train settings", train, train),
    ]


def _fitting(table: Table, other: Frames) -> Table | None:
    """Return the table of `other` that can be joined to `table`; None without any.

    A table with the same size matching is preferred.
    """
    fits = [other_table for other_table in other.tables if not _difference(table, other_table)]
    fits.sort(key=lambda one: one.plan.match != table.plan.match)
    return fits[0] if fits else None


def _train_config(table: Table) -> dict[str, object]:
    """Return the train config that all runs of a table share."""
    keys = table.plan.baseline.train.keys()
    run = next(run for run in table.plan.runs if run.variant == table.plan.baseline.id)
    shared = {k: v for k, v in run.train.items() if k not in run.tuned and k not in keys}
    return {
        **table.experiment.train.with_changes(shared).identity(*_NOT_LEARNED),
        "steps": table.plan.steps,
        "budget": table.plan.budget,
        "tune": to_json(table.experiment.tune),
    }


def _first(values: Sequence[Mapping[str, object]], parts: Sequence[Table]) -> str:
    """Name the first key in which two mappings differ, with both values."""
    for key in [*values[0], *values[1]]:
        texts = [f"{entry_text(config.get(key, 'default')):.80}" for config in values]
        if texts[0] != texts[1]:
            return f"{key} is {_by_experiment(parts, texts)}"
    return f"so say the hashes of {_by_experiment(parts, ['one', 'the other'])}"


def _renamed(experiments: Sequence[Frames]) -> list[Frames]:
    """Return the experiments with distinct names; a second `name` becomes `name (2)`."""
    taken: Counter[str] = Counter()
    every = []
    for frames in experiments:
        name = frames.plan.experiment.name
        taken[name] += 1
        every.append(frames if taken[name] == 1 else _named(frames, f"{name} ({taken[name]})"))
    return every


def _named(frames: Frames, name: str) -> Frames:
    experiment = frames.plan.experiment.model_copy(update={"name": name})
    return replace(
        frames,
        plan=frames.plan.model_copy(update={"experiment": experiment}),
        tables=tuple(replace(table, experiment=experiment) for table in frames.tables),
    )


def _plan(every: Sequence[Frames], parts: Sequence[Sequence[Table]]) -> PlanDocument:
    """Return the plan of the union: a list of variants, without design and hypotheses."""
    first = every[0].plan.experiment
    margins = {frames.plan.experiment.margin for frames in every}
    experiment = first.model_copy(
        update={
            "name": " + ".join(frames.plan.experiment.name for frames in every),
            "question": "",
            "variants": first.variants.model_copy(update={"design": "list"}),
            "hypotheses": [],
            "margin": first.margin if len(margins) == 1 else None,
        }
    )
    tables = [_planned(part) for part in parts]
    return every[0].plan.model_copy(update={"experiment": experiment, "tables": tables})


def _planned(parts: Sequence[Table]) -> PlannedTable:
    variants: dict[str, PlannedVariant] = {}
    labels: set[str] = set()
    for part in parts:
        for variant in part.plan.variants:
            if variant.id not in variants:
                label = variant.label
                if label in labels:
                    label = f"{label} ({part.experiment.name})"
                labels.add(label)
                changes = {"label": label, "levels": {}, "covers": []}
                variants[variant.id] = variant.model_copy(update=changes)
    runs = {run.id: run for part in reversed(parts) for run in part.plan.runs}
    return parts[0].plan.model_copy(
        update={"variants": [*variants.values()], "runs": [*runs.values()]}
    )


def _union_table(plan: PlannedTable, experiment: Experiment, parts: Sequence[Table]) -> Table:
    """Join tables into one with the variants and runs of all, each run once."""
    labels = {variant.id: variant.label for variant in plan.variants}

    def curve(run: str) -> Sequence[Mapping[str, float]]:
        return next((points for part in parts if (points := part.curve(run))), [])

    runs = _take_each_once(pd.concat([part.planned for part in parts], ignore_index=True))
    runs = runs.assign(label=runs["variant"].map(labels))
    measured, attempts, taken = [], [], {""}  # speeds have no run and stay with their experiment
    for part in parts:
        measured.append(part.measured[~part.measured["run"].isin(taken)])
        attempts.append(part.attempts[~part.attempts["run"].isin(taken)])
        taken |= {*part.planned.loc[part.planned["outcome"].ne("pending"), "id"]}

    def join(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
        joined = pd.concat(frames, ignore_index=True)
        return joined.assign(label=joined["variant"].map(labels))

    return Table(
        plan,
        experiment,
        mark_ends(correct_outcomes(runs, curve, [plan])),
        join(measured),
        join(attempts),
        pd.concat([part.machines for part in parts], ignore_index=True),
        curve,
        parts=tuple(parts),
    )


def _take_each_once(runs: pd.DataFrame) -> pd.DataFrame:
    """Return each run once: its first copy that has ended, or its first copy if none has ended."""
    ended_first = runs.sort_values("outcome", key=lambda of: of.eq("pending"), kind="stable")
    return ended_first.drop_duplicates("id").sort_index(ignore_index=True)
