"""Hypotheses of the experiment file and their test results."""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pandas as pd

from llama_ablate.config.experiment import Hypothesis
from llama_ablate.evidence.intervals import seeds_needed
from llama_ablate.evidence.verdicts import compare_region, find_region, judge, negate
from llama_ablate.findings import tuning
from llama_ablate.findings.columns import index_rows, iterate, list_rows, make_frame
from llama_ablate.findings.compare import Pair, compare, describes_training, loss_split
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.factors import compare_steps, describe_steps
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.outcomes import UNSTABLE
from llama_ablate.findings.stages import find_differences, find_ranked, find_runs
from llama_ablate.findings.table import CLEARLY_BELOW, Table
from llama_ablate.results import FINAL
from llama_ablate.results.plan_document import NATS
from llama_ablate.terminal import plural

#: Endings of the names of metrics that express the loss.
_LOSS_ENDINGS = ("_nats", "_perplexity", "_bits_per_byte")
_LEARNED = 0.1  # share of the way from chance to the floor, from which a text is learned
_SOLVED = 0.005  # nats above the floor, within which no further gain is possible
NOT_LEARNED = f"no arm came more than {CLEARLY_BELOW} nats below the loss of token frequencies"
#: Result of a stored hypothesis in a form that is no longer supported.
NO_LONGER_JUDGED = "stated, no longer judged"


class Tested(NamedTuple):
    """Difference that a hypothesis tests, with the verdict of its table row.

    `family` describes the comparisons over which the interval is simultaneous.
    """

    row: Mapping[str, Any]
    family: str
    #: Verdict of the table row or path step; "" for any other difference.
    verdict: str = ""


def judge_hypotheses(frames: Frames) -> pd.DataFrame:
    """Test each hypothesis of the file; return one row per hypothesis.

    A hypothesis on a row of a table, or on a step of a path, uses the interval of that row or step.
    All other differences that the file's hypotheses test form a separate family of simultaneous
    intervals. With missing runs the result is `pending` or `failed`. The result is `undecidable` if
    a variant's runs were too short, if no variant of the table has learned the text, or if the
    values are not comparable. Stored hypotheses whose form is no longer supported come last.
    """
    entries = [(entry, frames.named(entry.table)) for entry in frames.plan.hypotheses]
    tested = [_find_row(*each) for each in entries]
    others = {
        (table.plan.name, entry.measure, *sorted(_find_pair(entry, table)))
        for (entry, table), row in zip(entries, tested, strict=True)
        if row is None
    }
    rows = [
        _test(entry, table, row or _compare_apart(entry, table, len(others)))
        for (entry, table), row in zip(entries, tested, strict=True)
    ]
    return make_frame([*rows, *_list_unjudged(frames)], "hypotheses")


def _test(entry: Hypothesis, table: Table, tested: Tested) -> dict[str, Any]:
    direction, size = _read_direction(entry)
    region, row = find_region(direction, size), tested.row
    result, why = _find_result(entry, table, tested, direction)
    # In an experiment with looks, the looks determine the number of seeds.
    needed = math.nan
    if result == compare_region(row, region) == "undecided" and len(table.experiment.looks) == 1:
        needed = seeds_needed(row, min(abs(row["mean"] - end) for end in region))
    remarks = [_remark(result, direction, size, tested, table.experiment.margin)]
    remarks += [_list_guards(entry, table)] if result == "supported" else []
    remarks += [_warn_of_rate(entry, table)]
    return {
        "hypothesis": _write_hypothesis(entry, table.plan.baseline.label),
        "table": table.plan.name,
        "source": entry.source,
        "said": entry.said,
        "unit": _find_unit(entry, table),
        "difference": row["mean"],
        "low": row["low"],
        "high": row["high"],
        "result": result,
        "why": why,
        "remark": "; ".join(filter(None, remarks)),
        "family": tested.family,
        "seeds_low": needed,
        "n": row["n"],
        "tested": compare_region(row, region),
    }


def _list_unjudged(frames: Frames) -> Iterator[dict[str, Any]]:
    """Yield a row for each stored hypothesis whose form is no longer supported."""
    refused = [
        refusal
        for refusal in frames.plan.refused
        if refusal.where[0] == "hypotheses" and len(refusal.where) > 1
    ]
    for refusal in sorted(refused, key=lambda refusal: int(refusal.where[1])):
        if isinstance(refusal.value, dict):
            statement = ", ".join(f"{key} {value}" for key, value in refusal.value.items() if value)
            yield {"hypothesis": statement, "result": NO_LONGER_JUDGED, "n": 0}


def _find_pair(entry: Hypothesis, table: Table) -> Pair:
    """Return the ids of the two variants that a hypothesis compares."""
    ids = {variant.label: variant.id for variant in table.plan.variants}
    return ids[entry.variant], ids[_find_other(entry, table)]


