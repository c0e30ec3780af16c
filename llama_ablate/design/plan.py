"""Make the plan of an experiment: prepare tokens, count variants, build tables and runs."""

import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, Literal

from llama_ablate import __version__
from llama_ablate.config.experiment import Data, Experiment, ExperimentFile, Train
from llama_ablate.config.labels import name_text
from llama_ablate.config.registry import Choice
from llama_ablate.config.schema import Reading, Size
from llama_ablate.data import overlap, tokens
from llama_ablate.data.batches import Batches, DocumentStreams, TextMixture
from llama_ablate.data.corpus import CORPORA
from llama_ablate.data.tokenizer import TOKENIZERS
from llama_ablate.design import checks
from llama_ablate.design.matching import Cost
from llama_ablate.design.table import Table, points
from llama_ablate.design.variants import (
    Change,
    TableText,
    Variant,
    count_variant,
    resolve_train,
    variants_of,
)
from llama_ablate.errors import ConfigError, Where, under
from llama_ablate.model.counts import count, exact, states
from llama_ablate.results.plan_document import (
    FORMAT,
    PlanDocument,
    PlannedRun,
    PlannedText,
    PlannedVariant,
)
from llama_ablate.results.record import ComputeSettings, Settings

#: Function that measures the seconds of one training step of each variant, side by side.
StepTimes = Callable[[Table], Sequence[float]]

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


@dataclass(frozen=True)
class Plan:
    """Plan of an experiment before training: tables with their variants and runs."""

    experiment: Experiment
    tables: tuple[Table, ...]
    metrics: tuple[Choice, ...]

    @cached_property
    def runs(self) -> tuple[PlannedRun, ...]:
        """Runs of all tables without duplicates, since tables may share runs.

        Within a table, seeds vary slowest.
        """
        return tuple({run.id: run for c in self.tables for run in c.runs}.values())

    @cached_property
    def arms(self) -> list[tuple[Variant, Table]]:
        """Variants of all tables, each once, with the first table that contains it."""
        arms: dict[str, tuple[Variant, Table]] = {}
        for table in self.tables:
            for variant in table.variants:
                arms.setdefault(variant.id, (variant, table))
        return list(arms.values())

    @cached_property
    def variants(self) -> dict[str, Variant]:
        """Variants of all tables by id."""
        return {variant.id: variant for variant, _ in self.arms}

    @property
    def baseline(self) -> Variant:
        """Baseline of the first table."""
        return self.tables[0].baseline

    def paced(self, pace: StepTimes) -> "Plan":
        """Return the plan with measured seconds per step in tables whose budget is in seconds.

        `pace` measures the seconds per step of a table's variants.
        """

        def timed(table: Table) -> Table:
            ids = [variant.id for variant in table.variants]
            seconds = dict(zip(ids, pace(table), strict=True))
            for variant in table.variants:
                if variant.role == "aa":  # an A/A arm is the baseline, so it takes the same time
                    seconds[variant.id] = seconds[table.baseline.id]
            return replace(table, seconds=seconds)

        tables = (timed(c) if c.budget == "seconds" else c for c in self.tables)
        return replace(self, tables=tuple(tables))

    def document(self, compute: ComputeSettings | None, settings: Settings) -> PlanDocument:
        """Return the contents of `plan.json`, from which results are read without planning."""
        return PlanDocument(
            format=FORMAT,
            version=__version__,
            experiment=self.experiment,
            tables=[table.planned() for table in self.tables],
            compute=compute,
            settings=settings,
        )


def make(source: ExperimentFile) -> Plan:
    """Plan an experiment: read the corpus and check the file, without training.

    Raises ConfigError, with file, line and column, for an experiment that cannot be planned.
    """
    from llama_ablate.measure import METRICS

    with source.located():
        experiment = _resolved(source.experiment)
        metrics = tuple(
            METRICS.resolve(entry, ("measure", i)) for i, entry in enumerate(experiment.measure)
        )
        shortest = [choice.shortest() for choice in metrics]
        experiment = checks.guarded(experiment.model_copy(update={"measure": shortest}), metrics)
        points(experiment)
        checks.check_tuned(experiment, metrics)
        tables = tuple(_tables(experiment, metrics))
        checks.check_metrics(metrics, tables)
        checks.check_plugins(tables)
        checks.check_optimizers(experiment, tables)
        checks.check_compiled(experiment, tables)
        checks.check_budgets(tables)
        checks.check_hypotheses(experiment, tables)
        checks.check_seeds(experiment)
        checks.check_margins(experiment, tables)
        checks.check_controls(experiment)
    return Plan(experiment, tables, metrics)


