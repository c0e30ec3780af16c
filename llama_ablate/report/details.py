"""Details of variants, runs and pairs of variants, as text and plain values."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import pandas as pd

from llama_ablate.config.labels import entry_text
from llama_ablate.config.spec import SLOTS
from llama_ablate.evidence import written
from llama_ablate.evidence.intervals import NOTHING
from llama_ablate.evidence.pairing import measure_pairing
from llama_ablate.evidence.verdicts import judge
from llama_ablate.findings.columns import COLUMNS, iterate, list_rows, make_frame
from llama_ablate.findings.compare import compare, find_samples
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.outcomes import UNSTABLE, count_outcomes
from llama_ablate.findings.stages import find_reported, find_runs
from llama_ablate.findings.table import Table
from llama_ablate.report import tables
from llama_ablate.results import FINAL
from llama_ablate.results.plan_document import PlannedVariant
from llama_ablate.results.record import TRAINING
from llama_ablate.results.snapshot import Results
from llama_ablate.terminal import plural

_SHORT = 25  # most lines of a variant's short text
#: Text for a terminal, and the same content as plain values for JSON.
ShownPart = tuple[str, dict[str, Any]]
#: Columns of runs that are no measured numbers.
_ABOUT = ("tuned", "ended", *(name for name, of in COLUMNS["runs"].items() if not of.mean))


def variant(table: Table, chosen: PlannedVariant, *, everything: bool = True) -> ShownPart:
    """Describe a variant: its architecture, runs, and measured values.

    Without `everything` the text has at most 25 lines; the returned values are the same.
    """
    every = find_runs(table)
    runs = every[every["variant"].eq(chosen.id)]
    values, attempts = (of[of["variant"].eq(chosen.id)] for of in (table.measured, table.attempts))
    metrics = values[values["run"].eq("")]
    failed = attempts[attempts["error"].ne("") & attempts["run"].isin(["", *runs["id"]])]
    lines = [*_describe_model(table, chosen), *_describe_runs(runs, failed), ""]
    if everything:
        lines += _list_everything(chosen, runs, metrics)
    else:
        reported = ["", *runs.loc[runs["use"].eq("reported"), "id"]]
        lines += _list_quantities(values[values["run"].isin(reported)], table.split)
        lines = [*lines[: _SHORT - 1], "all numbers, runs and options: --all"]
    plain = chosen.model_dump(mode="json") | {
        "runs": list_rows(runs.drop(columns=["baseline", "role", "ended"])),
        "metrics": list_rows(make_frame(metrics, "metrics")),
        "not_measured": list_rows(failed[["run", "metric", "error"]]),
    }
    return "\n".join(lines), plain


def _describe_model(table: Table, chosen: PlannedVariant) -> list[str]:
    """Describe the changes, the size and the state of a variant, one line each."""
    changed = changes(table, table.plan.baseline, chosen)
    same = {} if changed else {slot: chosen.model[slot] for slot in SLOTS if slot in chosen.model}
    return [
        f"{chosen.label} ({chosen.id})",
        *(f"{key}: {_changed(both)}" for key, both in changed.items()),
        *(f"{slot}: {entry_text(entry)}" for slot, entry in same.items()),
        f"{chosen.parameters:,} parameters: {chosen.active:,} active, {chosen.non_embedding:,} "
        "without embeddings",
        f"{written.number(chosen.flops_per_token, ',')} FLOPs a token; a state of "
        f"{written.number(chosen.state_bytes, ',')} bytes at "
        f"{table.experiment.state_contexts[0]:,} tokens, to which one more adds "
        f"{written.number(chosen.kv_bytes_per_token, ',')}",
    ]


def _describe_runs(runs: pd.DataFrame, failed: pd.DataFrame) -> Iterator[str]:
    """Describe the outcomes of runs, and failed metrics."""
    yield f"{len(runs)} runs: {count_outcomes(runs['ended'])}"
    run_failures = failed[failed["run"].ne("")]
    for (metric, error), rows in run_failures.groupby(["metric", "error"], sort=False):
        yield f"{metric}: not measured of {len(rows)} of {len(runs)}: {error}"
    for run in iterate(runs[runs["reason"].ne("")]):
        yield f"seed {run.seed}: {run.reason}"
    for row in iterate(failed[failed["run"].eq("")]):
        yield f"{row.metric}: not measured: {row.error}"


def _list_everything(
    chosen: PlannedVariant, runs: pd.DataFrame, metrics: pd.DataFrame
) -> Iterator[str]:
    """List the options, runs and numbers of a variant, and all that was measured of it."""
    ended = runs[runs["use"].eq("reported") & runs["outcome"].isin(FINAL)]
    numbers = ended.drop(columns=[*_ABOUT], errors="ignore").dropna(axis="columns", how="all")
    yield _architecture(chosen.model | {f"train.{key}": of for key, of in chosen.train.items()})
    yield from ("", tables.text(runs[["id", "seed", "point", "outcome", "reason"]]), "")
    for name in numbers:
        yield f"{name}: {_over_seeds(numbers[name])}"
    for metric, rows in metrics.groupby("metric", sort=False):
        yield from ("", f"{metric}:")
        for row in iterate(rows):
            yield f"  {row.name}: {written.plain(row.value, 4)}"


def _list_quantities(values: pd.DataFrame, split: str) -> Iterator[str]:
    """Format a line per measured quantity, with the quantities recorded in training last.

    If a quantity was measured on several splits, only the values on `split` are used.
    """
    is_whole = values["cluster"].isna() & (values["split"].isna() | values["split"].eq(split))
    ordered = values[is_whole].sort_values(
        "metric", key=lambda names: names.eq(TRAINING), kind="stable"
    )
    for (_, quantity), rows in ordered.groupby(["metric", "quantity"], sort=False):
        means = rows.groupby("name", sort=False)["value"].mean()
        low, high = (written.plain(end, 4) for end in (means.min(), means.max()))
        several = f"{quantity}: {low} to {high} ({len(means)} numbers)"
        yield several if len(means) > 1 else f"{means.index[0]}: {_over_seeds(rows['value'])}"


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


def pair(table: Table, a: PlannedVariant, b: PlannedVariant) -> ShownPart:
    """Compare variant B with variant A: changed settings, and every metric, paired by seed."""
    changed, speeds = changes(table, a, b), _compare_speeds(table, a, b)
    numbers = {name: _compare_number(table, name, a, b) for name in _list_numbers(table, a, b)}
    compared = {name: row for name, row in numbers.items() if row}
    cells = pd.DataFrame(
        [
            {
                "measure": name,
                a.label: written.plain(row["a"], 5),
                b.label: written.plain(row["b"], 5),
                "difference over seeds [95%]": written.interval(
                    row["mean"], row["low"], row["high"]
                ),
                "r over seeds": written.number(row["correlation"], ".2f"),
            }
            for name, row in compared.items()
        ]
    )
    lines = [f"{a.label} -> {b.label}", ""]
    lines += [f"{key}: {_changed(both)}" for key, both in changed.items()]
    lines += ["", tables.text(cells) if len(cells) else "no seed that both finished", ""]
    lines += [_write_verdict(table, a, b), *_list_lost(table, a, b)]
    lines += ["", tables.text(speeds)] if len(speeds) else []
    losses = find_samples(table, table.loss)
    values = {
        "a": a.label,
        "b": b.label,
        "changed": changed,
        "seeds": sorted(losses.get(a.id, {}).keys() & losses.get(b.id, {}).keys()),
        "effects": {name: {key: row[key] for key in NOTHING} for name, row in compared.items()},
        "speeds": list_rows(speeds),
    }
    return "\n".join(lines), values


def changes(table: Table, a: PlannedVariant, b: PlannedVariant) -> dict[str, list[object]]:
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


def _list_numbers(table: Table, a: PlannedVariant, b: PlannedVariant) -> list[str]:
    """List the run metrics to compare: none per token if the variants read different tokens."""
    texts = {table.plan.text_of(v).fingerprint for v in (a, b)}
    kinds = ("_byte", "_s") if len(texts) > 1 else ("_nats", "perplexity", "_byte", "_s")
    names = [str(name) for name in find_reported(table)]
    answered = table.measured[table.measured["quantity"].eq("accuracy")]
    tasks = {*answered.loc[answered["group"].isna(), "name"]}
    named = [name for name in names if name.endswith(kinds) and not name.endswith("_se_nats")]
    return [*named, *(name for name in names if name in tasks)]


def _compare_number(
    table: Table, name: str, a: PlannedVariant, b: PlannedVariant
) -> dict[str, Any] | None:
    """Compare a run metric of two variants; None without a common seed.

    The row of `compare` also has the means `a` and `b`, and their correlation over seeds.
    """
    samples = find_samples(table, name)
    both = pd.DataFrame({"a": samples.get(a.id, {}), "b": samples.get(b.id, {})}).dropna()
    if both.empty:
        return None
    correlation, _ = measure_pairing([*both["b"]], [*both["a"]])
    (row,) = list_rows(compare(table, name, [(b.id, a.id)]))
    return {**row, **both.mean(), "correlation": correlation}


def _compare_speeds(table: Table, a: PlannedVariant, b: PlannedVariant) -> pd.DataFrame:
    """Compare metrics measured once per variant, such as speeds, by ratios B / A.

    Returns texts: name, value of A, value of B, and ratio, of metrics that both variants have.
    """
    values = table.measured[table.measured["run"].eq("")]
    x, y = (values[values["variant"].eq(v.id)].set_index("name")["value"].to_dict() for v in (a, b))
    rows = [
        (name, written.plain(value, 4), written.plain(y[name], 4), f"{y[name] / value:.3f}")
        for name, value in x.items()
        if name in y and value
    ]
    return pd.DataFrame(rows, columns=["measure", a.label, b.label, "ratio"])


def _write_verdict(table: Table, a: PlannedVariant, b: PlannedVariant) -> str:
    """Write the verdict on the pair's reported loss, without correction for multiple tests."""
    (row,) = list_rows(compare(table, table.loss, [(b.id, a.id)]))
    if not row["n"]:
        return ""
    words = {
        "better": "is better than",
        "worse": "is worse than",
        "equivalent": "is equivalent to",
        "equal": "is equal to",
        "too short": "cannot be compared, as runs were too short, with",
        "diverged": "diverged more often than",
        "collapsed": "collapsed more often than",
    }
    word = words.get(judge(row, table.equivalence), "is not told apart from")
    text = written.interval(row["mean"], row["low"], row["high"])
    text_remark = ", with the error of the text" if row["text_se"] > 0 else ""
    return (
        f"{b.label} {word} {a.label} on {table.split_name} loss, {text}{text_remark}, over "
        f"{row['n']} paired seeds (this pair alone: a table corrects for its number of rows)"
    )


def _list_lost(table: Table, a: PlannedVariant, b: PlannedVariant) -> Iterator[str]:
    """Count each variant's diverged or collapsed runs, which are left out of the comparison."""
    runs = find_reported(table)
    for of in (a, b):
        lost = runs[runs["outcome"].isin(UNSTABLE) & runs["variant"].eq(of.id)]
        if len(lost):
            yield f"left out of {of.label}: {count_outcomes(lost['outcome'])}"


def _changed(both: list[object]) -> str:
    return " -> ".join(map(entry_text, without_shared(*both)))


def _over_seeds(values: pd.Series) -> str:
    finite = values[values.abs() < math.inf]
    counted = f"{len(finite)} of {len(values)}" if len(finite) < len(values) else f"{len(finite)}"
    sd = f" ± {finite.std():.2g} (sd of {counted} seeds)" if len(finite) > 1 else f" ({counted})"
    return f"{written.plain(finite.mean(), 6)}{sd if len(values) > 1 else ''}"


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