def _find_other(entry: Hypothesis, table: Table) -> str:
    return entry.against or table.plan.baseline.label


def _read_direction(entry: Hypothesis) -> tuple[str, float]:
    """Return the direction and size that a hypothesis states; not worse by m is better by -m."""
    word = entry.direction.removeprefix("not ")
    direction = {"lower": "better", "higher": "worse"}.get(word, word)
    if entry.direction.startswith("not "):
        return "worse" if direction == "better" else "better", -entry.size
    return direction, entry.size


def _find_row(entry: Hypothesis, table: Table) -> Tested | None:
    """Return the table row or path step that a hypothesis tests; None for neither."""
    pair = _find_pair(entry, table)
    if entry.measure not in (None, table.loss) or pair[0] == pair[1]:
        return None
    plan, steps = table.plan, compare_steps(table)
    for first, second, is_turned in ((*pair, False), (*pair[::-1], True)):
        label = plan.variant(first).label
        if second == table.base:
            ranked = sum(not (v.role or v.baseline) for v in plan.variants)
            family = f"{ranked} {plural(ranked, 'row')} of its table"
            family = "itself alone" if plan.variant(first).role else family
            words = compare_variants(table).set_index("label")["verdict"]
            row = index_rows(find_differences(table))[first]
            return Tested(negate(row) if is_turned else row, family, words[label])
        if (first, second) in steps:
            words = describe_steps(table).set_index("step")["verdict"]
            family = f"{len(steps)} steps of its path"
            row = steps[first, second]
            return Tested(negate(row) if is_turned else row, family, words[label])
    return None


def _compare_apart(entry: Hypothesis, table: Table, family: int) -> Tested:
    """Compute the difference for a hypothesis that tests no table row or path step."""
    pair = _find_pair(entry, table)
    (row,) = list_rows(compare(table, entry.measure or table.loss, [pair], family))
    return Tested(row, f"{family} other comparisons" if family > 1 else "itself alone")


def _find_result(
    entry: Hypothesis, table: Table, tested: Tested, direction: str
) -> tuple[str, str]:
    """Return the result of a hypothesis, with the reason if it is undecidable."""
    row, pair = tested.row, _find_pair(entry, table)
    if missing := _find_missing(entry, table, tested):
        return missing, ""
    if reason := row["why_not"] or _explain_loss(entry, table, row, direction):
        return "undecidable", reason
    name, region = entry.measure or table.loss, find_region(*_read_direction(entry))
    is_of_loss = bool(loss_split(table, name))
    if is_of_loss and (row["own_lost"] or row["other_lost"]):
        return _test_survivors(row, direction, region), ""
    is_of_model = not describes_training(table, name)
    if not is_of_loss and name in table.planned and name not in UNSTABLE and is_of_model:
        for id_, side in zip(pair, ("own", "other"), strict=True):
            if lost := row[f"{side}_lost"]:
                some = f"{lost} of {row[f'{side}_runs']} runs diverged or collapsed"
                label = table.plan.variant(id_).label
                return "undecidable", f"{label}: {some}, which learned nothing to compare"
    return compare_region(row, region), ""


def _test_survivors(row: Mapping[str, Any], direction: str, region: tuple[float, float]) -> str:
    """Return the result of a loss hypothesis if runs diverged or collapsed.

    A variant is worse if significantly more of its runs diverged or collapsed, as in a row of a
    table. Otherwise the interval covers only the seeds that both variants completed. Such an
    interval can only support the hypothesis that a variant without lost runs is better; any other
    result is `undecided`.
    """
    if judge(row) in UNSTABLE:
        return "supported" if direction == "worse" else "refuted"
    if judge(negate(row)) in UNSTABLE:
        return "supported" if direction == "better" else "refuted"
    allowed = {"better": not row["own_lost"], "worse": not row["other_lost"]}
    result = compare_region(row, region)
    return result if allowed.get(direction) and result == "supported" else "undecided"


def _find_missing(entry: Hypothesis, table: Table, tested: Tested) -> str:
    """Return `pending` or `failed` if runs of a hypothesis are missing; otherwise ""."""
    if tested.verdict in ("pending", "failed"):
        return tested.verdict
    runs = find_runs(table)
    ends = [{*runs.loc[runs["variant"].eq(id_), "outcome"]} for id_ in _find_pair(entry, table)]
    is_open = len(table.experiment.looks) > 1 and not tested.verdict
    nothing = math.isnan(tested.row["mean"])
    if any("pending" in end for end in ends) and (nothing or is_open):
        return "pending"
    lost = tested.row["own_lost"] + tested.row["other_lost"]
    return "failed" if nothing and not lost and any(end.isdisjoint(FINAL) for end in ends) else ""


