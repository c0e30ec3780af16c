"""Details of variants, runs and pairs of variants, as text and plain values."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from statistics import stdev
from typing import Any

import pandas as pd

from llama_ablate.config.labels import entry_text
from llama_ablate.config.spec import SLOTS
from llama_ablate.evidence import Interval, measure_pairing, written
from llama_ablate.findings.compare import RowFamily, compare
from llama_ablate.findings.comparison import count_outcomes
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.findings.rows import frame, grouped, mean
from llama_ablate.findings.values import UNSTABLE, MetricRow, RunRow
from llama_ablate.report import tables
from llama_ablate.results import FINAL
from llama_ablate.results.plan_document import PlannedVariant
from llama_ablate.results.record import TRAINING
from llama_ablate.results.snapshot import Results
from llama_ablate.terminal import plural

_SHORT = 25  # most lines of a variant's short text
#: Text for a terminal, and the same content as plain values for JSON.
ShownPart = tuple[str, dict[str, Any]]


def variant(table: TableFrames, chosen: PlannedVariant, *, everything: bool = True) -> ShownPart:
    """Describe a variant: its architecture, runs, and measured values.

    Without `everything` the text has at most 25 lines; the returned values are the same.
    """
    runs = [run for run in table.runs if run.variant == chosen.id]
    reported = [run for run in runs if run.is_reported]
    ended = [run for run in reported if run.outcome in FINAL]
    metrics = [row for row in table.metrics.variant_rows if row.variant == chosen.id]
    context = table.comparison[0].context
    ids = {run.id for run in runs}
    run_errors = [row for row in table.attempts if row.error and row.run in ids]
    variant_metrics = [
        row for row in table.attempts if row.error and not row.run and row.variant == chosen.id
    ]
    failed = Counter((row.metric, row.error) for row in run_errors)
    changed = changes(table, table.plan.baseline, chosen)
    same = {} if changed else {slot: chosen.model[slot] for slot in SLOTS if slot in chosen.model}
    lines = [
        f"{chosen.label} ({chosen.id})",
        *(f"{key}: {_changed(both)}" for key, both in changed.items()),
        *(f"{slot}: {entry_text(entry)}" for slot, entry in same.items()),
        f"{chosen.parameters:,} parameters: {chosen.active:,} active, {chosen.non_embedding:,} "
        "without embeddings",
        f"{written.number(chosen.flops_per_token, ',')} FLOPs a token; a state of "
        f"{written.number(chosen.state_bytes, ',')} bytes at {context:,} tokens, to which one more "
        f"adds {written.number(chosen.kv_bytes_per_token, ',')}",
        f"{len(runs)} runs: {count_outcomes(run.ended for run in runs)}",
        *(
            f"{failure[0]}: not measured of {n} of {len(runs)}: {failure[1]}"
            for failure, n in failed.items()
        ),
        *(f"seed {run.seed}: {run.reason}" for run in runs if run.reason),
        *(f"{row.metric}: not measured: {row.error}" for row in variant_metrics),
    ]
    if everything:
        numbers = {
            name: each
            for name in dict.fromkeys(name for run in runs for name in run.numbers)
            if not all(map(math.isnan, each := [run.number(name) for run in ended]))
        }
        trained = {f"train.{key}": value for key, value in chosen.train.items()}
        run_rows = [(run.id, str(run.seed), run.point, run.outcome, run.reason) for run in runs]
        cells = pd.DataFrame(run_rows, columns=["id", "seed", "point", "outcome", "reason"])
        lines += ["", _architecture(chosen.model | trained), "", tables.text(cells), ""]
        lines += [f"{name}: {_over_seeds(each)}" for name, each in numbers.items()]
        for metric, rows in grouped(metrics, lambda row: row.metric).items():
            values_of = (f"  {row.name}: {written.plain(row.value, 4)}" for row in rows)
            lines += ["", f"{metric}:", *values_of]
    else:
        reported_ids = {run.id for run in reported}
        measured = [*(row for row in table.metrics if row.run in reported_ids), *metrics]
        lines += ["", *_quantities(measured, table.split)]
        lines = [*lines[: _SHORT - 1], "all numbers, runs and options: --all"]
    values = chosen.model_dump(mode="json") | {
        "runs": [_plain(run) for run in runs],
        "metrics": frame(metrics, MetricRow).to_dict("records"),
        "not_measured": [
            {"run": row.run, "metric": row.metric, "error": row.error}
            for row in (*run_errors, *variant_metrics)
        ],
    }
    return "\n".join(lines), values


def _quantities(measured: Sequence[MetricRow], split: str) -> list[str]:
    """Format a line per measured quantity, with the quantities recorded in training last.

    If a quantity was measured on several splits, only the values on `split` are used.
    """
    reported_rows = [
        row
        for row in measured
        if row.coordinates.get("split", split) == split and "cluster" not in row.coordinates
    ]
    reported_rows.sort(key=lambda row: row.metric == TRAINING)
    lines = []
    for (_, quantity), rows in grouped(
        reported_rows, lambda row: (row.metric, row.quantity)
    ).items():
        names = grouped(rows, lambda row: row.name)
        means = [mean(row.value for row in each) for each in names.values()]
        finite = [value for value in means if not math.isnan(value)] or [math.nan]
        low, high = (written.plain(end, 4) for end in (min(finite), max(finite)))
        several = f"{quantity}: {low} to {high} ({len(means)} numbers)"
        description = f"{rows[0].name}: {_over_seeds([row.value for row in rows])}"
        lines.append(several if len(means) > 1 else description)
    return lines


#: Fields of a run in JSON that identify it, and fields that describe its outcome.
_RUN_COLUMNS = ("id", "variant", "label", "seed", "tuned", "point", "use")
_OUTCOME_COLUMNS = ("outcome", "reason", "too_short", "steps_done")


def _plain(run: RunRow) -> dict[str, object]:
    """Return a run as plain values for JSON."""
    first, last = ({k: getattr(run, k) for k in of} for of in (_RUN_COLUMNS, _OUTCOME_COLUMNS))
    return {**first, **last, **run.numbers}


def run(results: Results, run_id: str) -> ShownPart:
    """Describe a run: its record, its metrics, and the end of its learning curve."""
    if run_id not in results.finished:
        planned = results.plan.runs[run_id].model_dump(mode="json")
        return f"{run_id}: pending", {**planned, "outcome": "pending"}
    record, curve = results.record(run_id), results.curve(run_id)
    folder = results.folder(run_id)
    head = f"{record.label} s{record.seed} ({record.id}): {record.outcome} {record.reason}".rstrip()
    trained = results.plan.runs[run_id].train
    lines = [head, *([str(folder)] if folder else []), "", _architecture(record.model), ""]
    lines += [f"train.{key}: {entry_text(value)}" for key, value in trained.items()]
    lines += [f"{name}: {written.plain(value, 6)}" for name, value in record.numbers.items()]
    lines += [f"{name}: not measured: {why}" for name, why in record.unmeasured.items()]
    if curve:
        lines += ["", tables.text(pd.DataFrame(curve[-5:]).map(lambda v: written.plain(v, 6)))]
    return "\n".join(lines), {**asdict(record), "curve": curve, "folder": str(folder)}


def pair(table: TableFrames, a: PlannedVariant, b: PlannedVariant) -> ShownPart:
    """Compare variant B with variant A: changed settings, and every metric, paired by seed."""
    changed = changes(table, a, b)
    numbers = _numbers(table, a, b)
    names = ["measure", a.label, b.label]
    cells = pd.DataFrame(
        [
            (
                name,
                written.plain(mean(x), 5),
                written.plain(mean(y), 5),
                written.interval(difference.mean, difference.low, difference.high),
                written.number(measure_pairing(y, x).correlation, ".2f"),
            )
            for name, (x, y, difference) in numbers.items()
        ],
        columns=[*names, "difference over seeds [95%]", "r over seeds"],
    )
    speeds = pd.DataFrame(_speeds(table, a, b), columns=[*names, "ratio"])
    lines = [f"{a.label} -> {b.label}", ""]
    lines += [f"{key}: {_changed(both)}" for key, both in changed.items()]
    lines += ["", tables.text(cells) if len(cells) else "no seed that both finished", ""]
    lines += [_sentence(table, a, b), *_left_out(table, a, b)]
    lines += ["", tables.text(speeds)] if len(speeds) else []
    values = {
        "a": a.label,
        "b": b.label,
        "changed": changed,
        "seeds": sorted(table.pair(table.loss, b.id, a.id).own),
        "effects": {name: asdict(difference) for name, (_a, _b, difference) in numbers.items()},
        "speeds": speeds.to_dict("records"),
    }
    return "\n".join(lines), values


def changes(table: TableFrames, a: PlannedVariant, b: PlannedVariant) -> dict[str, list[object]]:
    """Return the settings of architecture, training and data that differ between two variants.

    The result maps each key to its values in A and in B.
    """
    both = {key: [a.model.get(key), b.model.get(key)] for key in {**a.model, **b.model}}
    changed: dict[str, list[object]] = {
        k: [old, new] for k, (old, new) in both.items() if old != new
    }
    for key in {**a.train, **b.train}:
        shared = getattr(table.experiment.train, key)
        changed[f"train.{key}"] = [v.train.get(key, shared) for v in (a, b)]
    text = table.plan.text.source.model_dump(mode="json")
    for key in {**a.data, **b.data}:
        changed[f"data.{key}"] = [v.data.get(key, text[key]) for v in (a, b)]
    tokenizers = [table.plan.text_of(v).source.tokenizer for v in (a, b)]
    if tokenizers[0] != tokenizers[1]:
        changed["data.tokenizer"] = [*tokenizers]
    return changed


#: One metric of two variants over their common seeds, with the interval of their difference.
_Both = tuple[list[float], list[float], Interval]


def _numbers(table: TableFrames, a: PlannedVariant, b: PlannedVariant) -> dict[str, _Both]:
    """Return the run metrics of two variants on their common seeds, by metric name.

    Per-token metrics are left out if the variants read different tokens.
    """
    texts = [table.plan.text_of(v).fingerprint for v in (a, b)]
    kinds = ("_nats", "perplexity", "_byte", "_s") if texts[0] == texts[1] else ("_byte", "_s")
    paired = {}
    for name in dict.fromkeys(name for run in table.reported for name in run.numbers):
        if not name.endswith(kinds) or name.endswith("_se_nats"):
            continue
        both = table.pair(name, b.id, a.id)
        if both.own:
            interval = compare(table, name, b.id, a.id, RowFamily([(b.id, a.id)])).interval
            paired[name] = ([*both.other.values()], [*both.own.values()], interval)
    return paired


def _speeds(
    table: TableFrames, a: PlannedVariant, b: PlannedVariant
) -> list[tuple[str, str, str, str]]:
    """Compare metrics measured once per variant, such as speeds, by ratios B / A.

    Returns rows of text (name, value of A, value of B, ratio) for metrics that both variants have.
    """
    x, y = (
        {row.name: row.value for row in table.metrics.variant_rows if row.variant == v.id}
        for v in (a, b)
    )
    return [
        (name, written.plain(value, 4), written.plain(y[name], 4), f"{y[name] / value:.3f}")
        for name, value in x.items()
        if name in y and value
    ]


def _sentence(table: TableFrames, a: PlannedVariant, b: PlannedVariant) -> str:
    """Write the verdict on the pair's reported loss, without correction for multiple tests."""
    difference = compare(table, table.loss, b.id, a.id, RowFamily([(b.id, a.id)]))
    interval = difference.interval
    if not interval.n:
        return ""
    word = difference.judged(table.equivalence)
    words = {
        "better": "is better than",
        "worse": "is worse than",
        "equivalent": "is equivalent to",
        "too short": "cannot be compared, as runs were too short, with",
        "diverged": "diverged more often than",
        "collapsed": "collapsed more often than",
    }
    text = written.interval(interval.mean, interval.low, interval.high)
    text_remark = ", with the error of the text" if interval.text_se > 0 else ""
    return (
        f"{b.label} {words.get(word, 'is not told apart from')} {a.label} on "
        f"{table.split_name} loss, {text}{text_remark}, over {interval.n} paired seeds "
        "(this pair alone: a table corrects for its number of rows)"
    )


