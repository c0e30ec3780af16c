"""Make the plan of an experiment: tokens prepared, variants counted, tables and run ids."""

import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

from llama_ablate import __version__
from llama_ablate.config import margins, plugins
from llama_ablate.config.experiment import Data, Experiment, Model, Source, Train
from llama_ablate.config.registry import Choice
from llama_ablate.config.schema import Pair
from llama_ablate.config.spec import SLOTS
from llama_ablate.data import tokens
from llama_ablate.data.corpora.corpus import CORPORA
from llama_ablate.data.tokenizers.tokenizer import TOKENIZERS
from llama_ablate.design import grid, runs, train_config
from llama_ablate.design.designs import Change
from llama_ablate.design.grid import Variant
from llama_ablate.design.matching import Cost
from llama_ablate.design.runs import Run
from llama_ablate.design.table import Table
from llama_ablate.design.text import Text
from llama_ablate.errors import ConfigError, Where, nearest
from llama_ablate.model import laws
from llama_ablate.model.counts import count, states
from llama_ablate.model.decoder import REGISTRIES
from llama_ablate.results.plan import FORMAT, PlanDocument, PlannedText
from llama_ablate.results.record import ComputeSettings, Settings
from llama_ablate.training import laws as optimizer_laws
from llama_ablate.training.optimizers import OPTIMIZERS
from llama_ablate.training.registries import REGISTRIES as TRAINING

#: Seconds of one training step of each variant, measured side by side.
Pace = Callable[[Table], Sequence[float]]

_COSTS: dict[str, Cost] = {
    "parameters": lambda spec: count(spec).non_embedding,
    "active_parameters": lambda spec: count(spec).active_non_embedding,
    "flops": lambda spec: count(spec).flops_per_token,
    "kv_bytes": lambda spec: count(spec).kv_bytes_per_token,
}


def _cost(match: str, experiment: Experiment) -> Cost | None:
    """Return what counts a budget that is held equal; None for `none`."""
    if match == "state_bytes":
        context = experiment.variants.match_context or experiment.model.context
        return lambda spec: states(spec, (context,))[0]
    return _COSTS.get(match)


@dataclass(frozen=True)
class Plan:
    """Everything that is known before training: tables with their variants and runs."""

    experiment: Experiment
    tables: tuple[Table, ...]
    metrics: tuple[Choice, ...]

    @cached_property
    def runs(self) -> tuple[Run, ...]:
        """Every run once: tables may share some. Seeds stay outermost within a table."""
        return tuple({run.id: run for c in self.tables for run in c.runs}.values())

    @cached_property
    def arms(self) -> list[tuple[Variant, Table]]:
        """Every variant once, with the first table that has it."""
        arms: dict[str, tuple[Variant, Table]] = {}
        for table in self.tables:
            for variant in table.variants:
                arms.setdefault(variant.id, (variant, table))
        return list(arms.values())

    @property
    def work(self) -> tuple[int, int]:
        """How many tokens the first table's baseline is trained on in all, and in how many runs."""
        points = len(runs.points(self.experiment, TRAINING))
        count = points * len(self.experiment.seed_list)
        return count * self.tables[0].tokens_per_run, count

    @property
    def baseline(self) -> Variant:
        """The baseline of the first table."""
        return self.tables[0].baseline

    def paced(self, pace: Pace) -> "Plan":
        """Return the plan with measured seconds per step, for tables with a budget in seconds."""

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
        """Return what `plan.json` holds: enough to read the results without making the plan."""
        return PlanDocument(
            format=FORMAT,
            version=__version__,
            experiment=self.experiment,
            tables=[table.planned() for table in self.tables],
            compute=compute,
            settings=settings,
        )


def make(source: Source) -> Plan:
    """Return the plan of an experiment; reads the corpus, trains nothing.

    Raises ConfigError, with file, line and column, for whatever in the file cannot be done.
    """
    from llama_ablate.measure import METRICS

    try:
        experiment = _resolved(source.experiment)
        metrics = tuple(
            METRICS.resolve(entry, ("measure", i)) for i, entry in enumerate(experiment.measure)
        )
        shortest = [choice.shortest() for choice in metrics]
        experiment = _guarded(experiment.model_copy(update={"measure": shortest}), metrics)
        runs.points(experiment, TRAINING)
        _check_tuned(experiment, metrics)
        tables = tuple(_tables(experiment, metrics))
        _check_metrics(metrics, tables)
        _check_plugins(tables)
        _check_optimizers(experiment, tables)
        _check_losses(tables)
        _check_hypotheses(experiment, tables)
        _check_seeds(experiment)
        _check_margins(experiment, tables)
        _check_controls(experiment)
    except ConfigError as error:
        raise source.locate(error) from None
    return Plan(experiment, tables, metrics)