def _resolved(experiment: Experiment) -> Experiment:
    """Return an experiment whose `train` section has entries in their shortest form."""
    with under(("train",)):
        train = resolve_train(experiment.train)
    return experiment.model_copy(update={"train": train})


def open_tokens(text: PlannedText) -> tokens.Tokens:
    """Open the tokens of a planned text; prepare damaged or missing tokens again.

    Raises ConfigError if the corpus has changed since the plan was made.
    """
    with contextlib.suppress(tokens.DamagedError):
        return tokens.load(tokens.cache_folder() / "tokens" / text.fingerprint)
    prepared = _text(text.source, ("data",)).tokens
    if prepared.fingerprint != text.fingerprint:
        raise ConfigError(
            f"the corpus has changed since these runs were planned: its fingerprint is "
            f"{prepared.fingerprint}, theirs {text.fingerprint}"
        )
    return prepared


def open_batches(
    plan: PlanDocument, text: PlannedText, variant: PlannedVariant, own: tokens.Tokens
) -> Batches:
    """Return the function that draws a variant's training batches.

    Raises ConfigError if a source of the variant's mixture has changed since the plan was made.
    """
    data = text.source.with_changes(variant.data)
    if data.order == "documents":
        return DocumentStreams(own, plan.experiment.model.context).batch
    if not variant.mixture:
        return own.batch
    known_sources = sources_of(text.source, own)
    for source in variant.mixture:
        if known_sources[source.name].fingerprint != source.fingerprint:
            what = f"the source '{source.name}' has changed since these runs were planned"
            raise ConfigError(what)
    return TextMixture([(known_sources[s.name], s.share, s.tokens) for s in variant.mixture]).batch


def _texts(experiment: Experiment) -> list[tuple[Data, Where]]:
    """Return the `data` sections of an experiment, with their paths in the file."""
    texts: list[tuple[Data, Where]] = [
        (data, ("texts", i)) for i, data in enumerate(experiment.texts)
    ]
    return texts or [(experiment.data, ("data",))]


def _tables(experiment: Experiment, metrics: tuple[Choice, ...]) -> list[Table]:
    """Build a comparison table for every combination of text, size, match, budget and reading.

    `match` names the cost that is matched; a reading is a way to read the documents of held-out
    text.
    """
    prepared: list[TableText] = []
    for data, where in _texts(experiment):
        text = _text(data, where)
        checks.check_size(experiment, text.tokens, where)
        checks.check_documents(text, where)
        checks.check_new(text, prepared, where)
        prepared.append(text)
    checks.check_floor(metrics, [text.tokens for text in prepared])
    sizes = [size.changes for size in experiment.sizes.models] if experiment.sizes else [{}]
    texts: dict[str, TableText] = {}  # texts of variants with another tokenizer, opened once
    tables = []
    readings: list[Reading | Literal[""]] = [*experiment.evaluation.documents] or [""]
    for text, (i, size), match, budget, reading in itertools.product(
        prepared, enumerate(sizes), experiment.variants.match, experiment.budget, readings
    ):
        model = experiment.model.model_copy(update=size)
        at = experiment.model_copy(update={"model": model, "data": text.data})
        try:
            variants = variants_of(
                at,
                text.tokens.vocab,
                _cost(match, at),
                match,
                text.tokens.separator,
                partial(_own_text, text, texts),
            )
        except ConfigError as error:
            placed = ("sizes", "models", i) if size and error.where[:2] in _SIZE_PLACES else None
            raise ConfigError(error.message, placed or error.where) from None
        if reading:
            reread = text.data.with_changes({"documents": reading})
            checks.check_documents(TableText(reread, text.tokens), ("evaluation",))
        for variant in variants:
            if (reading or text.data.documents) == "mask":  # some mixers have no document mask
                variant_separator = (variant.text or text).tokens.separator
                count_variant(
                    replace(variant, spec=replace(variant.spec, separator=variant_separator)), count
                )
            count_variant(variant, _COSTS["flops"] if budget == "flops" else count)
            checks.check_text(text, at, variant, budget)
            checks.check_documents(variant.text or text, ("data",), variant)
            checks.check_overlaps(variant.text or text, variant)
            for key in variant.train.keys() & experiment.tune.keys():
                message = f"'{key}' is tuned, so '{variant.label}' cannot set it"
                raise ConfigError(message, variant.varied.get(f"train.{key}", variant.where))
        name = ", ".join(
            part
            for part, several in (
                (name_text(text.data), len(prepared) > 1),
                (" ".join(f"{k} {v}" for k, v in size.items()), bool(size)),
                (f"matched {match}", len(experiment.variants.match) > 1),
                (f"equal {budget}", len(experiment.budget) > 1),
                (f"evaluated {reading}", len(readings) > 1),
            )
            if several
        )
        train = _carried(experiment.train, at, sizes[0].get("dim") or experiment.model.dim)
        tables.append(Table(name, at, text, match, budget, reading, variants, train))
        for variant in variants if budget != "seconds" else ():
            tables[-1].mixture_of(variant)
        if name in {table.name for table in tables[:-1]}:
            several: Where = ("texts",) if experiment.texts else ("sizes", "models", i)
            raise ConfigError(f"two tables would be called '{name}'", several)
    return tables


