"""Hypotheses of the experiment file and their test results."""

import math
from dataclasses import dataclass, replace

from llama_ablate import evidence
from llama_ablate.config.experiment import Hypothesis
from llama_ablate.evidence import Interval
from llama_ablate.evidence.written import measured, seeds
from llama_ablate.findings import contrasts, controls, estimands, guards, tuning
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.findings.outcomes import UNSTABLE, sides
from llama_ablate.findings.rows import Row, cell, column, grouped, has_number, mean_number
from llama_ablate.findings.tasks import of_training, split_of
from llama_ablate.results import FINAL
from llama_ablate.results.plan_document import NATS
from llama_ablate.terminal import plural

#: Endings of the names of numbers that say what the loss says.
_OF_LOSS = ("_nats", "_perplexity", "_bits_per_byte")
_LEARNED = 0.1  # smallest share of the distance from chance to the floor for a learned text
_SOLVED = 0.005  # nats above the floor, within which no further gain is possible


@dataclass(frozen=True)
class HypothesisRow(Row):
    """Row of a hypothesis: its statement, the measured difference, and the test result."""

    hypothesis: str = column("the hypothesis as a sentence", "hypothesis", leading=True)
    table: str = column("name of its table", "table", leading=True, optional=True, default="")
    source: str = column("who claims it", default="")
    said: str = column("what the source says", default="")
    unit: str = column("unit of the difference", default="")
    difference: float = column("what was measured", default=math.nan)
    low: float = column("lower end of its interval", default=math.nan)
    high: float = column("upper end of it", default=math.nan)

    @cell("measured [95%]", leading=True)
    def of_difference(self) -> str:
        """Write the difference in its unit, with its interval."""
        return measured(self.difference, self.low, self.high, self.unit)

    result: str = column(
        "`supported`, `refuted`, `undecided`, `undecidable`, `no verdict`, `pending`, `failed`, "
        "`stated, no longer judged`",
        "test result",
        leading=True,
    )
    why: str = column("why there is no result", default="")
    bias: str = column(
        "what is known of a bias, as in the comparison",
        "bias",
        leading=True,
        optional=True,
        default="",
    )
    remark: str = column("how the result and a row's verdict go together", default="")

    @cell("remark", leading=True, optional=True)
    def of_remark(self) -> str:
        """Write why a hypothesis has no test result, or what it takes to decide it."""
        if self.result == "no verdict":
            return "a control fails"
        more = seeds(self.seeds_low, self.seeds_high)
        decide = f"{more} would decide" if more else ""
        return "; ".join(filter(None, (self.why, self.remark, decide)))

    family: str = column(
        "for how many quantities the interval is corrected", "corrected for", default=""
    )
    p_corrected: float = column("p of a difference of 0, whatever was stated", default=math.nan)
    seeds_low: float = column("fewest seeds that would decide it", default=math.nan)
    seeds_high: float = column("most seeds that would", default=math.nan)
    n: int = column("number of pairs", default=0)
    tested: str = column("what the interval alone says", default="")

    def _has_source(self) -> bool:
        return bool(self.source or self.said)

    @cell("source", when=_has_source)
    def of_source(self) -> str:
        """Write who claims it."""
        return self.source

    @cell("source said", when=_has_source)
    def of_saying(self) -> str:
        """Write what the source says."""
        return self.said


def results(frames: Frames) -> list[HypothesisRow]:
    """Test each hypothesis of the file; return one row per hypothesis.

    A hypothesis about a row of a table, or a step of a path, uses the interval of that row; the
    other quantities in the file's hypotheses form a separate family. Where runs are missing the
    result is `pending` or `failed`. It is `undecidable` where an arm's runs were too short or no
    arm of a table has learned its text, and `no verdict` where a control fails that the result
    needs (`controls.failing`).
    """
    entries = frames.plan.hypotheses
    others = {
        estimands.key_of(entry, frames.named(entry.table))
        for entry in entries
        if _row_of(entry, frames) is None
    }
    rows = []
    for entry in entries:
        row = _row_of(entry, frames)
        interval = row.interval if row else _at_its_look(entry, frames, len(others))
        test = estimands.test_of(entry)
        result: str = test.result(interval)
        why = ""
        if missing := _missing(entry, frames, row, interval):
            result = missing
        elif reason := _undecidable(entry, frames):
            result, why = "undecidable", reason
        elif reason := _failing_controls(entry, frames, _is_seen(test, interval)):
            result, why = "no verdict", reason
        alone = len(frames.plan.experiment.looks) == 1  # else the looks say how many there will be
        needed = test.seeds_to_decide(interval) if result == "undecided" and alone else None
        low, high = needed or (math.nan, math.nan)
        table = frames.named(entry.table)
        remarks = [_remark(result, test, row, table.experiment.margin)]
        remarks += [_guarded(entry, table)] if result == "supported" else []
        remarks += [_at_one_rate(entry, table)]
        weight = estimands.weight(entry, table)
        beside = table.bias.beside(interval, test.result, weight)
        rows.append(
            HypothesisRow(
                hypothesis=_sentence(entry, table.plan.baseline.label),
                table=table.plan.name,
                source=entry.source,
                said=entry.said,
                unit=_unit(entry, table),
                difference=interval.mean,
                low=interval.low,
                high=interval.high,
                result=result,
                why=why,
                bias=beside if result == test.result(interval) else "",
                remark="; ".join(filter(None, remarks)),
                family=row.family if row else _count(others),
                p_corrected=interval.p,
                seeds_low=low,
                seeds_high=high,
                n=interval.n,
                tested=test.result(interval),
            )
        )
    return rows