def _remark(result: str, direction: str, size: float, tested: Tested, margin: str | None) -> str:
    """Explain a hypothesis' result that seems to contradict the verdict of its table row.

    The bounds of the hypothesis may differ from the table's margin. Return "" without a
    contradiction.
    """
    word, row = tested.verdict, tested.row
    if result == "undecided" and word == "equivalent":
        return f"equivalent within {margin}"
    if result == "undecided" and word in ("better", "worse"):
        inside = [end for end in find_region(direction, size) if row["low"] <= end <= row["high"]]
        bounds = " and ".join(f"{end:+g}" for end in inside)
        return f"{word}, but the interval holds {bounds}" if inside else ""
    one_sided = direction != "equivalent" and (
        (result == "supported" and size >= 0) or (result == "refuted" and size <= 0)
    )
    return f"by less than the margin of {margin}" if one_sided and word == "equivalent" else ""


def _list_guards(entry: Hypothesis, table: Table) -> str:
    """Return the broken guards of a variant that is claimed to be better; else ""."""
    if entry.direction != "better" or entry.against is not None:
        return ""
    return str(index_rows(compare_variants(table), "label")[entry.variant]["guard"])


def _warn_of_rate(entry: Hypothesis, table: Table) -> str:
    """Return a warning if two optimizers are compared at a single learning rate."""
    if not loss_split(table, entry.measure):
        return ""
    own_variant, other = (table.plan.variant(id_) for id_ in _find_pair(entry, table))
    return tuning.one_rate(table.plan, table.experiment, own_variant, other)


def _explain_loss(entry: Hypothesis, table: Table, row: Mapping[str, Any], direction: str) -> str:
    """Explain why a hypothesis' table cannot show a loss difference; "" if it can."""
    if entry.measure is not None and not entry.measure.endswith(_LOSS_ENDINGS):
        return ""
    if row["own_too_short"] or row["other_too_short"]:
        labels, runs = (entry.variant, _find_other(entry, table)), find_runs(table)
        run = next(iterate(runs[runs["label"].isin(labels) & runs["too_short"]]))
        return f"too short: {run.label}, seed {run.seed}: {run.reason}"
    if direction == "equivalent" and not table.has_learned:
        return NOT_LEARNED
    return explain_undecidable(table)


def explain_undecidable(table: Table) -> str:
    """Explain why a table cannot distinguish its variants; return "" if it can.

    One reason is that no variant has learned the text: all reported runs collapsed, or no variant's
    mean loss has covered a tenth of the distance from chance to the text's floor (its known lowest
    loss). The other reason is that all variants have reached the floor.
    """
    ranked = find_ranked(table)
    ranked = ranked[ranked["role"].ne("positive")]
    finished = ranked[ranked["outcome"].isin(FINAL)]
    if len(finished) and finished["outcome"].eq("collapsed").all():
        return "no arm has learned the task: all runs collapsed"
    names = [f"{table.split}_loss_nats", f"{table.split}_excess_nats"]
    if not {*names} <= {*finished}:
        return ""
    means = finished[finished["outcome"].eq("ok")].groupby("label")[names].mean().dropna()
    if means.empty:
        return ""
    losses, excesses = (means[name] for name in names)
    chance = math.log(table.plan.text.vocab)
    if (chance - losses < _LEARNED * (chance - losses + excesses)).all():
        return (
            f"no arm has learned the task: the lowest loss is {losses.min():.3f} nats, chance "
            f"{chance:.3f}"
        )
    if excesses.max() < _SOLVED and len(finished) == len(ranked):
        return (
            f"every arm has solved the task: all are within {excesses.max():.4f} nats of its floor"
        )
    return ""


def _find_unit(entry: Hypothesis, table: Table) -> str:
    """Return the unit of a hypothesis' loss; "" for other metrics."""
    if loss_split(table, entry.measure):
        return table.unit.name
    return NATS.name if (entry.measure or "").endswith("_nats") else ""


def _write_hypothesis(entry: Hypothesis, baseline: str) -> str:
    """Return a hypothesis in words: `relu is worse than swiglu by more than 0.01 nats`."""
    first, other = entry.variant, entry.against or baseline
    what = f" in {entry.measure}" if entry.measure else ""
    if entry.measure in UNSTABLE:
        what = f" in the share of its runs that {entry.measure}"
    more = f" by more than {entry.margin}" if entry.size else ""
    if entry.direction == "equivalent":
        return f"{first} equals {other} within {entry.margin}{what}"
    if entry.direction.startswith("not "):
        more = f" by {entry.margin}"
    return f"{first} is {entry.direction} than {other}{more}{what}"
