"""Check an experiment file as a whole, across its keys, before training."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from llama_ablate.config import margins, plugins
from llama_ablate.config.experiment import Data, Experiment, Model
from llama_ablate.config.registry import Choice
from llama_ablate.config.spec import SLOTS
from llama_ablate.data import tokens
from llama_ablate.design.table import Table, points
from llama_ablate.design.variants import TableText, Variant
from llama_ablate.errors import ConfigError, Where, dotted, nearest
from llama_ablate.model import laws
from llama_ablate.model.components import REGISTRIES
from llama_ablate.model.counts import distinct
from llama_ablate.training import optimizer_laws
from llama_ablate.training.compute import multiplies_bfloat16
from llama_ablate.training.optimizers import OPTIMIZERS

MAX_OVERLAP = 0.01  # largest share of held-out tokens that a training text may contain, too


def guarded(experiment: Experiment, metrics: tuple[Choice, ...]) -> Experiment:
    """Fill in the quantity and the worse direction of an experiment's guards.

    A guard limits how much worse than the baseline a measured number may be. Raises ConfigError for
    an unknown metric, for a metric that is not measured, and if the worse direction of its number
    is unknown.
    """
    from llama_ablate.measure import METRICS
    from llama_ablate.measure.turns import is_paired

    measured = {choice.name: choice for choice in metrics}
    filled = []
    for i, guard in enumerate(experiment.guard):
        where: Where = ("guard", i)
        METRICS.resolve(guard.metric, (*where, "metric"))
        if guard.metric not in measured:
            message = f"'{guard.metric}' is not measured: add it to 'measure'"
            raise ConfigError(message, (*where, "metric"))
        if METRICS.timed(guard.metric) and not is_paired(measured[guard.metric]):
            message = f"a guard needs timings in pairs: {{name: {guard.metric}, paired: true}}"
            raise ConfigError(message, (*where, "metric"))
        quantities = METRICS.worse(guard.metric)
        quantity = guard.quantity or next(iter(quantities), None)
        if quantity is None:
            message = f"'{guard.metric}' says of none of its numbers which is worse: name one"
            raise ConfigError(f"{message} by 'quantity', and 'worse': lower or higher", where)
        worse = guard.worse or quantities.get(quantity)
        if worse is None:
            hint = nearest(quantity, quantities) if quantities else ""
            message = f"'{guard.metric}' does not say which '{quantity}' is worse{hint}"
            raise ConfigError(f"{message}; or say 'worse': lower or higher", (*where, "quantity"))
        filled.append(guard.model_copy(update={"quantity": quantity, "worse": worse}))
    return experiment.model_copy(update={"guard": filled}) if filled else experiment


def check_budgets(tables: tuple[Table, ...]) -> None:
    """Refuse variants that do not fit the budget, by raising ConfigError.

    Under a budget in FLOPs, all variants need the baseline's training losses, since the FLOPs of
    losses are not counted. Unless the budget is in seconds, one step may cost at most twice the
    budget.
    """
    for table in tables:
        for variant in table.variants if table.budget != "seconds" else ():
            table.steps_of(variant)
            losses = variant.train.get("losses") != table.baseline.train.get("losses")
            if table.budget == "flops" and losses:
                what = "what these losses compute is not counted, so 'budget' is tokens or seconds"
                raise ConfigError(f"'{variant.label}': {what}", variant.where)


def check_text(of_table: TableText, experiment: Experiment, variant: Variant, budget: str) -> None:
    """Refuse variants whose other context or tokenizer makes them read different text.

    `of_table` is the text of the comparison table.
    """
    context = variant.spec.context != experiment.model.context
    if not (context or variant.text):
        return
    what = "contexts" if context else "tokenizers"
    key = "context" if context else "data.tokenizer"
    place = variant.place(key) or variant.where
    if of_table.data.with_changes(variant.data).order == "windows":
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
    check_size(experiment, variant.text.tokens, place)


def check_new(text: TableText, others: Sequence[TableText], where: Where) -> None:
    """Refuse a text that repeats another text: same tokens, read in the same way."""
    bare_texts = [
        text.data.model_copy(update={"name": None, "corpus": ""}) for text in (text, *others)
    ]
    for i, (other, way) in enumerate(zip(others, bare_texts[1:], strict=True)):
        if other.tokens.fingerprint == text.tokens.fingerprint and way == bare_texts[0]:
            raise ConfigError(f"is the same text as texts[{i}], read in the same way", where)


def check_droppable(
    own: tokens.Tokens, stands: Mapping[str, NDArray[np.bool_]], where: Where
) -> None:
    """Refuse `overlap: drop` if no document of a held-out split would remain.

    `overlap: drop` leaves out held-out documents that also occur in training text. Leaving out
    documents of a split with a single document is refused, too. `own` are the tokens of the text,
    and `stands` maps each split to a mask of the documents to leave out.
    """
    for split, documents in stands.items():
        if len(documents) == 1 and own.document_counts[split] == 1:
            raise ConfigError(
                f"'drop' leaves out documents, and the {split} split is a single one, or the "
                "tokenizer has no token between them; allowed: refuse, allow",
                (*where, "overlap"),
            )
        if documents.all():
            raise ConfigError(
                f"'drop' would leave no document of the {split} split: all {len(documents):,} also "
                "stand in a training text, or test in validation text; allowed: refuse, allow",
                (*where, "overlap"),
            )


def check_overlaps(text: TableText, variant: Variant) -> None:
    """Refuse held-out text that overlaps training text by more than 1%."""
    data = text.data.with_changes(variant.data)
    read = {"test", *(data.mixture or ["corpus"])}
    for name, overlap in text.overlaps.items():
        if data.overlap != "refuse" or overlap.share <= MAX_OVERLAP or name not in read:
            continue
        corpus_key = dotted((*text.where, "corpus"))
        key: Where = ("corpus",)
        kind, there = "held-out", f"the training text of {corpus_key}"
        if name == "test":
            kind, there = "test", f"the validation text of {corpus_key}"
        elif name != "corpus":
            key = ("sources", name)
            there = f"the training text of {dotted((*text.where, *key))}, all of which is compared"
        drop = ", or leave those documents out with 'overlap: drop'" * (overlap.all_documents > 1)
        raise ConfigError(
            f"{overlap.share:.1%} of the {kind} tokens of {corpus_key}, {overlap.documents:,} of "
            f"{overlap.all_documents:,} documents as a whole, also stand in {there}: give other "
            "text"
            f"{drop}, or keep them with 'overlap: allow'",
            (*text.where, *key),
        )


def check_documents(text: TableText, where: Where, variant: Variant | None = None) -> None:
    """Refuse per-document masks and document order for tokens of a single document.

    The corpus then has one document, or the tokenizer has no separator token.
    """
    data = text.data.with_changes(variant.data if variant else {})
    for key, value, does in (
        ("documents", "mask", "keeps documents apart"),
        ("order", "documents", "reads documents in random order"),
    ):
        if getattr(data, key) == value and text.tokens.document_counts["train"] == 1:
            raise ConfigError(
                f"'{value}' {does}, and these tokens are one document: the corpus has no other, "
                "or the tokenizer no token that stands between them; allowed: "
                f"{Data.model_fields[key].default}",
                (variant and variant.place(f"data.{key}")) or (*where, key),
            )


def check_precisions(tables: Sequence[Table], device: str) -> None:
    """Refuse varied precision on a device without matrix products in bfloat16."""
    varied = (v for table in tables for v in table.variants if "precision" in v.train)
    if (variant := next(varied, None)) and not multiplies_bfloat16(device):
        message = "this device has no instructions for products in bfloat16; allowed: float32"
        raise ConfigError(message, variant.place("train.precision") or variant.where)


def check_tuned(experiment: Experiment, metrics: tuple[Choice, ...]) -> None:
    """Refuse tuning without the metric `perplexity`.

    Tuned values are selected by the validation loss, which this metric measures.
    """
    if experiment.tune and all(choice.name != "perplexity" for choice in metrics):
        raise ConfigError(
            "what is tuned is chosen by the validation loss: 'measure' needs 'perplexity'",
            ("measure",),
        )


def check_seeds(experiment: Experiment) -> None:
    """Refuse a single seed if a key needs a confidence interval.

    An interval needs two seeds or more. The keys are hypotheses, guards, model sizes, a margin, and
    controls other than an unchanged A/A arm.
    """
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


def check_margins(experiment: Experiment, tables: tuple[Table, ...]) -> None:
    """Refuse a loss margin whose unit differs from the unit of a table's compared losses."""
    several = any(variant.text for table in tables for variant in table.variants)
    unit, why = margins.NATS, "all have one tokenizer"
    if several:
        unit, why = margins.BITS, "variants differ in their tokenizers"
    stated_margins: list[tuple[str | None, Where]] = [(experiment.margin, ("margin",))]
    stated_margins += [
        (hypothesis.margin, ("hypotheses", i, "margin"))
        for i, hypothesis in enumerate(experiment.hypotheses)
        if hypothesis.measure is None
    ]
    for margin, where in stated_margins:
        given = margins.read(margin)[1]
        if given in margins.LOSS_UNITS and given != unit:
            raise ConfigError(f"'{margin}': losses compare in {unit} here, as {why}", where)


