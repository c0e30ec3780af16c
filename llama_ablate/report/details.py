"""Details of one variant, of one run, and of a pair of variants: as text and as plain values."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from llama_ablate.config.registry import entry_text
from llama_ablate.config.spec import SLOTS
from llama_ablate.evidence import judged, paired_effect, simultaneous, summary, written
from llama_ablate.findings.comparison import outcomes
from llama_ablate.findings.frames import TableFrames, rows, spread
from llama_ablate.findings.outcomes import UNSTABLE, sides, words
from llama_ablate.report import tables
from llama_ablate.results.plan_document import PlannedVariant
from llama_ablate.results.record import TRAINING
from llama_ablate.results.snapshot import Results

_SHORT = 25  # lines of a variant
#: Text for a terminal, and the values behind it.
Shown = tuple[str, dict[str, Any]]


def variant(table: TableFrames, chosen: PlannedVariant, *, everything: bool = True) -> Shown:
    """Show a variant: its architecture, its runs, and everything measured of it.

    Without `everything` the text has at most 25 lines; the values are the same.
    """
    runs = table.runs[table.runs["variant"] == chosen.id]
    reported = runs[runs["chosen"]]
    metrics, attempts = (
        frame[(frame["run"] == "") & (frame["variant"] == chosen.id)]
        for frame in (table.metrics, table.attempts)
    )
    of_runs = table.attempts[
        (table.attempts["error"] != "") & table.attempts["run"].isin(runs["id"])
    ]
    failed = Counter(zip(of_runs["metric"], of_runs["error"], strict=True))
    changed = changes(table, table.plan.baseline, chosen)
    same = {} if changed else {slot: chosen.model[slot] for slot in SLOTS if slot in chosen.model}
    lines = [
        f"{chosen.label} ({chosen.id})",
        *(f"{key}: {_changed(both)}" for key, both in changed.items()),
        *(f"{slot}: {entry_text(entry)}" for slot, entry in same.items()),
        f"{chosen.parameters:,} parameters: {chosen.active:,} active, {chosen.non_embedding:,} "
        "without embeddings",
        f"{written.number(chosen.flops_per_token, ',')} FLOPs and "
        f"{written.number(chosen.kv_bytes_per_token, ',')} KV bytes a token",
        f"{len(runs)} runs: {outcomes(words(runs))}",
        *(f"{one[0]}: not measured of {n} of {len(runs)}: {one[1]}" for one, n in failed.items()),
        *(f"seed {run.seed}: {run.reason}" for run in rows(runs) if run.reason),
        *(f"{a.metric}: not measured: {a.error}" for a in rows(attempts) if a.error),
    ]
    if everything:
        numbers = [
            c for c in runs.columns if runs[c].dtype.kind == "f" and reported[c].notna().any()
        ]
        trained = {f"train.{key}": value for key, value in chosen.train.items()}
        lines += ["", _architecture(chosen.model | trained), ""]
        lines += [tables.text(runs[["id", "seed", "point", "outcome", "reason"]].astype(str)), ""]
        lines += [f"{name}: {_over_seeds(list(reported[name]))}" for name in numbers]
        for metric, own in metrics.groupby("metric", sort=False):
            named = zip(own["name"], own["value"], strict=True)
            lines += ["", f"{metric}:", *(f"  {k}: {written.plain(v, 4)}" for k, v in named)]
    else:
        told = table.metrics[table.metrics["run"].isin(reported["id"])]
        lines += ["", *_quantities(pd.concat([told, metrics]), table.split)]
        lines = [*lines[: _SHORT - 1], "all numbers, runs and options: --all"]
    values = chosen.model_dump(mode="json") | {
        "runs": runs.to_dict("records"),
        "metrics": spread(metrics).to_dict("records"),
        "not_measured": pd.concat([of_runs, attempts[attempts["error"] != ""]])[
            ["run", "metric", "error"]
        ].to_dict("records"),
    }
    return "\n".join(lines), values


def _quantities(measured: pd.DataFrame, split: str) -> list[str]:
    """Write a line for each quantity, of the reported split alone, what training notes last."""
    is_told = measured["coordinates"].map(
        lambda at: at.get("split", split) == split and "cluster" not in at
    )
    lines = []
    last = measured[is_told].assign(last=measured["metric"] == TRAINING)
    last = last.sort_values("last", kind="stable")
    for _, own in last.groupby(["metric", "quantity"], sort=False):
        means = own.groupby("name", sort=False)["value"].mean()
        low, high = (written.plain(end, 4) for end in (means.min(), means.max()))
        several = f"{own['quantity'].iloc[0]}: {low} to {high} ({len(means)} numbers)"
        one = f"{means.index[0]}: {_over_seeds(list(own['value']))}"
        lines.append(several if len(means) > 1 else one)
    return lines


def run(results: Results, run_id: str) -> Shown:
    """Show a run: its record, its metrics, and the last points of its curve."""
    if run_id not in results.finished:
        planned = results.plan.runs[run_id].model_dump(mode="json")
        return f"{run_id}: pending", {**planned, "outcome": "pending"}
    record, curve = results.record(run_id), results.curve(run_id)
    folder = str(results.folder(run_id))
    head = f"{record.label} s{record.seed} ({record.id}): {record.outcome} {record.reason}".rstrip()
    lines = [head, folder, "", _architecture(record.model), ""]
    lines += [f"{name}: {written.plain(value, 6)}" for name, value in record.numbers.items()]
    lines += [f"{name}: not measured: {why}" for name, why in record.unmeasured.items()]
    if curve:
        lines += ["", tables.text(pd.DataFrame(curve[-5:]).map(lambda v: written.plain(v, 6)))]
    return "\n".join(lines), {**asdict(record), "curve": curve, "folder": folder}


def pair(table: TableFrames, a: PlannedVariant, b: PlannedVariant) -> Shown:
    """Compare B with A: what differs in the architecture, and every number, paired by seed."""
    changed = changes(table, a, b)
    ok = table.reported[table.reported["outcome"] == "ok"]
    runs = [ok[ok["variant"] == v.id].set_index("seed") for v in (a, b)]
    seeds = sorted(set(runs[0].index) & set(runs[1].index))
    texts = [table.plan.text_of(v) for v in (a, b)]
    alike = texts[0].fingerprint == texts[1].fingerprint
    numbers = _numbers(runs[0].loc[seeds], runs[1].loc[seeds], per_token=alike)
    names = ["measure", a.label, b.label]
    cells = pd.DataFrame(
        [
            (
                name,
                written.plain(x.mean(), 5),
                written.plain(y.mean(), 5),
                written.interval(effect.mean, effect.low, effect.high),
                written.number(effect.correlation, ".2f"),
            )
            for name, (x, y, effect) in numbers.items()
        ],
        columns=[*names, "difference over seeds [95%]", "r over seeds"],
    )
    speeds = pd.DataFrame(_speeds(table, a, b), columns=[*names, "ratio"])
    lines = [f"{a.label} -> {b.label}", ""]
    lines += [f"{key}: {_changed(both)}" for key, both in changed.items()]
    lines += ["", tables.text(cells) if len(cells) else "no seed that both finished", ""]
    lines += [_sentence(table, a, b, numbers), *_left_out(table, a, b)]
    lines += ["", tables.text(speeds)] if len(speeds) else []
    values = {
        "a": a.label,
        "b": b.label,
        "changed": changed,
        "seeds": seeds,
        "effects": {name: asdict(effect) for name, (_a, _b, effect) in numbers.items()},
        "speeds": speeds.to_dict("records"),
    }
    return "\n".join(lines), values


def changes(table: TableFrames, a: PlannedVariant, b: PlannedVariant) -> dict[str, list[Any]]:
    """Return what differs between two variants' architectures and training."""
    both = {key: [a.model.get(key), b.model.get(key)] for key in {**a.model, **b.model}}
    changed: dict[str, list[Any]] = {k: [old, new] for k, (old, new) in both.items() if old != new}
    for key in {**a.train, **b.train}:
        shared = getattr(table.experiment.train, key)
        changed[f"train.{key}"] = [v.train.get(key, shared) for v in (a, b)]
    tokenizers = [table.plan.text_of(v).source.tokenizer for v in (a, b)]
    if tokenizers[0] != tokenizers[1]:
        changed["data.tokenizer"] = tokenizers
    return changed