#: Result of a stored hypothesis in a form that is no longer supported.
NO_LONGER_JUDGED = "stated, no longer judged"


def unjudged(frames: Frames) -> list[HypothesisRow]:
    """Return a row for each stored hypothesis whose form is no longer supported."""
    refused = [one for one in frames.plan.refused if one.where[0] == "hypotheses"]
    entries = (one.value for one in sorted(refused, key=lambda one: int(one.where[1])))
    return [
        HypothesisRow(
            hypothesis=", ".join(f"{key} {value}" for key, value in entry.items() if value),
            result=NO_LONGER_JUDGED,
        )
        for entry in entries
        if isinstance(entry, dict)
    ]


@dataclass(frozen=True)
class _Row:
    """Row of a report: its interval, the family of its correction, and its verdict."""

    interval: Interval
    family: str
    verdict: str


def _row_of(entry: Hypothesis, frames: Frames) -> _Row | None:
    """Return the comparison row or path step that a hypothesis tests; None for others.

    Other quantities are: a pair of variants that no row compares, another number than the loss, and
    a pair with runs that diverged or collapsed, which must count.
    """
    table = frames.named(entry.table)
    base = table.plan.baseline.label
    pair = (entry.variant, entry.against or base)
    ids = {variant.label: variant.id for variant in table.plan.variants}
    lost = any(side.lost for side in sides(table.reported, *([ids[label]] for label in pair)))
    if lost or entry.measure not in (None, table.loss):
        return None
    for labels, row in _rows(table).items():
        if set(labels) == set(pair) and len(set(pair)) > 1:
            return row if labels == pair else replace(row, interval=-row.interval)
    return None


def _at_its_look(entry: Hypothesis, frames: Frames, family: int) -> Interval:
    """Compute the interval of a quantity without a row, at its current look."""
    table = frames.named(entry.table)
    key = estimands.key_of(entry, table)
    if key not in table.quantities:
        return estimands.interval(entry, table, family)
    look = max(table.stated[key].look, 0)
    view = frames.until(look).named(entry.table)
    return estimands.interval(entry, view, family / table.quantities[key].shares[look])


def _rows(table: TableFrames) -> dict[tuple[str, str], _Row]:
    """Return the rows of a table with an interval, by their pair of variant labels."""
    variants = [variant for variant in table.plan.variants if not variant.baseline]
    verdicts = {row.label: row.verdict for row in table.comparison}
    base = table.plan.baseline.label
    ranked = sum(not variant.role for variant in variants)
    of = f"{ranked} {plural(ranked, 'row')} of its table"
    rows = {
        (v.label, base): _Row(
            table.intervals[v.id], "itself alone" if v.role else of, verdicts[v.label]
        )
        for v in variants
    }
    steps = contrasts.step_intervals(table)
    words = [row.verdict for row in contrasts.steps(table)]
    for (labels, interval), word in zip(steps.items(), words, strict=True):
        rows.setdefault(labels, _Row(interval, f"{len(steps)} steps of its path", word))
    return rows


def _missing(entry: Hypothesis, frames: Frames, row: _Row | None, interval: Interval) -> str:
    """Return `pending` or `failed` if runs of a hypothesis are missing; otherwise ""."""
    if row and row.verdict in ("pending", "failed"):
        return row.verdict
    table = frames.named(entry.table)
    at = table.stated.get(estimands.key_of(entry, table)) if row is None else None
    if not (at.is_open if at else math.isnan(interval.mean)):
        return ""
    arms = (entry.variant, estimands.against(entry, table))
    ends = [{run.outcome for run in table.runs if run.label == label} for label in arms]
    if any("pending" in end for end in ends):
        return "pending"
    if at:  # a necessary run failed
        return "failed"
    return "failed" if any(end.isdisjoint(FINAL) for end in ends) else ""


def _remark(result: str, test: evidence.Expectation, row: _Row | None, margin: str | None) -> str:
    """Explain how a row's verdict and a result agree, where they test different bounds."""
    if row is None:
        return ""
    if result == "undecided" and row.verdict == "equivalent":
        return f"equivalent within {margin}"
    if result == "undecided" and row.verdict in ("better", "worse"):
        held = (end for end in test.region if row.interval.low <= end <= row.interval.high)
        return f"{row.verdict}, but the interval holds {' and '.join(f'{end:+g}' for end in held)}"
    one_sided = test.direction != "equivalent" and (
        (result == "supported" and test.margin >= 0) or (result == "refuted" and test.margin <= 0)
    )
    if one_sided and row.verdict == "equivalent":
        return f"by less than the margin of {margin}"
    return ""


