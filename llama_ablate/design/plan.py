"""Make the plan of an experiment: prepare tokens, count variants, build tables and runs."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from llama_ablate import __version__
from llama_ablate.config.experiment import Data, Experiment, ExperimentFile
from llama_ablate.config.labels import name_text
from llama_ablate.config.schema import Reading, Size
from llama_ablate.design import checks
from llama_ablate.design.matching import Cost
from llama_ablate.design.plan_texts import plan_own_text, plan_text
from llama_ablate.design.runs import plan_steps, points, tokens_per_step, with_runs
from llama_ablate.design.variants import count_at, find_place, resolve_train, variants_of
from llama_ablate.errors import ConfigError, Where, under
from llama_ablate.model.counts import count, exact, states
from llama_ablate.results.plan_document import FORMAT, PlanDocument, PlannedTable, PlannedText

#: Function that measures the seconds of one training step of each variant, side by side.
StepTimes = Callable[[PlannedTable], Sequence[float]]

_COSTS: dict[str, Cost] = {
    "parameters": lambda spec: count(spec).non_embedding,
    "total": lambda spec: count(spec).parameters,
    "active_parameters": lambda spec: count(spec).active_non_embedding,
    "flops": lambda spec: exact(spec, "flops_per_token"),
    "kv_bytes": lambda spec: exact(spec, "kv_bytes_per_token"),
}
#: Places of mistakes that a model size of `sizes` can cause.
_SIZE_PLACES = [("model",), *(("model", key) for key in Size.model_fields)]


def _cost(match: str, experiment: Experiment) -> Cost | None:
    """Return the function that counts a spec's cost for `match`, or None for "none"."""
    if match == "state_bytes":
        context = experiment.variants.match_context or experiment.model.context
        return lambda spec: exact(spec, "state_bytes") and int(states(spec, (context,))[0])
    return _COSTS.get(match)


def make(source: ExperimentFile) -> PlanDocument:
    """Plan an experiment: read the corpus and check the file, without training.

    Raises ConfigError, with file, line and column, for an experiment that cannot be planned.
    """
    from llama_ablate.measure import METRICS

    with source.located():
        experiment = source.experiment
        with under(("train",)):
            train = resolve_train(experiment.train)
        metrics = tuple(
            METRICS.resolve(entry, ("measure", i)) for i, entry in enumerate(experiment.measure)
        )
        shortest = [choice.shortest() for choice in metrics]
        updated = experiment.model_copy(update={"measure": shortest, "train": train})
        experiment = checks.guarded(updated, metrics)
        points(experiment)
        checks.check_tuned(experiment, metrics)
        texts = _texts(experiment)
        checks.check_vocabulary(source, texts)
        checks.check_floor(metrics, [text.opened["corpus"] for text in texts])
        tables = _tables(experiment, texts)
        plan = PlanDocument(
            format=FORMAT, version=__version__, experiment=experiment, tables=tables
        )
        checks.check_metrics(metrics, tables)
        checks.check_plugins(tables)
        checks.check_optimizers(experiment, tables)
        checks.check_compiled(experiment, tables)
        checks.check_losses(tables)
        checks.check_hypotheses(plan)
        checks.check_seeds(experiment)
        checks.check_margins(experiment, tables)
        checks.check_controls(experiment)
        tables = [with_runs(experiment, table) for table in tables]
        return PlanDocument(**dict(plan) | {"tables": tables})


def paced(plan: PlanDocument, pace: StepTimes) -> PlanDocument:
    """Return the plan with runs of measured length in tables whose budget is in seconds.

    `pace` measures the seconds per step of a table's variants.
    """

    def timed(table: PlannedTable) -> PlannedTable:
        seconds = dict(zip([v.id for v in table.variants], pace(table), strict=True))
        for variant in table.variants:
            if variant.role == "aa":  # an A/A arm is the baseline, so it takes the same time
                seconds[variant.id] = seconds[table.baseline.id]
        return with_runs(plan.experiment, table, seconds)

    tables = [timed(table) if table.budget == "seconds" else table for table in plan.tables]
    return PlanDocument(**dict(plan) | {"tables": tables})