def _left_out(table: TableFrames, a: PlannedVariant, b: PlannedVariant) -> list[str]:
    """Count each variant's diverged or collapsed runs, which are left out of the comparison."""
    unstable = [run for run in table.reported if run.outcome in UNSTABLE]
    ended = {v.label: [run.outcome for run in unstable if run.variant == v.id] for v in (a, b)}
    return [
        f"left out of {label}: {count_outcomes(words)}" for label, words in ended.items() if words
    ]


def _changed(both: Sequence[object]) -> str:
    return " -> ".join(map(entry_text, without_shared(*both)))


def _over_seeds(values: Sequence[float]) -> str:
    finite = [value for value in values if math.isfinite(value)]
    sd = f" ± {stdev(finite):.2g} (sd of {len(finite)} seeds)" if len(finite) > 1 else ""
    return f"{written.plain(mean(finite), 6)}{sd}"


def without_shared(old: object, new: object) -> tuple[object, object]:
    """Return two components without the options that both state with equal values."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return old, new
    alike = {key for key in old if key != "name" and key in new and old[key] == new[key]}
    first, second = ({k: v for k, v in e.items() if k not in alike} for e in (old, new))
    return first, second


def _architecture(model: Mapping[str, object]) -> str:
    return "\n".join(f"{key}: {entry_text(value)}" for key, value in model.items())


def describe_computing(frames: Frames) -> str:
    """Describe the device, precision, attention kernel and threads of all runs in a sentence."""
    machines = pd.concat([table.machines for table in frames.tables])

    def named(what: str, key: str) -> str:
        return " or ".join(sorted({*machines.get(what, ())})) or str(frames.compute.get(key, "?"))

    threads = named("numbers of threads", "threads")
    return (
        f"Computed on {named('devices', 'device')} in {named('precisions', 'precision')} with the "
        f"{named('attention kernels', 'kernel')} attention kernel and {threads} "
        f"{plural(threads, 'thread')} a worker"
        f"{', training steps compiled' if frames.compute.get('compiled') else ''}."
    )