def _guarded(entry: Hypothesis, table: TableFrames) -> str:
    """Name the guarded number in which a variant with better loss is worse; else ""."""
    is_better = entry.direction == "better" and entry.against is None
    return guards.broken(table.guards).get(entry.variant, "") if is_better else ""


def _at_one_rate(entry: Hypothesis, table: TableFrames) -> str:
    """Warn where the losses of two optimizers are compared at a single learning rate."""
    if not estimands.is_loss(entry, table):
        return ""
    variants = {variant.label: variant for variant in table.plan.variants}
    against = variants[estimands.against(entry, table)]
    return tuning.one_rate(table.plan, table.experiment, variants[entry.variant], against)


def _count(quantities: set[str]) -> str:
    several = len(quantities) > 1
    return f"{len(quantities)} other comparisons" if several else "itself alone"


def _undecidable(entry: Hypothesis, frames: Frames) -> str:
    """Explain why a hypothesis' table cannot show a loss difference; "" if it can."""
    table = frames.named(entry.table)
    if reason := _lost(entry, table):
        return reason
    is_of_loss = entry.measure is None or entry.measure.endswith(_OF_LOSS)
    return (_too_short(entry, table) or undecidable(table)) if is_of_loss else ""


def _lost(entry: Hypothesis, table: TableFrames) -> str:
    """Name a diverged or collapsed run without a value for a hypothesis; "" if none.

    A loss always has a value, since an unstable run is assigned the loss of chance.
    """
    name = entry.measure or table.loss
    if split_of(table, name) or not has_number(table.ranked, name) or of_training(table, name):
        return ""
    arms = (entry.variant, estimands.against(entry, table))
    for run in table.reported:
        if run.label in arms and run.outcome in UNSTABLE:
            return f"{run.label}, seed {run.seed}, {run.outcome}: what it learned does not compare"
    return ""


def _too_short(entry: Hypothesis, table: TableFrames) -> str:
    """Name a run of a hypothesis' arms that was too short; "" if none was."""
    arms = (entry.variant, estimands.against(entry, table))
    for run in table.reported:
        if run.label in arms and run.too_short:
            return f"too short: {run.label}, seed {run.seed}: {run.reason}"
    return ""


def undecidable(table: TableFrames) -> str:
    """Explain why a table cannot distinguish its arms; "" if it can.

    Either no arm has learned the text: all reported runs collapsed, or no arm's mean loss is a
    tenth of the distance from chance to the text's known floor. Or all arms have reached the floor.
    """
    ranked = [run for run in table.ranked if run.role != "positive"]
    finished = [run for run in ranked if run.outcome in FINAL]
    if finished and all(run.outcome == "collapsed" for run in finished):
        return "no arm has learned the task: all runs collapsed"
    names = (f"{table.split}_loss_nats", f"{table.split}_excess_nats")
    ok = grouped((run for run in finished if run.outcome == "ok"), lambda run: run.label)
    means = [[mean_number(own, name) for name in names] for own in ok.values()]
    known = [both for both in means if not any(map(math.isnan, both))]
    if not known:
        return ""
    losses, excesses = zip(*known, strict=True)
    chance = math.log(table.plan.text.vocab)
    if all(chance - loss < _LEARNED * (chance - loss + excess) for loss, excess in known):
        return (
            f"no arm has learned the task: the lowest loss is {min(losses):.3f} nats, chance "
            f"{chance:.3f}"
        )
    if max(excesses) < _SOLVED and len(finished) == len(ranked):
        return (
            f"every arm has solved the task: all are within {max(excesses):.4f} nats of its floor"
        )
    return ""


def _failing_controls(entry: Hypothesis, frames: Frames, seen_to_differ: bool) -> str:
    """Say which controls fail that a result needs; nothing where all of those hold.

    A speed has none that can: the same code under another name widens its interval.
    """
    table = frames.named(entry.table)
    if estimands.is_timed(entry, table):
        return ""
    return controls.failing(table.controls, seen_to_differ=seen_to_differ)


def _is_seen(test: evidence.Expectation, interval: Interval) -> bool:
    """Return whether a result rests on a difference that was seen, and not on its being small."""
    apart = interval.low > 0 or interval.high < 0
    return apart and not (test.direction == "equivalent" and test.result(interval) == "supported")


def _unit(entry: Hypothesis, table: TableFrames) -> str:
    """Return the unit of a hypothesis' number where it is a loss; else none."""
    if estimands.is_loss(entry, table):
        return table.unit.name
    return NATS.name if (entry.measure or "").endswith("_nats") else ""


def _sentence(entry: Hypothesis, baseline: str) -> str:
    """Write a hypothesis as a sentence: `relu is worse than swiglu by more than 0.01 nats`."""
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
