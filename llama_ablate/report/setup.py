"""The set-up of an experiment in a paragraph: models, training, rates, statistics, limits."""

from collections.abc import Iterator, Mapping

import pandas as pd

from llama_ablate.config.labels import entry_text, name_corpus
from llama_ablate.config.spec import SLOTS
from llama_ablate.evidence.written import ends
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.rows import grouped
from llama_ablate.report.headline import list_limits
from llama_ablate.report.tables import shorten_number
from llama_ablate.report.warnings import list_tuning_limits
from llama_ablate.results.plan_document import PlannedTable
from llama_ablate.terminal import listed, plural


def describe_setup(frames: Frames) -> str:
    """Describe the set-up in a paragraph, with its limits."""
    parts = (_describe_models, _describe_training, _describe_rates, _describe_statistics)
    return " ".join(
        [*(part(frames) for part in parts), describe_computing(frames), *_list_limits(frames)]
    )


def _describe_models(frames: Frames) -> str:
    plans = [table.plan for table in frames.tables]
    model, first = plans[0].baseline.model, plans[0]
    variants = sum(not (v.role or v.baseline) for v in first.variants)
    components = listed([_component(model[slot]) for slot in SLOTS if slot in model])
    shapes = dict.fromkeys(
        f"{shorten_number(plan.baseline.parameters)} parameters ({_list_sizes(plan)})"
        for plan in plans
    )
    matching = " or ".join(dict.fromkeys(plan.matching for plan in plans))
    return (
        f"We compare {variants} {plural(variants, 'variant')} with a baseline of {components}, "
        f"which has {listed([*shapes])}. Variants are {matching}."
    )


def _list_sizes(plan: PlannedTable) -> str:
    return ", ".join(f"{name} {value:,}" for name, value in plan.size.items())


def _describe_training(frames: Frames) -> str:
    plans, train = [table.plan for table in frames.tables], frames.plan.experiment.train
    base = plans[0].baseline
    batch, context = base.train.get("batch", train.batch), base.model.get("context", "?")
    texts = dict.fromkeys(
        f"{name_corpus(plan.text.source)} ({shorten_number(plan.text.tokens['train'])} training "
        f"tokens of a vocabulary of {plan.text.vocab:,})"
        for plan in plans
    )
    tokens = ends((plan.tokens_per_run for plan in plans), shorten_number)
    most = max(plan.passes(plan.baseline) for plan in plans)
    passes = f" ({most:.3g} passes over it)" if most > 1 else ""
    steps = ends((plan.steps for plan in plans), "{:,}".format)
    return (
        f"A run reads {tokens} tokens of {listed([*texts])}{passes} in {steps} steps of {batch} "
        f"sequences of {context} tokens. {_describe_optimizer(frames)}"
    )


def _describe_optimizer(frames: Frames) -> str:
    train, variants = frames.plan.experiment.train, frames.table.plan.variants
    each = (_component(v.train.get("optimizer", train.optimizer)) for v in variants)
    options = {"weight decay": train.weight_decay, "gradient clipping": train.clip}
    told = listed([f"{name} {value:g}" for name, value in options.items() if value])
    return (
        f"The optimizer is {' or '.join(dict.fromkeys(each))}{f' ({told})' * bool(told)}, the "
        f"learning rate schedule {_component(train.schedule)} after a warm-up over "
        f"{train.warmup:.0%} of the steps."
    )


def _describe_rates(frames: Frames) -> str:
    """Describe the learning rates: the grid, what chose, and each variant's choice."""
    experiment = frames.plan.experiment
    rate = f"The learning rate is {write_rate(frames)}. " * ("lr" not in experiment.tune)
    if not experiment.tune:
        return f"{rate}Nothing is tuned."
    grid = "; ".join(f"{key} in {listed(values)}" for key, values in _write_grid(experiment.tune))
    chose = "the mean validation loss of the reported seeds"
    if experiment.race:
        chose = f"the validation loss of {experiment.race} {plural(experiment.race, 'seed')}, "
        chose += "which no table reports"
    points: dict[str, list[str]] = {}
    for row in (row for table in frames.tables for row in table.comparison if not row.role):
        points.setdefault(row.label, []).append(row.point or "not chosen yet")
    differ = any(len({*each}) > 1 for each in points.values())
    same = grouped(points, lambda label: tuple(points[label] if differ else points[label][:1]))
    chosen = "; ".join(f"{', '.join(own)} for {listed(names)}" for own, names in same.items())
    order = ", in the order of the tables" * differ
    return f"{rate}Each variant is tuned ({grid}) by {chose}; chosen{order}: {chosen}."


def _write_grid(tune: Mapping[str, list[object]]) -> Iterator[tuple[str, list[str]]]:
    for key, values in tune.items():
        yield key, [f"{v:g}" if isinstance(v, float) else entry_text(v) for v in values]


def _describe_statistics(frames: Frames) -> str:
    seeds = frames.plan.experiment.looks[-1]
    return (
        f"Each variant has {seeds} {plural(seeds, 'seed')}; differences are paired by seed, and "
        "intervals are Student's t at 95%, Bonferroni over the rows of a table."
    )


def _list_limits(frames: Frames) -> list[str]:
    """List what limits the comparison: rates at a grid's end, failing controls, what is open."""
    plans = [table.plan for table in frames.tables]
    experiment = frames.plan.experiment
    open_questions = {
        "other sizes": len({str(plan.size) for plan in plans}) == 1,
        "other texts": len({plan.text.fingerprint for plan in plans}) == 1,
        "other lengths of training": not experiment.train.branches
        and len({plan.steps for plan in plans}) == 1,
        "a learning rate for each variant": "lr" not in experiment.tune
        and "train.lr" not in experiment.variants.axes,
        "other architectures": True,
    }
    untested = ", ".join(what for what, is_open in open_questions.items() if is_open)
    rates = [line for table in frames.tables for line in list_tuning_limits(table)]
    return [*list_limits(frames), *dict.fromkeys(rates), f"Not tested: {untested}."]


def _component(entry: object) -> str:
    return entry_text(entry, options=False)


def write_rate(frames: Frames) -> str:
    """Write the learning rate of all variants; of several the least and the most."""
    shared = frames.plan.experiment.train.lr
    each = {v.train.get("lr", shared) for v in frames.table.plan.variants if not v.role}
    return ends(each, "{:g}".format) + ", by variant" * (len(each) > 1)


def describe_computing(frames: Frames) -> str:
    """Say on what, and in which precision, the runs of all tables computed."""
    made = pd.concat([table.machines for table in frames.tables])

    def named(what: str, key: str) -> str:
        return " or ".join(sorted({*made.get(what, ())})) or str(frames.compute.get(key, "?"))

    threads = named("numbers of threads", "threads")
    return (
        f"Computed on {named('devices', 'device')} in {named('precisions', 'precision')} with the "
        f"{named('attention kernels', 'kernel')} attention kernel and {threads} "
        f"{plural(threads, 'thread')} a worker"
        f"{', training steps compiled' if frames.compute.get('compiled') else ''}."
    )