def check_controls(experiment: Experiment) -> None:
    """Refuse control arms without an equivalence margin, since such controls could not fail.

    An A/A arm in which nothing changes needs no margin.
    """
    controls = experiment.controls
    for wanted, key, must in (
        (set(controls.aa) - {"none"}, "aa", "be equivalent within it"),
        (controls.positive, "positive", "harm by no more than ten of it"),
    ):
        if wanted and experiment.margin is None:
            raise ConfigError(
                f"needs a 'margin', such as '0.02 nats': the control must {must}", ("controls", key)
            )


def check_hypotheses(experiment: Experiment, tables: tuple[Table, ...]) -> None:
    """Refuse hypotheses about unknown tables or variants."""
    names = [table.name for table in tables]
    for i, hypothesis in enumerate(experiment.hypotheses):
        where: Where = ("hypotheses", i)
        if hypothesis.table not in (None, *names):
            message = f"no table is called '{hypothesis.table}'{nearest(hypothesis.table, names)}"
            raise ConfigError(message, (*where, "table"))
        table = tables[names.index(hypothesis.table or names[0])]
        labels = [variant.label for variant in table.variants]
        called = set().union(*map(table.names, table.variants))
        for name, key in ((hypothesis.variant, "variant"), (hypothesis.against, "against")):
            if name not in {None, *called}:
                message = f"no variant is called '{name}'{nearest(name or '', labels)}"
                raise ConfigError(message, (*where, key))