def _own_text(of_table: TableText, known: dict[str, TableText], change: Change) -> TableText | None:
    """Tokenize a table's text with another tokenizer; return None if the tokens are equal.

    `change` is a variant's change of the tokenizer, and `known` caches the texts by `data` section.
    """
    data = of_table.data.model_copy(update={"tokenizer": change.value})
    with under(change.where, ("data", "tokenizer")):
        TOKENIZERS.resolve(change.value)
        key = data.model_dump_json()
        text = known.get(key) or _text(data, ("data",))
    known[key] = text
    return None if text.tokens.fingerprint == of_table.tokens.fingerprint else text


def _carried(train: Train, at: Experiment, first_dim: int) -> dict[str, Any]:
    """Return the learning rate of a model size as a change of `train`, or {}.

    The learning rate is the first size's learning rate, scaled by 1/dim. Return {} if `sizes.lr` is
    `same`, or if the learning rate is tuned.
    """
    if at.sizes is None or at.sizes.lr == "same" or "lr" in at.tune:
        return {}
    return {"lr": train.lr * first_dim / at.model.dim}


def sources_of(data: Data, own: tokens.Tokens) -> dict[str, tokens.Tokens]:
    """Return the tokens of each mixture source by name, tokenized like the main corpus.

    `own` are the tokens of the main corpus.
    """
    by_name = {"corpus": own}
    for name, entry in data.sources.items():
        with under(("data", "sources", name), None):
            corpus = CORPORA.resolve(entry)
            by_name[name] = tokens.prepare(corpus, TOKENIZERS.resolve(data.tokenizer), like=own)
    return by_name


def _text(data: Data, where: Where) -> TableText:
    with under(where, ("data",)):
        corpus = CORPORA.resolve(data.corpus, ("data", "corpus"))
        tokenizer = TOKENIZERS.resolve(data.tokenizer, ("data", "tokenizer"))
        prepared = tokens.prepare(corpus, tokenizer)
        sources = sources_of(data, prepared)
        overlaps = overlap.find_overlaps(prepared, sources)
        dropped = 0
        if data.overlap == "drop" and any(overlap.tokens for overlap in overlaps.values()):
            stands = overlap.find_repeated(prepared, sources)
            checks.check_droppable(prepared, stands)
            left_out = overlap.hashes_of(prepared, stands)
            prepared = tokens.prepare(corpus, tokenizer, like=prepared, left_out=left_out)
            dropped = sum(int(documents.sum()) for documents in stands.values())
            sources["corpus"] = prepared
            overlaps = overlap.find_overlaps(prepared, sources)
    return TableText(data, prepared, where, sources, overlaps, dropped)