def _numbers(
    a: pd.DataFrame, b: pd.DataFrame, *, per_token: bool
) -> dict[str, tuple[Any, Any, Any]]:
    """Return the numbers of both over the same seeds, with their paired effect.

    Those `per_token` compare only where both have the same tokens.
    """
    kinds = ("_nats", "perplexity", "_byte", "_s") if per_token else ("_byte", "_s")
    names = [n for n in a.columns if n.endswith(kinds) and not n.endswith("_se_nats")]
    return {
        name: (a[name], b[name], paired_effect(list(b[name]), list(a[name])))
        for name in names
        if a[name].notna().any() or b[name].notna().any()
    }


def _speeds(
    table: TableFrames, a: PlannedVariant, b: PlannedVariant
) -> list[tuple[str, str, str, str]]:
    """Return every number of the variants themselves that both have, and the ratio of the two."""
    of_variants = table.metrics[table.metrics["run"] == ""]
    x, y = (of_variants[of_variants["variant"] == v.id].set_index("name")["value"] for v in (a, b))
    return [
        (
            str(name),
            written.plain(x[name], 4),
            written.plain(y[name], 4),
            f"{y[name] / x[name]:.3f}",
        )
        for name in x.index
        if name in y.index and x[name]
    ]


def _sentence(
    table: TableFrames,
    a: PlannedVariant,
    b: PlannedVariant,
    numbers: Mapping[str, tuple[Any, Any, Any]],
) -> str:
    """Write the verdict on the reported loss of this pair alone; nothing where there is none."""
    loss = table.loss
    if loss not in numbers or not len(numbers[loss][0]):
        return ""
    of_a, of_b, _ = numbers[loss]
    differences, errors = {b.id: list(of_b - of_a)}, table.text_errors(a.id)
    interval = simultaneous(differences, text_errors=errors)[b.id]
    word = judged(interval, table.margin, *sides(table.reported, {b.id}, {a.id}))
    words = {
        "better": "is better than",
        "worse": "is worse than",
        "equivalent": "is equivalent to",
        "too short": "cannot be compared, as runs were too short, with",
        "diverged": "diverged more often than",
        "collapsed": "collapsed more often than",
    }
    shown = written.interval(interval.mean, interval.low, interval.high)
    of_text = ", with the error of the text" if b.id in errors else ""
    return (
        f"{b.label} {words.get(word, 'is not told apart from')} {a.label} on "
        f"{table.split_name} loss, {shown}{of_text}, over {len(of_a)} paired seeds (this pair "
        "alone: a table corrects for its number of rows)"
    )