def check_metrics(metrics: tuple[Choice, ...], tables: tuple[Table, ...]) -> None:
    """Refuse metrics that do not apply to the model or the text of a variant."""
    from llama_ablate.measure import METRICS

    for (i, choice), table in itertools.product(enumerate(metrics), tables):
        by_fingerprint = {table.text_of(v).tokens.fingerprint: v for v in reversed(table.variants)}
        try:
            for variant in by_fingerprint.values():
                METRICS.check(choice, variant.spec, table.text_of(variant).tokens)
        except ConfigError as error:
            raise error.under("measure", i) from None
    several = any(variant.text for table in tables for variant in table.variants)
    if several and all(choice.name != "perplexity" for choice in metrics):
        raise ConfigError("bits per byte are a number of 'perplexity'", ("measure",))


def check_plugins(tables: tuple[Table, ...]) -> list[str]:
    """Run the model laws (contract tests) on every plug-in component.

    Each plug-in component is combined with built-in components. Returns notes on permitted
    deviations from built-in components. Raises ConfigError for a broken law.
    """
    notes: list[str] = []
    checked: set[tuple[str, Choice, bool]] = set()
    defaults = {slot: REGISTRIES[slot].resolve(getattr(Model(), slot)) for slot in SLOTS}
    variants = (variant for table in tables for variant in table.variants)
    for variant, layer in ((v, v.spec.layer(i)) for v in variants for i in distinct(v.spec)):
        is_masked = variant.spec.separator is not None
        choices = [(s, getattr(layer, s), is_masked) for s in SLOTS]
        foreign = [
            choice
            for choice in choices
            if plugins.code_of(REGISTRIES[choice[0]].get(choice[1].name))
        ]
        for slot, choice, _ in (item for item in foreign if item not in checked):
            components = vars(layer) | {s: defaults[s] for s, _, _ in foreign} | {slot: choice}
            try:
                notes += laws.check(variant.spec.with_components(components), slot)
            except ConfigError as error:
                where = variant.place(slot) or ("model", slot)
                raise ConfigError(error.message, where) from None
        checked |= set(foreign)
    return list(dict.fromkeys(notes))


