"""Check an experiment file as a whole, across its keys, before training."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np
from numpy.typing import NDArray

from llama_ablate.config import margins, plugins
from llama_ablate.config.experiment import Data, Experiment, ExperimentFile, Model
from llama_ablate.config.registry import Choice
from llama_ablate.config.spec import SLOTS
from llama_ablate.data import tokens
from llama_ablate.design.runs import count_optimizer_bytes, optimizer_of, points
from llama_ablate.design.variants import TOKENIZER, find_place
from llama_ablate.errors import ConfigError, Where, dotted, nearest, need, under
from llama_ablate.model import laws
from llama_ablate.model.components import REGISTRIES
from llama_ablate.model.counts import distinct
from llama_ablate.results.plan_document import (
    PlanDocument,
    PlannedTable,
    PlannedText,
    PlannedVariant,
)
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
        name, at = guard.metric, ("guard", i, "metric")
        METRICS.resolve(name, at)
        need(name in measured, f"'{name}' is not measured: add it to 'measure'", *at)
        is_usable = not METRICS.timed(name) or is_paired(measured[name])
        need(is_usable, f"a guard needs timings in pairs: {{name: {name}, paired: true}}", *at)
        quantities = METRICS.worse(name)
        quantity = guard.quantity or next(iter(quantities), None)
        said = f"'{name}' says of none of its numbers which is worse: name one by 'quantity', and "
        need(quantity, f"{said}'worse': lower or higher", "guard", i)
        worse = guard.worse or quantities.get(quantity or "")
        said = f"'{name}' does not say which '{quantity}' is worse"
        said += nearest(quantity, quantities) if quantities else ""
        need(worse, f"{said}; or say 'worse': lower or higher", "guard", i, "quantity")
        filled.append(guard.model_copy(update={"quantity": quantity, "worse": worse}))
    return experiment.model_copy(update={"guard": filled}) if filled else experiment


def check_losses(tables: Sequence[PlannedTable]) -> None:
    """Refuse variants with other training losses under a budget in FLOPs.

    The FLOPs of losses are not counted.
    """
    for table in tables:
        for variant in table.variants if table.budget == "flops" else ():
            if variant.train.get("losses") != table.baseline.train.get("losses"):
                what = "what these losses compute is not counted, so 'budget' is tokens or seconds"
                raise ConfigError(f"'{variant.label}': {what}", find_place(variant.varied))


def check_text(
    of_table: PlannedText, experiment: Experiment, variant: PlannedVariant, budget: str
) -> None:
    """Refuse variants whose other context or tokenizer makes them read different text.

    `of_table` is the text of the comparison table.
    """
    context = variant.model["context"] != experiment.model.context
    if not (context or variant.text):
        return
    what, key = ("contexts", "context") if context else ("tokenizers", TOKENIZER)
    place = find_place(variant.varied, key)
    said = f"variants of several {what} are paired by documents: give 'order: documents' in 'data'"
    need(of_table.source.with_changes(variant.data).order != "windows", said, *place)
    if variant.text is None:
        return
    said = "a token is not the same text for every tokenizer; allowed: bytes, flops, seconds"
    need(budget != "tokens", said, "budget")
    said = "the laws of a ladder are in nats per token of one tokenizer"
    need(not experiment.sizes, said, *place)
    for text, where in ((of_table, ("data", "tokenizer")), (variant.text, place)):
        said = f"the tokenizer loses text ({text.lost}), so it has no bits per byte to compare"
        need(not text.lost, said, *where)
        said = "has other documents than the table's own tokenizer"
        need(text.documents == of_table.documents, said, *where)


def check_new(text: PlannedText, others: Sequence[PlannedText], where: Where) -> None:
    """Refuse a text that repeats another text: same tokens, read in the same way."""
    bare_texts = [
        text.source.model_copy(update={"name": None, "corpus": ""}) for text in (text, *others)
    ]
    for i, (other, way) in enumerate(zip(others, bare_texts[1:], strict=True)):
        if other.fingerprint == text.fingerprint and way == bare_texts[0]:
            raise ConfigError(f"is the same text as texts[{i}], read in the same way", where)


def check_droppable(own: tokens.Tokens, stands: Mapping[str, NDArray[np.bool_]]) -> None:
    """Refuse `overlap: drop` if no document of a held-out split would remain.

    `overlap: drop` leaves out held-out documents that also occur in training text. Leaving out
    documents of a split with a single document is refused, too. `own` are the tokens of the text,
    and `stands` maps each split to a mask of the documents to leave out.
    """
    for split, documents in stands.items():
        if len(documents) == 1 and own.document_counts[split] == 1:
            why = (
                f"leaves out documents, and the {split} split is a single one, or the tokenizer "
                "has no token between them"
            )
        elif documents.all():
            why = (
                f"would leave no document of the {split} split: all {len(documents):,} also stand "
                "in a training text, or test in validation text"
            )
        else:
            continue
        raise ConfigError(f"'drop' {why}; allowed: refuse, allow", ("data", "overlap"))


def check_overlaps(text: PlannedText, variant: PlannedVariant) -> None:
    """Refuse held-out text that overlaps training text by more than 1%."""
    data = text.source.with_changes(variant.data)
    read = {"test", *(data.mixture or ["corpus"])}
    for name, overlap in text.overlaps.items():
        share = overlap.tokens / overlap.all_tokens
        if data.overlap != "refuse" or share <= MAX_OVERLAP or name not in read:
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
            f"{share:.1%} of the {kind} tokens of {corpus_key}, {overlap.documents:,} of "
            f"{overlap.all_documents:,} documents as a whole, also stand in {there}: give other "
            "text"
            f"{drop}, or keep them with 'overlap: allow'",
            (*text.where, *key),
        )


def check_documents(text: PlannedText, where: Where, variant: PlannedVariant | None = None) -> None:
    """Refuse per-document masks and document order for tokens of a single document.

    The corpus then has one document, or the tokenizer has no separator token.
    """
    data = text.source.with_changes(variant.data if variant else {})
    for key, value, does in (
        ("documents", "mask", "keeps documents apart"),
        ("order", "documents", "reads documents in random order"),
    ):
        said = f"'{value}' {does}, and these tokens are one document: the corpus has no other, or "
        said += "the tokenizer no token that stands between them; allowed: "
        place = find_place(variant.varied if variant else {}, f"data.{key}", (*where, key))
        is_fine = getattr(data, key) != value or text.documents["train"] != 1
        need(is_fine, f"{said}{Data.model_fields[key].default}", *place)


def check_precisions(tables: Sequence[PlannedTable], device: str) -> None:
    """Refuse varied precision on a device without matrix products in bfloat16."""
    varied = (v for table in tables for v in table.variants if "precision" in v.train)
    if (variant := next(varied, None)) and not multiplies_bfloat16(device):
        message = "this device has no instructions for products in bfloat16; allowed: float32"
        raise ConfigError(message, find_place(variant.varied, "train.precision"))


def check_tuned(experiment: Experiment, metrics: tuple[Choice, ...]) -> None:
    """Refuse tuning without the metric `perplexity`.

    Tuned values are selected by the validation loss, which this metric measures.
    """
    is_measured = any(choice.name == "perplexity" for choice in metrics)
    said = "what is tuned is chosen by the validation loss: 'measure' needs 'perplexity'"
    need(is_measured or not experiment.tune, said, "measure")


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
        said = f"{what} needs an interval, and an interval two seeds or more"
        need(len(experiment.seed_list) > 1 or not wanted, said, "seeds")


def check_margins(experiment: Experiment, tables: Sequence[PlannedTable]) -> None:
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
        said = f"needs a 'margin', such as '0.02 nats': the control must {must}"
        need(experiment.margin is not None or not wanted, said, "controls", key)


def check_hypotheses(plan: PlanDocument) -> None:
    """Refuse hypotheses about unknown tables or variants."""
    names = [table.name for table in plan.tables]
    for i, hypothesis in enumerate(plan.experiment.hypotheses):
        name = hypothesis.table or names[0]
        said = f"no table is called '{name}'{nearest(name, names)}"
        need(name in names, said, "hypotheses", i, "table")
        table = plan.tables[names.index(name)]
        labels = [variant.label for variant in table.variants]
        for key in ("variant", "against"):
            name = getattr(hypothesis, key)
            if name is not None and plan.variant(name, table) is None:
                message = f"no variant is called '{name}'{nearest(name, labels)}"
                raise ConfigError(message, ("hypotheses", i, key))


def check_metrics(metrics: tuple[Choice, ...], tables: Sequence[PlannedTable]) -> None:
    """Refuse metrics that do not apply to the model or the text of a variant."""
    from llama_ablate.measure import METRICS

    for (i, choice), table in itertools.product(enumerate(metrics), tables):
        by_fingerprint = {table.text_of(v).fingerprint: v for v in reversed(table.variants)}
        with under(("measure", i)):
            for variant in by_fingerprint.values():
                METRICS.check(choice, variant.spec, table.text_of(variant).opened["corpus"])
    several = any(variant.text for table in tables for variant in table.variants)
    if several and all(choice.name != "perplexity" for choice in metrics):
        raise ConfigError("bits per byte are a number of 'perplexity'", ("measure",))


def check_plugins(tables: Sequence[PlannedTable]) -> None:
    """Run the model laws (contract tests) on every plug-in component.

    Each plug-in component is combined with built-in components. Raises ConfigError for a broken
    law.
    """
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
            with under(find_place(variant.varied, slot, ("model", slot)), None):
                laws.check(variant.spec.with_components(components), slot)
        checked |= set(foreign)


def check_optimizers(experiment: Experiment, tables: Sequence[PlannedTable]) -> None:
    """Refuse inconsistent options of optimizers or losses, and plug-ins that break a law.

    A law is a contract test that every optimizer must pass.
    """
    for table, point in itertools.product(tables, points(experiment)):
        for variant in table.variants:
            try:
                optimizer = optimizer_of(experiment, {**variant.train, **point})
                if plugins.code_of(OPTIMIZERS.get(optimizer.name)):
                    optimizer_laws.check(optimizer)
                count_optimizer_bytes(experiment, variant, {**variant.train, **point})
            except ConfigError as error:
                is_loss = error.where[:1] == ("losses",)
                key, rest = ("losses", error.where[1:]) if is_loss else ("optimizer", error.where)
                place = variant.varied.get(f"train.{key}", ("train", key))
                where = ("tune", key) if key in point else place
                raise ConfigError(error.message, (*where, *rest)) from None


def check_compiled(experiment: Experiment, tables: Sequence[PlannedTable]) -> None:
    """Refuse compiled steps with dropout, whose seed would need a compilation per step."""
    for table in tables:
        for variant in table.variants:
            train = experiment.train.with_changes(variant.train)
            if train.compile == "always" and any(asdict(variant.spec.dropout).values()):
                what = f"'{variant.label}' has dropout, which is not compiled: say compile: never"
                raise ConfigError(what, variant.varied.get("train.compile", ("train", "compile")))


def check_vocabulary(source: ExperimentFile, texts: Sequence[PlannedText]) -> None:
    """Refuse a stated vocabulary size other than the tokenizer's; a base may state another."""
    vocab = source.experiment.model.vocab
    for text in texts:
        said = f"the tokenizer has {text.vocab:,} tokens, which is the vocabulary: leave this out"
        need(vocab in (None, text.vocab, source.base_model.get("vocab")), said, "model", "vocab")


def check_floor(metrics: tuple[Choice, ...], texts: Sequence[tokens.Tokens]) -> None:
    """Refuse the metric `excess_loss` if no text has a known floor (lowest possible loss)."""
    for i, choice in enumerate(metrics):
        said = "'excess_loss' needs a corpus whose floor is known (depo, induction, lag-copy, "
        is_known = choice.name != "excess_loss" or any(text.source for text in texts)
        need(is_known, f"{said}mano, mqar, recall) and the tokenizer 'chars'", "measure", i)


def check_size(experiment: Experiment, text: tokens.Tokens, where: Where) -> None:
    """Refuse a text with less than one training batch or one evaluation window."""
    context = experiment.model.context
    batch = experiment.train.batch * context + 1
    for split, needed in {"train": batch, **dict.fromkeys(text.heldout, context + 1)}.items():
        size, unit = text.counts.get(split, 0), "batch" if split == "train" else "window"
        said = f"the {split} split has {size:,} tokens, smaller than one {unit} of {needed:,}"
        need(size >= needed, said, *where, "corpus")