def _resolved(experiment: Experiment) -> Experiment:
    """Return an experiment whose train config has its entries in their shortest form."""
    try:
        train = train_config.resolved(experiment.train, TRAINING)
    except ConfigError as error:
        raise error.under("train") from None
    return experiment.model_copy(update={"train": train})


def _guarded(experiment: Experiment, metrics: tuple[Choice, ...]) -> Experiment:
    """Return an experiment whose guards say what they look at, and what is worse.

    Raises ConfigError for a metric that is none, or not measured, and where it is not known which
    of its numbers are worse.
    """
    from llama_ablate.measure import METRICS

    measured = [choice.name for choice in metrics]
    filled = []
    for i, guard in enumerate(experiment.guard):
        where: Where = ("guard", i)
        METRICS.resolve(guard.metric, (*where, "metric"))
        if guard.metric not in measured:
            message = f"'{guard.metric}' is not measured: add it to 'measure'"
            raise ConfigError(message, (*where, "metric"))
        known = METRICS.worse(guard.metric)
        quantity = guard.quantity or next(iter(known), None)
        if quantity is None:
            message = f"'{guard.metric}' says of none of its numbers which is worse: name one"
            raise ConfigError(f"{message} by 'quantity', and 'worse': lower or higher", where)
        worse = guard.worse or known.get(quantity)
        if worse is None:
            hint = nearest(quantity, known) if known else ""
            message = f"'{guard.metric}' does not say which '{quantity}' is worse{hint}"
            raise ConfigError(f"{message}; or say 'worse': lower or higher", (*where, "quantity"))
        filled.append(guard.model_copy(update={"quantity": quantity, "worse": worse}))
    return experiment.model_copy(update={"guard": filled}) if filled else experiment


def _check_losses(tables: tuple[Table, ...]) -> None:
    """Refuse a budget of FLOPs where losses differ: what they compute is not counted."""
    for table in (table for table in tables if table.budget == "flops"):
        for variant in table.variants:
            if variant.train.get("losses") != table.baseline.train.get("losses"):
                raise ConfigError(
                    f"'{variant.label}' has other losses than the baseline: what they compute is "
                    "not counted, so 'budget' is tokens or seconds",
                    variant.where,
                )


def open_tokens(text: PlannedText) -> tokens.Tokens:
    """Open the tokens of a planned text; make them again where they are damaged or elsewhere.

    Raises ConfigError where the corpus has changed since.
    """
    with contextlib.suppress(tokens.DamagedError):
        return tokens.load(tokens.cache_folder() / "tokens" / text.fingerprint)
    corpus = CORPORA.resolve(text.source.corpus)
    prepared = tokens.prepare(corpus, TOKENIZERS.resolve(text.source.tokenizer))
    if prepared.fingerprint != text.fingerprint:
        raise ConfigError(
            f"the corpus has changed since these runs were planned: its fingerprint is "
            f"{prepared.fingerprint}, theirs {text.fingerprint}"
        )
    return prepared


def first_text(experiment: Experiment) -> tokens.Tokens:
    """Return the tokens of an experiment's first text. Raises ConfigError where it is too short."""
    data, where = _texts(experiment)[0]
    text = _text(data, where)
    _check_size(experiment, text, where)
    return text


def _texts(experiment: Experiment) -> list[tuple[Data, Where]]:
    """Return the texts of an experiment, with their places in the file."""
    texts: list[tuple[Data, Where]] = [
        (data, ("texts", i)) for i, data in enumerate(experiment.texts)
    ]
    return texts or [(experiment.data, ("data",))]