def check_optimizers(experiment: Experiment, tables: tuple[Table, ...]) -> None:
    """Refuse inconsistent options of optimizers or losses, and plug-ins that break a law.

    A law is a contract test that every optimizer must pass.
    """
    for table, point in itertools.product(tables, points(experiment)):
        for variant in table.variants:
            try:
                optimizer = table.optimizer({**variant.train, **point})
                if plugins.code_of(OPTIMIZERS.get(optimizer.name)):
                    optimizer_laws.check(optimizer)
                table.optimizer_bytes(variant, {**variant.train, **point})
            except ConfigError as error:
                is_loss = error.where[:1] == ("losses",)
                key, rest = ("losses", error.where[1:]) if is_loss else ("optimizer", error.where)
                place = variant.varied.get(f"train.{key}", ("train", key))
                where = ("tune", key) if key in point else place
                raise ConfigError(error.message, (*where, *rest)) from None


def check_compiled(experiment: Experiment, tables: tuple[Table, ...]) -> None:
    """Refuse compiled steps with dropout, whose seed would need a compilation per step."""
    for table in tables:
        for variant in table.variants:
            train = experiment.train.with_changes(variant.train)
            if train.compile == "always" and any(asdict(variant.spec.dropout).values()):
                what = f"'{variant.label}' has dropout, which is not compiled: say compile: never"
                raise ConfigError(what, variant.varied.get("train.compile", ("train", "compile")))


def check_floor(metrics: tuple[Choice, ...], texts: Sequence[tokens.Tokens]) -> None:
    """Refuse the metric `excess_loss` if no text has a known floor (lowest possible loss)."""
    for i, choice in enumerate(metrics):
        if choice.name == "excess_loss" and not any(text.source for text in texts):
            raise ConfigError(
                "'excess_loss' needs a corpus whose floor is known (depo, induction, lag-copy, "
                "mano, mqar, recall) and the tokenizer 'chars'",
                ("measure", i),
            )


def check_size(experiment: Experiment, text: tokens.Tokens, where: Where) -> None:
    """Refuse a text with less than one training batch or one evaluation window."""
    context = experiment.model.context
    batch = experiment.train.batch * context + 1
    for split, needed in {"train": batch, **dict.fromkeys(text.heldout, context + 1)}.items():
        if text.counts.get(split, 0) < needed:
            raise ConfigError(
                f"the {split} split has {text.counts.get(split, 0):,} tokens, smaller than one "
                f"{'batch' if split == 'train' else 'window'} of {needed:,}",
                (*where, "corpus"),
            )
