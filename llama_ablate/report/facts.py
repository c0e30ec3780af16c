"""Facts on the scale, costs and next step of an experiment, for the first screen of its page."""

import json
from typing import Any

from llama_ablate.evidence.intervals import MIN_SEEDS_OF_SPREAD
from llama_ablate.evidence.written import count, ends
from llama_ablate.findings.answer import SAME_COST, count_seeds, name_texts, write_share
from llama_ablate.findings.effects import factors
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.rows import grouped
from llama_ablate.findings.tuning import best_points
from llama_ablate.report.rendering import write_block

_NAMES = ("text", "model", "training", "learning_rate", "speed", "memory", "what_next")
#: Verdicts that more seeds of the same runs would hardly change.
DECIDED = ("better", "worse", "equivalent", "equal")
_NOISY = 1.1  # ratio of speeds of one code from which speeds say nothing


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
    best = best_points(table.runs, {}) if "lr" in experiment.tune else {}
    by_rate = grouped(
        (v for v in variants if v.id in best), lambda v: f"{json.loads(best[v.id])['lr']:g}"
    )
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
            f"{rate} for {', '.join(v.label for v in of[:3])}{' and others' * (len(of) > 3)}"
            for rate, of in by_rate.items()
        ],
    }


def _describe_costs(frames: Frames) -> dict[str, Any]:
    rows = [row for row in frames.table.comparison if row.role != "positive"]
    timed = [row for row in rows if row.train_speed.ratio > 0]
    same = (row.train_speed.ratio for row in timed if row.role == "aa")
    base, *others = [row for row in rows if not row.role]
    name = "state_bytes" if base.asked_context is None else "asked_state_bytes"
    state = getattr(base, name)
    shares = {row.label: getattr(row, name) / state for row in others} if state > 0 else {}
    less = sorted((share, label) for label, share in shares.items() if share < 1 - SAME_COST)
    speeds = [row for row in timed if not (row.baseline or row.role)]
    return {
        "noisy": next((ratio for ratio in same if max(ratio, 1 / ratio) > _NOISY), None),
        "speeds": sorted(speeds, key=lambda row: row.train_speed),
        "is_paired": any(row.train_speed.turns for row in timed),
        "state": max(0, state),
        "state_context": base.asked_context or base.context,
        "less": [f"{label} {write_share(share)}" for share, label in less],
    }


def _describe_next(frames: Frames) -> dict[str, Any]:
    tables = [table for table in frames.tables if not factors(table)]
    rows = [row for table in tables for row in table.comparison if not row.role]
    needs = {
        row.label: row.seeds_low
        for row in rows
        if row.verdict == "inconclusive" and row.seeds_low > 0
    }
    fewest = min(needs.values(), default=0)
    undecided = [row for row in rows if row.verdict == "inconclusive" and not needs]
    return {
        "next_seeds": f"{fewest:.0f}" if fewest else "",
        "next_names": [label for label, seeds in needs.items() if seeds == fewest],
        "undecided": [row.label for row in undecided],
        "is_short": any(row.n < MIN_SEEDS_OF_SPREAD for row in undecided),
        "is_decided": bool(rows) and {row.verdict for row in rows} <= {"baseline", *DECIDED},
    }
