"""Facts on the scale, costs and next step of an experiment, for the first screen of its page."""

import json
import math
from collections import Counter
from typing import Any

import pandas as pd

from llama_ablate.evidence.intervals import MIN_SEEDS_OF_SPREAD
from llama_ablate.evidence.written import count, ends
from llama_ablate.findings.answer import SAME_COST, count_seeds, name_texts, write_share
from llama_ablate.findings.columns import iterate
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.factors import estimate_factors
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.hypotheses import judge_hypotheses
from llama_ablate.findings.others import compare_others
from llama_ablate.findings.sizes import DECIDED, view_lengths
from llama_ablate.findings.stages import find_runs
from llama_ablate.findings.tuning import best_points
from llama_ablate.report.columns import SPEEDS, is_noisy
from llama_ablate.report.rendering import write_block

_NAMES = ("text", "model", "training", "learning_rate", "speed", "memory", "what_next")


def list_facts(frames: Frames) -> dict[str, str]:
    """Return facts in words by their titles; a fact that is not known is left out."""
    values = _describe_scale(frames) | _describe_costs(frames) | _describe_next(frames)
    facts = {name: write_block("facts.txt", name, values) for name in _NAMES}
    return {name.replace("_", " "): text for name, text in facts.items() if text}


def _describe_scale(frames: Frames) -> dict[str, Any]:
    plans, experiment = [table.plan for table in frames.tables], frames.plan.experiment
    loss_tokens, _, documents = frames.table.plan.text.size(frames.table.split)
    shapes = (", ".join(f"{name} {of:,}" for name, of in plan.size.items()) for plan in plans)
    table = (frames.rungs or frames.tables)[-1]
    variants = [variant for variant in table.plan.variants if not variant.role]
    best = best_points(find_runs(table), {}) if "lr" in experiment.tune else {}
    by_rate: dict[str, list[str]] = {}
    for variant in variants:
        if variant.id in best:
            rate = json.loads(best[variant.id])["lr"]
            by_rate.setdefault(f"{rate:g}", []).append(variant.label)
    rates = {variant.train.get("lr", experiment.train.lr) for variant in variants}
    return {
        "texts": name_texts(frames),
        "loss_tokens": loss_tokens,
        "split": frames.table.split_name,
        "documents": documents,
        "parameters": ends((plan.baseline.parameters for plan in plans), count),
        "shapes": [*dict.fromkeys(shapes)],
        "context": experiment.model.context,
        "tokens": ends((plan.tokens_per_run for plan in plans), count),
        "per_parameter": ends(
            (plan.tokens_per_run / plan.baseline.parameters for plan in plans), "{:.2g}".format
        ),
        "seeds": count_seeds(frames),
        "race": experiment.race,
        "rate": ends(rates, "{:g}".format),
        "chosen": [
            f"{rate} for {', '.join(of[:3])}{' and others' * (len(of) > 3)}"
            for rate, of in by_rate.items()
        ],
    }


def _describe_costs(frames: Frames) -> dict[str, Any]:
    rows = compare_variants(frames.table)
    ranked = rows[rows["role"].eq("")]
    timed = ranked[ranked["train_speed_ratio"].gt(0)]
    base = next(iterate(ranked))
    name = "state_bytes" if math.isnan(base.asked_context) else "asked_state_bytes"
    state = getattr(base, name)
    shares = dict(zip(ranked["label"], ranked[name] / state, strict=True)) if state > 0 else {}
    less = sorted((share, label) for label, share in shares.items() if share < 1 - SAME_COST)
    return {
        "is_noisy": is_noisy(rows, "train"),
        "speeds": [*iterate(timed[~timed["baseline"]].sort_values("train_speed_ratio"))],
        "is_paired": timed["train_speed_turns"].any(),
        "state": max(0, state),
        "state_context": int(base.context if name == "state_bytes" else base.asked_context),
        "less": [f"{label} {write_share(share)}" for share, label in less],
    }


def _describe_next(frames: Frames) -> dict[str, Any]:
    parts = [compare_variants(t) for t in frames.tables if estimate_factors(t).empty]
    rows = pd.concat(parts) if parts else compare_variants(frames.table).iloc[:0]
    rows = rows[rows["role"].eq("")]
    needs = rows[rows["verdict"].eq("inconclusive") & rows["seeds_low"].gt(0)]
    needs = needs.drop_duplicates("label", keep="last")
    fewest = needs["seeds_low"].min()
    undecided = rows[rows["verdict"].eq("inconclusive") & needs.empty]
    return {
        "next_seeds": "" if needs.empty else f"{fewest:.0f}",
        "next_names": [*needs.loc[needs["seeds_low"].eq(fewest), "label"].unique()],
        "undecided": [*undecided["label"]],
        "is_short": undecided["n"].lt(MIN_SEEDS_OF_SPREAD).any(),
        "is_decided": len(rows) > 0 and rows["verdict"].isin(["baseline", *DECIDED]).all(),
    }


def count_families(frames: Frames) -> str:
    """Count the families of simultaneous intervals, at 5% each."""
    counts: Counter[str] = Counter()
    for table in frames.tables:
        rows, others = compare_variants(table), compare_others(table)
        counts["rows"] += bool((~rows["baseline"] & rows["role"].eq("")).any())
        counts["controls"] += int(rows["role"].ne("").sum())
        counts["effects"] += len(estimate_factors(table)) > 0
        counts["steps"] += table.experiment.variants.design == "path"
        counts["other metrics"] += len(others) > 0
        counts["speeds"] += sum(bool(rows[f"{kind}_speed_turns"].any()) for kind in SPEEDS)
        counts["branches"] += len(view_lengths(table)) > 0
        counts["steps and seconds to the target"] += 2 * (table.experiment.target is not None)
    alone = judge_hypotheses(frames)["family"].str.contains("other comparisons|itself alone")
    counts["hypotheses"] += bool(alone.any())
    names = [f"{name} ({count})" if count > 1 else name for name, count in counts.items() if count]
    return write_block("facts.txt", "families", {"count": counts.total(), "names": names})
