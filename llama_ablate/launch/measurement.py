"""Measurement of variants and finished runs, in separate processes."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from llama_ablate.config import plugins
from llama_ablate.config.experiment import Train
from llama_ablate.config.registry import Choice, Entry
from llama_ablate.config.spec import ModelSpec, digest
from llama_ablate.data.tokens import Tokens
from llama_ablate.design.plan import StepTimes
from llama_ablate.design.plan_texts import open_tokens
from llama_ablate.design.runs import refuse_other_code
from llama_ablate.errors import ConfigError
from llama_ablate.evidence.medians import WANTED_HALF_WIDTH
from llama_ablate.launch import processes
from llama_ablate.launch.environment import environment
from llama_ablate.measure import METRICS, Subject
from llama_ablate.measure.turns import (
    MAX_PAIRED_S,
    MAX_PROCESSES,
    PROCESSES,
    ROUNDS,
    Arm,
    half_width,
    is_paired,
    joined,
    measure_arms,
)
from llama_ablate.model.components import spec_from
from llama_ablate.model.decoder import Decoder, build
from llama_ablate.model.weights import load_weights
from llama_ablate.results import Record, Store
from llama_ablate.results.plan_document import (
    PlanDocument,
    PlannedTable,
    PlannedText,
    PlannedVariant,
)
from llama_ablate.results.protocol import StatedMetrics
from llama_ablate.results.record import Measurement
from llama_ablate.terminal import say
from llama_ablate.training.compute import Compute

_KEY = "measure"  # lock of a results folder: concurrent measurements would slow each other
#: Limits for unpaired speed measurements: no round begins after this many seconds, or after this
#: share of the training time.
_MAX_UNPAIRED_S, _MAX_UNPAIRED_SHARE = 30.0, 0.05


def measure_step_times(store: Store, plan: PlanDocument, compute: Compute) -> StepTimes:
    """Return a function that gives the seconds per training step of a table's variants.

    The variants are timed once, in interleaved rounds; the times are stored in the results.
    """

    def measured(table: PlannedTable) -> list[float]:
        arms = [
            (
                v.spec,
                plan.train_of(v, table),
                table.text_of(v).model_copy(update={"opened": {}}),  # open files cannot be sent
            )
            for v in table.variants
        ]
        train = arms[0][1].identity()
        key = digest([[v.id for v in table.variants], train, compute.to_dict()])
        speed = METRICS.resolve("train_speed")

        def measure() -> list[float]:
            say(f"measuring the pace of {len(arms)} variants")
            metrics: list[dict[str, Measurement]] = processes.call(
                _measure, arms, [speed], compute, 5, log=store.log("pace")
            )
            speeds = [metric[speed.name].numbers["train_tokens_per_s"] for metric in metrics]
            steps = (train.batch * spec.context for spec, train, _ in arms)
            return [tokens / per_s for tokens, per_s in zip(steps, speeds, strict=True)]

        seconds: list[float] = store.measure_once("pace", key, measure)
        return seconds

    return measured


def measure_variants(
    store: Store,
    plan: PlanDocument,
    metrics: Sequence[Choice],
    progress: Callable[[int, int], None],
    *,
    again: bool = False,
) -> None:
    """Measure the per-variant metrics of all variants, with speeds in interleaved rounds.

    A metric that any variant lacks, or that was measured with other settings, is measured for all
    variants, since ratios are valid only between values that were measured together. If `again` is
    set, all metrics are measured again. New values replace earlier values.
    """
    arms, compute = [variant for variant, _ in plan.arms], Compute.of(plan.compute)
    circumstances = [_circumstances(plan, *arm) for arm in plan.arms]
    pass_key = [circumstances, PROCESSES, ROUNDS, compute.to_dict()]
    planned = [c for c in metrics if METRICS.per(c.name) == "variant" and _is_taken(c)]
    marks = {c.name: digest([*pass_key, _entry(c)]) for c in planned}
    # Speeds that were measured in pairs are more precise, and are kept.
    better = {c.name: digest([*pass_key, _entry(_paired(c))]) for c in planned}
    with store.alone(_KEY) as lease:
        stated_metrics = StatedMetrics(plan.experiment)
        known_metrics = [
            stated_metrics.read(stored)
            for stored in store.metrics_of([v.id for v in arms], sound=True).values()
        ]
        choices = [
            choice
            for choice in planned
            if again
            or any(
                _mark(earlier.get(choice.name)) not in (marks[choice.name], better[choice.name])
                for earlier in known_metrics
            )
        ]
        if not choices:
            return
        measured = _measured(store, plan, choices, progress)
        here, entries = environment(), {choice.name: choice.shortest() for choice in choices}
        for variant, values in zip(arms, measured, strict=True):
            for name, metric in values.items():
                complete = replace(
                    metric,
                    entry=entries[name],
                    circumstances=marks[name],
                    compute=compute.to_dict(),
                    environment=here,
                )
                store.add_metric(
                    lease, store.variant_folder(variant.label, variant.id), name, complete
                )


def metrics_of(plan: PlanDocument) -> list[Choice]:
    """Return the metrics of a plan, with all their options."""
    return [METRICS.resolve(entry) for entry in plan.experiment.measure]


def _is_taken(choice: Choice) -> bool:
    """Return whether a per-variant metric needs a separate measurement.

    An unpaired training speed needs none, since it is computed from the variant's runs.
    """
    return choice.name != "train_speed" or is_paired(choice)


def _paired(choice: Choice) -> Choice:
    """Return a metric with the option `paired` set, if it has this option."""
    has_option = "paired" in dict(choice.options)
    options = {**dict(choice.options), "paired": True}
    return METRICS.resolve({"name": choice.name, **options}) if has_option else choice


def _entry(choice: Choice) -> Entry:
    """Return the configuration entry that identifies a measurement.

    Options are left out at values that name what earlier versions measured without these options.
    """
    unsaid = (("paired", True), ("uncached", False))
    options = {key: value for key, value in choice.options if (key, value) not in unsaid}
    return {"name": choice.name, **options} if options else choice.name


def _mark(metric: Measurement | None) -> str:
    return metric.circumstances if metric else ""


def _measured(
    store: Store,
    plan: PlanDocument,
    choices: Sequence[Choice],
    progress: Callable[[int, int], None],
) -> list[dict[str, Measurement]]:
    """Measure the per-variant metrics of each variant, by metric name.

    Timed metrics are measured in new interpreters; paired speeds in several, until their intervals
    are narrow enough or `MAX_PAIRED_S` seconds are over, but in two at least.
    """
    arms = [
        (spec_from(variant.model), plan.train_of(variant, table), table.text_of(variant))
        for variant, table in plan.arms
    ]
    paired = [c for c in choices if is_paired(c)]
    timed = [c for c in choices if METRICS.timed(c.name) and not is_paired(c)]
    others = [c for c in choices if not METRICS.timed(c.name)]
    total = len(arms) * (len(others) + ROUNDS * (len(timed) + MAX_PROCESSES * len(paired)))
    done = 0

    def take(taken: Sequence[Choice], rounds: int, limit_s: float) -> list[dict[str, Measurement]]:
        nonlocal done
        before, done = done, done + rounds * len(arms) * len(taken)
        metrics: list[dict[str, Measurement]] = processes.call(
            _measure,
            arms,
            taken,
            Compute.of(plan.compute),
            rounds,
            limit_s,
            anew=taken is not others,
            log=store.log(_KEY),
            report=lambda calls: progress(before + calls, total),
        )
        return metrics

    passes = [take(others, 1, math.inf)] if others else []
    if timed:
        trained_s = sum(record.train_s for record in store.records())
        passes.append(take(timed, ROUNDS, min(_MAX_UNPAIRED_S, _MAX_UNPAIRED_SHARE * trained_s)))
    timings: list[list[dict[str, Measurement]]] = []
    until = time.monotonic() + MAX_PAIRED_S
    while paired and len(timings) < MAX_PROCESSES:
        timings.append(take(paired, ROUNDS, MAX_PAIRED_S / PROCESSES))
        late = len(timings) > 1 and time.monotonic() > until
        if late or (len(timings) >= PROCESSES and _is_precise(plan, timings, paired)):
            break
    return _joined([*passes, *timings], [c.name for c in choices])


def _joined(
    of_processes: Sequence[Sequence[dict[str, Measurement]]], names: Sequence[str]
) -> list[dict[str, Measurement]]:
    """Join the metrics from several measuring processes, separately for each variant."""
    return [
        {
            name: joined([metrics[name] for metrics in arm_metrics if name in metrics])
            for name in names
        }
        for arm_metrics in zip(*of_processes, strict=True)
    ]


def _is_precise(
    plan: PlanDocument,
    timings: Sequence[Sequence[dict[str, Measurement]]],
    paired: Sequence[Choice],
) -> bool:
    """Return whether the paired speeds measured so far have narrow enough intervals."""
    names = [choice.name for choice in paired]
    places = {variant.id: i for i, (variant, _) in enumerate(plan.arms)}
    bases = [places[table.baseline.id] for _, table in plan.arms]
    arms = _joined(timings, names)
    widest = max(half_width([arm[name] for arm in arms], bases, name) for name in names)
    return widest <= WANTED_HALF_WIDTH


def _circumstances(plan: PlanDocument, variant: PlannedVariant, table: PlannedTable) -> list[Any]:
    """Return the settings on which a variant's measurement depends.

    Compute settings and training length are left out. The spec and train config are reduced to
    their differences from the defaults, so that a new option or key does not invalidate earlier
    measurements.
    """
    train = plan.train_of(variant, table).identity("tokens", "steps", "evals")
    return [spec_from(variant.model).identity(), train, table.text_of(variant).fingerprint]


def measure_finished(
    store: Store, asked: Sequence[Any], progress: Callable[[int, int], None], *, again: bool = False
) -> None:
    """Measure metrics of finished runs from their weights, and metrics of variants.

    A metric that is named alone has the experiment's options; speeds are measured in pairs.
    Values measured with the same options in the same circumstances are kept; if `again` is set,
    they are measured again and replaced. Raises ConfigError for an unknown metric, for a run
    without weights to measure, and if the corpus or a plug-in has changed.
    """
    plan = store.plan
    listed = {c.name: c for c in map(METRICS.resolve, plan.experiment.measure)}
    choices = [_paired(listed.get(str(entry)) or METRICS.resolve(entry)) for entry in asked]
    entries = [*plan.experiment.measure, *(choice.shortest() for choice in choices)]
    if plan.compute is None:
        raise ConfigError(f"'{store.root}' has no finished runs to measure")
    _refuse(store, plan, choices)
    experiment = plan.experiment.model_copy(update={"measure": entries})
    plan = plan.model_copy(update={"experiment": experiment})
    measure(store, plan, choices, progress, asked=True, again=again)


def measure(
    store: Store,
    plan: PlanDocument,
    metrics: Sequence[Choice],
    progress: Callable[[int, int], None],
    *,
    asked: bool = False,
    again: bool = False,
) -> None:
    """Measure the metrics that finished runs and variants lack.

    A metric measured with other options counts as lacking. Metrics of runs are measured from
    weights. If `asked` is set, failed metrics are retried, and a run without weights raises
    ConfigError; otherwise such a run is left out. If `again` is set, all metrics are measured
    again.
    """
    with store.alone(_KEY) as lease:
        wanted = _wanted(store, plan, metrics, asked=asked, again=again)
        for done, (record, choices) in enumerate(wanted, 1):
            arguments = (str(store.root), record.id, [choice.entry() for choice in choices])
            measured = processes.call(measure_run, *arguments, log=store.log(_KEY))
            folder = store.folders()[record.id].path
            for name, metric in measured.items():
                store.add_metric(lease, folder, name, metric)
            progress(done, len(wanted))
    measure_variants(store, plan, metrics, progress, again=again)


def _wanted(
    store: Store, plan: PlanDocument, metrics: Sequence[Choice], *, asked: bool, again: bool
) -> list[tuple[Record, list[Choice]]]:
    """Return each finished run that lacks metrics, with a list of the missing metrics.

    Raises ConfigError as `measure` does.
    """
    per_run = [c for c in metrics if METRICS.per(c.name) == "run"]
    stated_metrics = StatedMetrics(plan.experiment)
    wanted = []
    for record in store.records() if per_run else ():
        lacking = [
            c for c in per_run if again or _lacks(record, c.name, stated_metrics, retry=asked)
        ]
        if not record.ok or not lacking:
            continue
        if store.weights(record.id) is not None:
            wanted.append((record, lacking))
        elif asked:
            what = f"'{record.label}' s{record.seed} has no weights to measure"
            raise ConfigError(f"{what}: {store.why_no_weights(record.id)}")
    return wanted


def _lacks(record: Record, name: str, stated: StatedMetrics, *, retry: bool) -> bool:
    """Return whether a metric of a run is missing or has to be measured again.

    A metric with other options than `stated` counts as missing. If `retry` is set, a failed metric
    has to be measured again.
    """
    metric = record.metrics.get(name)
    if metric is None or stated.other(name, metric):
        return True
    return retry and bool(metric.error) and not metric.rows


def _refuse(store: Store, plan: PlanDocument, choices: Sequence[Choice]) -> None:
    """Raise ConfigError for metrics that do not fit the variants, or changed text or plug-ins."""
    store.refuse_links()
    for variant, table in plan.arms:
        spec, train = spec_from(variant.model), plan.train_of(variant, table)
        refuse_other_code(spec, plan.settings.plugins, f"'{store.root}'", train)
        tokens = _open_text(table.text_of(variant), [choice.name for choice in choices])
        for choice in choices:
            METRICS.check(choice, spec, tokens)


def _open_text(text: PlannedText, metrics: Sequence[str]) -> Tokens:
    """Open a planned text, or describe it if all metrics do without its tokens.

    Raises ConfigError if the corpus has changed since the plan was made.
    """
    if any(METRICS.reads_text(name) for name in metrics):
        return open_tokens(text)
    return Tokens(
        Path(), text.fingerprint, text.corpus, text.vocab, text.tokens, text.bytes, sums={}
    )


def measure_run(
    _report: Callable[[Any], None], root: str, run_id: str, entries: list[Any]
) -> dict[str, Measurement]:
    """Measure metrics of a finished run from its weights, in a child process."""
    store = Store(Path(root))
    model, record, compute = open_run(store, run_id)
    table = store.table_of(run_id)
    tokens = open_tokens(table.text_of(table.variant(record.variant)))
    subject = Subject(model, tokens, Train.model_validate(record.train), compute)
    choices = [METRICS.resolve(entry) for entry in entries]
    metrics = METRICS.measure_all(choices, subject, store.plan.readings(table))
    tokens.check()
    return metrics


def open_run(store: Store, run_id: str) -> tuple[Decoder, Record, Compute]:
    """Load a finished run's model on its device, and the plan's plug-ins.

    Returns the model, the run's record, and its compute settings.
    """
    record, file = store.record(run_id), store.weights(run_id)
    assert record is not None, run_id
    assert file is not None, run_id
    plugins.load_recorded(store.plan.settings.plugins)
    compute = Compute.from_dict(record.compute)
    model = compute.prepare(load_weights(build(spec_from(record.model)), file))
    return model, record, compute


def _measure(
    report: Callable[[Any], None],
    arms: Sequence[tuple[ModelSpec, Train, PlannedText]],
    choices: Sequence[Choice],
    compute: Compute,
    rounds: int,
    limit_s: float = math.inf,
) -> list[dict[str, Measurement]]:
    names = [choice.name for choice in choices]
    opened = [Arm(spec, train, _open_text(text, names)) for spec, train, text in arms]
    return measure_arms(opened, choices, compute, rounds=rounds, limit_s=limit_s, report=report)
