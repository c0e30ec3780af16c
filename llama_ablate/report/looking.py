"""Close looks at stored results: one variant, one run, a pair. Each returns text and values."""

import math
from typing import Any

import pandas as pd

from llama_ablate.evidence import paired_effect, rule, summary
from llama_ablate.files.strict_json import to_json
from llama_ablate.report import frames, tables
from llama_ablate.report.steadied import UNSTABLE
from llama_ablate.results import Store

Look = tuple[str, dict[str, Any]]


def variant(store: Store, chosen: dict[str, Any]) -> Look:
    """Show a variant: its recipe, its runs, and everything measured of it."""
    runs = frames.runs(store)
    every = runs[runs["variant"] == chosen["id"]]
    of = frames.reported(every)
    metrics = store.variant_metrics(chosen["id"])
    measured = {name: metric.to_dict() for name, metric in metrics.items()}
    values = {**chosen, "runs": every.to_dict("records"), "metrics": measured}
    numbers = [c for c in of.columns if of[c].dtype.kind == "f"]
    lines = [f"{chosen['label']} ({chosen['id']})", "", _recipe(chosen["model"]), ""]
    sizes = ("parameters", "non_embedding", "flops_per_token", "kv_bytes_per_token")
    lines += [f"{key}: {chosen[key]:,}" for key in sizes]
    lines += ["", tables.text(every[["id", "seed", "point", "outcome", "reason"]].astype(str)), ""]
    lines += [f"{name}: {_spread(list(of[name]))}" for name in numbers if of[name].notna().any()]
    for name, metric in metrics.items():
        lines += ["", f"{name}:"]
        lines += [f"  {value.name}: {value.value:,.4g}" for value in metric.rows]
        lines += [f"  not measured: {metric.error}"] if metric.error else []
    return "\n".join(lines), values


def run(store: Store, run_id: str) -> Look:
    """Show a run: its record, its metrics, and the last points of its curve."""
    record = store.record(run_id)
    if record is None:
        entry = next(r for r in store.plan["runs"] if r["id"] == run_id)
        return f"{run_id}: pending", {**entry, "outcome": "pending"}
    curve = store.runs.curve(run_id)
    metrics = {name: metric.to_dict() for name, metric in record.metrics.items()}
    values = {
        **vars(record),
        "metrics": metrics,
        "curve": curve,
        "folder": str(store.runs.folder(run_id)),
    }
    head = f"{record.label} s{record.seed} ({record.id}): {record.outcome} {record.reason}".rstrip()
    last = pd.DataFrame(curve[-5:]).map(lambda v: f"{v:.6g}") if curve else pd.DataFrame()
    lines = [head, f"{store.runs.folder(run_id)}", "", _recipe(record.model), ""]
    lines += [f"{name}: {value:.6g}" for name, value in record.numbers.items()]
    lines += [f"{name}: not measured: {why}" for name, why in record.unmeasured.items()]
    if len(last):
        lines += ["", tables.text(last)]
    return "\n".join(lines), values


def pair(store: Store, a: dict[str, Any], b: dict[str, Any]) -> Look:
    """Compare B with A: what differs in the recipe, and every number, paired by seed."""
    runs = frames.reported(frames.runs(store))
    ok = runs[runs["outcome"] == "ok"]
    of_a, of_b = (ok[ok["variant"] == v["id"]].set_index("seed") for v in (a, b))
    seeds = sorted(set(of_a.index) & set(of_b.index))
    changed = {k: [a["model"][k], v] for k, v in b["model"].items() if a["model"][k] != v}
    own = store.plan["experiment"]["train"]
    trained = {**dict.fromkeys(a.get("train", {})), **dict.fromkeys(b.get("train", {}))}
    changed |= {f"train.{k}": [v.get("train", {}).get(k, own[k]) for v in (a, b)] for k in trained}
    rows, effects = [], {}
    split = frames.reported_split(runs)
    for name in [c for c in ok.columns if c.endswith(("_nats", "_byte", "perplexity", "_s"))]:
        if name.endswith("_se_nats") or ok[name].isna().all():
            continue
        effect = paired_effect(list(of_b.loc[seeds, name]), list(of_a.loc[seeds, name]))
        effects[name] = vars(effect)
        rows.append(
            (
                name,
                f"{of_a.loc[seeds, name].mean():.5g}",
                f"{of_b.loc[seeds, name].mean():.5g}",
                tables.interval(effect.mean, effect.low, effect.high),
                tables.number(effect.correlation, ".2f"),
            )
        )
    cells = pd.DataFrame(
        rows, columns=["measure", a["label"], b["label"], "difference [95%]", "r over seeds"]
    )
    measured = [frames.flat(store.variant_metrics(v["id"])) for v in (a, b)]
    speeds = pd.DataFrame(
        [
            (name, f"{x:,.4g}", f"{measured[1][name]:,.4g}", f"{measured[1][name] / x:.3f}")
            for name, x in measured[0].items()
            if name in measured[1] and x
        ],
        columns=["measure", a["label"], b["label"], "ratio"],
    )
    said = ""
    if f"{split}_loss_nats" in effects and seeds:
        loss = of_b.loc[seeds, f"{split}_loss_nats"] - of_a.loc[seeds, f"{split}_loss_nats"]
        ruling = rule({"b": list(loss)}, margin=frames.margin_of(store.plan))["b"]
        words = {"inconclusive": "is not told apart from", "equivalent": "is equivalent to"}
        how = words.get(ruling.verdict, f"is {ruling.verdict} than")
        said = f"{b['label']} {how} {a['label']}"
        said += (
            f" on {split} loss, over {len(seeds)} paired seeds (this pair alone: a table "
            "corrects for its number of rows)"
        )
    bad = runs[runs["outcome"].isin(UNSTABLE)]
    left_out = [
        f"left out of {v['label']}: {frames.outcomes(bad[bad['variant'] == v['id']]['outcome'])}"
        for v in (a, b)
        if v["id"] in set(bad["variant"])
    ]
    lines = [f"{a['label']} -> {b['label']}", ""]
    lines += [f"{key}: {' -> '.join(map(_entry, _apart(*both)))}" for key, both in changed.items()]
    lines += ["", tables.text(cells) if rows else "no seed that both finished", "", said, *left_out]
    lines += ["", tables.text(speeds)] if len(speeds) else []
    values = {
        "a": a["label"],
        "b": b["label"],
        "changed": changed,
        "seeds": seeds,
        "effects": effects,
        "speeds": speeds.to_dict("records"),
    }
    return "\n".join(lines), values


def _spread(values: list[float]) -> str:
    found = summary(values)
    sd = "" if math.isnan(found.sd) else f" ± {found.sd:.2g} (sd of {found.n} seeds)"
    return f"{found.mean:.6g}{sd}"


def _apart(old: Any, new: Any) -> tuple[Any, Any]:
    """Leave out of two components the options that both have alike."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        return old, new
    alike = {key for key in old if key != "name" and key in new and old[key] == new[key]}
    first, second = ({k: v for k, v in e.items() if k not in alike} for e in (old, new))
    return first, second


def _recipe(model: dict[str, Any]) -> str:
    return "\n".join(f"{key}: {_entry(value)}" for key, value in model.items())


def _entry(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join([value["name"], *(f"{k}={v}" for k, v in value.items() if k != "name")])
    return str(value) if isinstance(value, str) else to_json(value)