def _tables(experiment: Experiment, metrics: tuple[Choice, ...]) -> list[Table]:
    """Return a table for every text, size, match and budget."""
    prepared = []
    for data, where in _texts(experiment):
        text = Text(data, _text(data, where))
        _check_size(experiment, text.tokens, where)
        _check_documents(text, where)
        prepared.append(text)
    _check_floor(metrics, [text.tokens for text in prepared])
    sizes = [size.changes for size in experiment.sizes.models] if experiment.sizes else [{}]
    registries = {**REGISTRIES, **TRAINING, "data.tokenizer": TOKENIZERS}
    texts: dict[str, Text] = {}  # of variants that have their own, opened once
    tables = []
    for text, (i, size), match, budget in itertools.product(
        prepared, enumerate(sizes), experiment.variants.match, experiment.budget
    ):
        model = experiment.model.model_copy(update=size)
        at = experiment.model_copy(update={"model": model})
        try:
            variants = grid.variants(
                at,
                registries,
                text.tokens.vocab,
                _cost(match, at),
                match,
                text.tokens.separator if text.data.documents == "mask" else None,
                partial(_own_text, text, texts),
            )
        except ConfigError as error:
            placed = ("sizes", "models", i) if size and error.where[:1] == ("model",) else None
            raise ConfigError(error.message, placed or error.where) from None
        for variant in variants:
            grid.counted(variant, count)
            _check_text(text, at, variant, budget)
            for key in variant.train.keys() & experiment.tune.keys():
                message = f"'{key}' is tuned, so '{variant.label}' cannot set it"
                raise ConfigError(message, variant.varied.get(f"train.{key}", variant.where))
        name = ", ".join(
            part
            for part, several in (
                (_named(text.data), len(prepared) > 1),
                (" ".join(f"{k} {v}" for k, v in size.items()), bool(size)),
                (f"matched {match}", len(experiment.variants.match) > 1),
                (f"equal {budget}", len(experiment.budget) > 1),
            )
            if several
        )
        train = _carried(experiment.train, at, sizes[0].get("dim") or experiment.model.dim)
        tables.append(Table(name, at, text, match, budget, variants, train))
        if name in {table.name for table in tables[:-1]}:
            several: Where = ("texts",) if experiment.texts else ("sizes", "models", i)
            raise ConfigError(f"two tables would be called '{name}'", several)
    return tables


def _own_text(of_table: Text, known: dict[str, Text], change: Change) -> Text | None:
    """Return the text of a table with another tokenizer; None where the tokens are the same."""
    data = of_table.data.model_copy(update={"tokenizer": change.value})
    try:
        TOKENIZERS.resolve(change.value)
        key = data.model_dump_json()
        text = known.get(key) or Text(data, _text(data, ("data",)))
    except ConfigError as error:
        of_tokenizer = error.where[:2] == ("data", "tokenizer")
        rest = error.where[2:] if of_tokenizer else error.where
        raise ConfigError(error.message, (*change.where, *rest)) from None
    known[key] = text
    return None if text.tokens.fingerprint == of_table.tokens.fingerprint else text


def _check_text(of_table: Text, experiment: Experiment, variant: Variant, budget: str) -> None:
    """Refuse variants of other contexts or tokenizers that would not read the same text."""
    context = variant.spec.context != experiment.model.context
    if not (context or variant.text):
        return
    what = "contexts" if context else "tokenizers"
    key = "context" if context else "data.tokenizer"
    place = variant.place(key) or variant.where
    if of_table.data.order == "windows":
        raise ConfigError(
            f"variants of several {what} are paired by documents: give 'order: documents' in "
            "'data'",
            place,
        )
    if variant.text is None:
        return
    if budget == "tokens":
        raise ConfigError(
            "a token is not the same text for every tokenizer; allowed: bytes, flops, seconds",
            ("budget",),
        )
    if experiment.sizes:
        raise ConfigError("the laws of a ladder are in nats per token of one tokenizer", place)
    for text, where in ((of_table, ("data", "tokenizer")), (variant.text, place)):
        tokens = text.tokens
        if tokens.lost:
            raise ConfigError(
                f"the tokenizer loses text ({tokens.lost}), so it has no bits per byte to compare",
                where,
            )
        if tokens.document_counts != of_table.tokens.document_counts:
            raise ConfigError("has other documents than the table's own tokenizer", where)
    _check_size(experiment, variant.text.tokens, place)