def _texts(experiment: Experiment) -> list[PlannedText]:
    """Tokenize the texts of an experiment. Raises ConfigError for one that cannot be trained on."""
    sections: list[tuple[Data, Where]] = [
        (data, ("texts", i)) for i, data in enumerate(experiment.texts)
    ]
    prepared: list[PlannedText] = []
    for data, where in sections or [(experiment.data, ("data",))]:
        text = plan_text(experiment, data, where)
        checks.check_documents(text, where)
        checks.check_new(text, prepared, where)
        prepared.append(text)
    return prepared


def _tables(experiment: Experiment, texts: Sequence[PlannedText]) -> list[PlannedTable]:
    """Return a table, without runs, of each combination of text, size, match, budget and reading.

    `match` names the cost that is matched; a reading is a way to read the documents of held-out
    text.
    """
    sizes = [size.changes for size in experiment.sizes.models] if experiment.sizes else [{}]
    own_texts: dict[str, PlannedText] = {}  # of variants with another tokenizer, opened once
    tables: list[PlannedTable] = []
    readings: list[Reading | Literal[""]] = [*experiment.evaluation.documents] or [""]
    for text, (i, size), match, budget, reading in itertools.product(
        texts, enumerate(sizes), experiment.variants.match, experiment.budget, readings
    ):
        model = experiment.model.model_copy(update=size)
        at = experiment.model_copy(update={"model": model, "data": text.source})
        try:
            variants = variants_of(
                at,
                text.vocab,
                _cost(match, at),
                match,
                text.separator,
                partial(plan_own_text, experiment, text, own_texts),
            )
        except ConfigError as error:
            placed = ("sizes", "models", i) if size and error.where[:2] in _SIZE_PLACES else None
            raise ConfigError(error.message, placed or error.where) from None
        if reading:
            reread = text.source.with_changes({"documents": reading})
            checks.check_documents(text.model_copy(update={"source": reread}), ("evaluation",))
        for variant in variants:
            own_text = variant.text or text
            if (reading or text.source.documents) == "mask":  # some mixers have no document mask
                count_at(variant.varied, replace(variant.spec, separator=own_text.separator), count)
            if budget == "flops":
                count_at(variant.varied, variant.spec, _COSTS["flops"])
            checks.check_text(text, at, variant, budget)
            checks.check_documents(own_text, ("data",), variant)
            checks.check_overlaps(own_text, variant)
            for key in variant.train.keys() & experiment.tune.keys():
                message = f"'{key}' is tuned, so '{variant.label}' cannot set it"
                raise ConfigError(message, find_place(variant.varied, f"train.{key}"))
        name = ", ".join(
            part
            for part, several in (
                (name_text(text.source), len(texts) > 1),
                (" ".join(f"{k} {v}" for k, v in size.items()), bool(size)),
                (f"matched {match}", len(experiment.variants.match) > 1),
                (f"equal {budget}", len(experiment.budget) > 1),
                (f"evaluated {reading}", len(readings) > 1),
            )
            if several
        )
        if name in {table.name for table in tables}:
            several: Where = ("texts",) if experiment.texts else ("sizes", "models", i)
            raise ConfigError(f"two tables would be called '{name}'", several)
        steps = plan_steps(experiment, variants[0])
        tables.append(
            PlannedTable(
                name=name,
                match=match,
                budget=budget,
                reading=reading,
                size={key: getattr(model, key) for key in ("dim", "layers", "heads")},
                text=text,
                span=experiment.model.context if text.source.order == "documents" else None,
                steps=steps,
                tokens_per_run=steps * tokens_per_step(experiment, variants[0]),
                variants=variants,
                runs=[],
            )
        )
    return tables