def _left_out(table: TableFrames, a: PlannedVariant, b: PlannedVariant) -> list[str]:
    """Say which runs diverged or collapsed, and so have no numbers here."""
    unstable = table.reported[table.reported["outcome"].isin(UNSTABLE)]
    by_variant = {v.label: unstable.loc[unstable["variant"] == v.id, "outcome"] for v in (a, b)}
    return [
        f"left out of {label}: {outcomes(ended)}"
        for label, ended in by_variant.items()
        if len(ended)
    ]


def _changed(both: Sequence[Any]) -> str:
    return " -> ".join(map(entry_text, without_shared(*both)))


def _over_seeds(values: Sequence[float]) -> str:
    numbers = summary(values)
    sd = "" if math.isnan(numbers.sd) else f" ± {numbers.sd:.2g} (sd of {numbers.n} seeds)"
    return f"{written.plain(numbers.mean, 6)}{sd}"


def without_shared(old: Any, new: Any) -> tuple[Any, Any]:
    """Leave out of two components the options that both have alike."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return old, new
    alike = {key for key in old if key != "name" and key in new and old[key] == new[key]}
    first, second = ({k: v for k, v in e.items() if k not in alike} for e in (old, new))
    return first, second


def _architecture(model: Mapping[str, Any]) -> str:
    return "\n".join(f"{key}: {entry_text(value)}" for key, value in model.items())