def _named(data: Data) -> str:
    """Name a text by its corpus, its options, and what is done with its documents."""
    if data.name:
        return data.name
    corpus = {"name": data.corpus} if isinstance(data.corpus, str) else dict(data.corpus)
    options = [f"{k}={v}" for k, v in corpus.items() if k not in ("name", "path")]
    read = data.model_dump(include={"documents", "order"}, exclude_defaults=True)
    return " ".join([str(corpus["name"]), *options, *(f"{k}={v}" for k, v in read.items())])


def _carried(train: Train, at: Experiment, first_dim: int) -> dict[str, Any]:
    """Return the learning rate of a size, where it is scaled from the first size's."""
    if at.sizes is None or at.sizes.lr == "same" or "lr" in at.tune:
        return {}
    return {"lr": train.lr * first_dim / at.model.dim}


def _text(data: Data, where: Where) -> tokens.Tokens:
    try:
        return tokens.prepare(
            CORPORA.resolve(data.corpus, (*where, "corpus")),
            TOKENIZERS.resolve(data.tokenizer, (*where, "tokenizer")),
        )
    except ConfigError as error:  # a corpus names its own mistakes under `data`
        raise ConfigError(
            error.message,
            (*where, *error.where[1:]) if error.where[:1] == ("data",) else error.where,
        ) from None


def _check_documents(text: Text, where: Where) -> None:
    """Refuse what is done with documents where there is one, or no token between several."""
    for key, value, does in (
        ("documents", "mask", "keeps documents apart"),
        ("order", "documents", "reads documents in random order"),
    ):
        if getattr(text.data, key) == value and text.tokens.document_counts["train"] == 1:
            raise ConfigError(
                f"'{value}' {does}, and these tokens are one document: the corpus has no other, "
                "or the tokenizer no token that stands between them; allowed: "
                f"{Data.model_fields[key].default}",
                (*where, key),
            )


def _check_tuned(experiment: Experiment, metrics: tuple[Choice, ...]) -> None:
    if experiment.tune and all(choice.name != "perplexity" for choice in metrics):
        raise ConfigError(
            "what is tuned is chosen by the validation loss: 'measure' needs 'perplexity'",
            ("measure",),
        )


def _check_seeds(experiment: Experiment) -> None:
    for wanted, what in (
        (experiment.hypotheses, "a hypothesis"),
        (experiment.guard, "a guard"),
        (experiment.sizes, "a ladder"),
        (experiment.margin, "a margin"),
        (set(experiment.controls.aa) - {"none"}, "an A/A arm"),
        (experiment.controls.positive, "a positive control"),
    ):
        if wanted and len(experiment.seed_list) < 2:
            raise ConfigError(
                f"{what} needs an interval, and an interval two seeds or more", ("seeds",)
            )


def _check_margins(experiment: Experiment, tables: tuple[Table, ...]) -> None:
    """Refuse margins of a loss that are not in the unit in which tables compare losses."""
    several = any(variant.text for table in tables for variant in table.variants)
    unit, why = margins.NATS, "all have one tokenizer"
    if several:
        unit, why = margins.BITS, "variants differ in their tokenizers"
    stated: list[tuple[str | None, Where]] = [(experiment.margin, ("margin",))]
    stated += [
        (hypothesis.margin, ("hypotheses", i, "margin"))
        for i, hypothesis in enumerate(experiment.hypotheses)
        if hypothesis.measure is None
    ]
    for margin, where in stated:
        given = margins.read(margin)[1]
        if given in margins.OF_LOSS and given != unit:
            raise ConfigError(f"'{margin}': losses compare in {unit} here, as {why}", where)


def _check_controls(experiment: Experiment) -> None:
    """Refuse controls that could not fail: all but one in which nothing changes need a margin."""
    controls = experiment.controls
    for wanted, key, must in (
        (set(controls.aa) - {"none"}, "aa", "be equivalent within it"),
        (controls.positive, "positive", "harm by no more than ten of it"),
    ):
        if wanted and experiment.margin is None:
            raise ConfigError(
                f"needs a 'margin', such as '0.02 nats': the control must {must}",
                ("controls", key),
            )


def _check_hypotheses(experiment: Experiment, tables: tuple[Table, ...]) -> None:
    names = [table.name for table in tables]
    for i, hypothesis in enumerate(experiment.hypotheses):
        where: Where = ("hypotheses", i)
        pair = isinstance(hypothesis.minus, Pair)
        for part, key in zip(hypothesis.parts, ("table", "minus"), strict=False):
            if part.table not in (None, *names):
                message = f"no table is called '{part.table}'{nearest(part.table, names)}"
                raise ConfigError(message, (*where, key))
            labels = [v.label for v in tables[names.index(part.table or names[0])].variants]
            for name, of in ((part.variant, "variant"), (part.against, "against")):
                if name not in (None, *labels):
                    message = f"no variant is called '{name}'{nearest(name, labels)}"
                    inside = ("minus", of) if pair and key == "minus" else (of,)
                    raise ConfigError(message, (*where, *inside))


def _check_metrics(metrics: tuple[Choice, ...], tables: tuple[Table, ...]) -> None:
    from llama_ablate.measure import METRICS

    for (i, choice), table in itertools.product(enumerate(metrics), tables):
        own = {table.text_of(v).tokens.fingerprint: v for v in reversed(table.variants)}
        try:
            for variant in own.values():
                METRICS.check(choice, variant.spec, table.text_of(variant).tokens)
        except ConfigError as error:
            raise error.under("measure", i) from None
    several = any(variant.text for table in tables for variant in table.variants)
    if several and all(choice.name != "perplexity" for choice in metrics):
        raise ConfigError("bits per byte are a number of 'perplexity'", ("measure",))


def _check_plugins(tables: tuple[Table, ...]) -> None:
    """Check the model laws for every plug-in component, beside built-in ones."""
    checked: set[tuple[str, Choice, bool]] = set()
    own = {slot: REGISTRIES[slot].resolve(getattr(Model(), slot)) for slot in SLOTS}
    for variant in (v for c in tables for v in c.variants):
        apart = variant.spec.separator is not None
        choices = [(s, c, apart) for s in SLOTS for c in getattr(variant.spec, s).choices]
        foreign = [one for one in choices if plugins.code_of(REGISTRIES[one[0]].get(one[1].name))]
        for slot, choice, _ in (one for one in foreign if one not in checked):
            beside = {s: own[s] for s, _, _ in foreign} | {slot: choice}
            try:
                laws.check(variant.spec.with_components(beside), slot)
            except ConfigError as error:
                where = variant.place(slot) or ("model", slot)
                raise ConfigError(error.message, where) from None
        checked |= set(foreign)


def _check_optimizers(experiment: Experiment, tables: tuple[Table, ...]) -> None:
    """Refuse options of an optimizer or a loss that do not fit, and plug-ins that break a law."""
    points = runs.points(experiment, TRAINING)
    for table, point in itertools.product(tables, points):
        for variant in table.variants:
            try:
                optimizer = table.optimizer({**variant.train, **point})
                if plugins.code_of(OPTIMIZERS.get(optimizer.name)):
                    optimizer_laws.check(optimizer)
                if experiment.parallel.shard:
                    optimizer_laws.check_shards(optimizer)
                table.optimizer_bytes(variant, {**variant.train, **point})
            except ConfigError as error:
                of_loss = error.where[:1] == ("losses",)
                key, rest = ("losses", error.where[1:]) if of_loss else ("optimizer", error.where)
                own = variant.varied.get(f"train.{key}", ("train", key))
                where = ("tune", key) if key in point else own
                raise ConfigError(error.message, (*where, *rest)) from None


def _check_floor(metrics: tuple[Choice, ...], texts: Sequence[tokens.Tokens]) -> None:
    for i, choice in enumerate(metrics):
        if choice.name == "excess_loss" and not any(text.source for text in texts):
            raise ConfigError(
                "'excess_loss' needs a corpus whose floor is known (counting, hmm, induction, "
                "lag-copy, markov, recall) "
                "and the tokenizer 'chars'",
                ("measure", i),
            )


def _check_size(experiment: Experiment, text: tokens.Tokens, where: Where) -> None:
    context = experiment.model.context
    batch = experiment.train.batch * context + 1
    for split, needed in {"train": batch, **dict.fromkeys(text.heldout, context + 1)}.items():
        if text.counts.get(split, 0) < needed:
            raise ConfigError(
                f"the {split} split has {text.counts.get(split, 0):,} tokens, smaller than one "
                f"{'batch' if split == 'train' else 'window'} of {needed:,}",
                (*where, "corpus"),
            )
