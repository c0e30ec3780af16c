"""Hypotheses of the experiment file and their test results."""

import math
from dataclasses import dataclass
from typing import Any

from llama_ablate.config.experiment import Hypothesis
from llama_ablate.evidence import Difference, Ended, Expectation
from llama_ablate.evidence.written import measured, seeds
from llama_ablate.findings import effects, tuning
from llama_ablate.findings.compare import Pair, RowFamily, compare
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.findings.paired_table import describes_training, loss_split
from llama_ablate.findings.rows import ENDS, Row, cell, column, grouped
from llama_ablate.findings.values import CLEARLY_BELOW, UNSTABLE, mean_number
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


@dataclass(frozen=True)
class HypothesisRow(Row):
    """Table row for a hypothesis: its statement, measured difference and test result."""

    ORDER = (
        *("hypothesis", "table", *ENDS, "result", "show_remark", "family"),
        *("show_source", "show_saying"),
    )

    hypothesis: str = column("the hypothesis as a sentence", "hypothesis", leading=True)
    table: str = column("name of its table", "table", leading=True, optional=True, default="")
    source: str = column("who claims it", default="")
    said: str = column("what the source says", default="")
    unit: str = column("unit of the difference", default="")
    difference: float = column("what was measured", default=math.nan)
    low: float = column("lower end of its interval", default=math.nan)
    high: float = column("upper end of it", default=math.nan)
    result: str = column(
        "`supported`, `refuted`, `undecided`, `undecidable`, `pending`, `failed`, "
        f"`{NO_LONGER_JUDGED}`",
        "test result",
        leading=True,
    )
    why: str = column("why there is no result", default="")
    remark: str = column("how the result and a row's verdict go together", default="")
    family: str = column(
        "for how many quantities the interval is corrected", "corrected for", default=""
    )
    p_corrected: float = column("p of a difference of 0, whatever was stated", default=math.nan)
    seeds_low: float = column("fewest seeds that would decide it", default=math.nan)
    n: int = column("number of pairs", default=0)
    tested: str = column("what the interval alone says", default="")

    @cell("measured [95%]", leading=True)
    def show_difference(self) -> str:
        """Write the difference in its unit, with its interval."""
        return measured(self.difference, self.low, self.high, self.unit)

    @cell("remark", leading=True, optional=True)
    def show_remark(self) -> str:
        """Write the reason for a missing result, remarks, and the seeds needed for a result."""
        more = seeds(self.seeds_low)
        return "; ".join(filter(None, (self.why, self.remark, f"{more} would decide" * bool(more))))

    def _has_source(self) -> bool:
        return bool(self.source or self.said)

    @cell("source", when=_has_source)
    def show_source(self) -> str:
        """Write the source of the hypothesis."""
        return self.source

    @cell("source said", when=_has_source)
    def show_saying(self) -> str:
        """Write the statement of the source."""
        return self.said


@dataclass(frozen=True)
class _Tested:
    """Difference that a hypothesis tests, with the verdict of its table row.

    `family` describes the comparisons over which the interval is simultaneous.
    """

    found: Difference
    family: str
    #: Verdict of the table row or path step; "" for any other difference.
    verdict: str = ""


def results(frames: Frames) -> list[HypothesisRow]:
    """Test each hypothesis of the file; return one row per hypothesis.

    A hypothesis on a row of a table, or on a step of a path, uses the interval of that row or step.
    All other differences that the file's hypotheses test form a separate family of simultaneous
    intervals. With missing runs the result is `pending` or `failed`. The result is `undecidable` if
    a variant's runs were too short, if no variant of the table has learned the text, or if the
    values are not comparable.
    """
    entries = frames.plan.hypotheses
    tested = [_test_row(entry, frames.named(entry.table)) for entry in entries]
    others = {
        (frames.named(entry.table).plan.name, entry.measure, *sorted(_ids(entry, frames)))
        for entry, row in zip(entries, tested, strict=True)
        if row is None
    }
    return [
        _test(entry, frames.named(entry.table), row or _test_apart(entry, frames, len(others)))
        for entry, row in zip(entries, tested, strict=True)
    ]


def _test(entry: Hypothesis, table: TableFrames, tested: _Tested) -> HypothesisRow:
    test, interval = _expectation(entry), tested.found.interval
    result, why = _result(entry, table, tested, test)
    # In an experiment with looks, the looks determine the number of seeds.
    alone = len(table.experiment.looks) == 1
    needed = test.seeds_to_decide(interval) if result == "undecided" and alone else None
    remarks = [_remark(result, test, tested, table.experiment.margin)]
    remarks += [_guarded(entry, table)] if result == "supported" else []
    remarks += [_at_one_rate(entry, table)]
    return HypothesisRow(
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
        remark="; ".join(filter(None, remarks)),
        family=tested.family,
        p_corrected=interval.p,
        seeds_low=math.nan if needed is None else needed,
        n=interval.n,
        tested=test.result(interval),
    )


def unjudged(frames: Frames) -> list[HypothesisRow]:
    """Return a row for each stored hypothesis whose form is no longer supported."""
    refused = [refusal for refusal in frames.plan.refused if refusal.where[0] == "hypotheses"]
    entries = (refusal.value for refusal in sorted(refused, key=lambda one: int(one.where[1])))
    return [
        HypothesisRow(
            hypothesis=", ".join(f"{key} {value}" for key, value in entry.items() if value),
            result=NO_LONGER_JUDGED,
        )
        for entry in entries
        if isinstance(entry, dict)
    ]


def _ids(entry: Hypothesis, frames: Frames) -> Pair:
    return _pair(entry, frames.named(entry.table))


def _pair(entry: Hypothesis, table: TableFrames) -> Pair:
    """Return the ids of the two variants that a hypothesis compares."""
    ids = {variant.label: variant.id for variant in table.plan.variants}
    return ids[entry.variant], ids[_against(entry, table)]


def _against(entry: Hypothesis, table: TableFrames) -> str:
    return entry.against or table.plan.baseline.label


def _expectation(entry: Hypothesis) -> Expectation:
    """Convert a hypothesis of the file to the expectation that is tested."""
    word: Any = entry.direction.removeprefix("not ")
    direction = {"lower": "better", "higher": "worse"}.get(word, word)
    if entry.direction.startswith("not "):  # not worse by m means better by -m
        return Expectation("worse" if direction == "better" else "better", -entry.size)
    return Expectation(direction, entry.size)


def _test_row(entry: Hypothesis, table: TableFrames) -> _Tested | None:
    """Return the table row or path step that a hypothesis tests; None for neither."""
    variant_id, other = _pair(entry, table)
    if entry.measure not in (None, table.loss) or variant_id == other:
        return None
    plan, base = table.plan, table.plan.baseline.id
    for first, second, sign in ((variant_id, other, 1), (other, variant_id, -1)):
        variant = plan.variant(first)
        if second == base:
            ranked = sum(not (v.role or v.baseline) for v in plan.variants)
            of = f"{ranked} {plural(ranked, 'row')} of its table"
            word = next(r.verdict for r in table.comparison if r.label == variant.label)
            difference = table.standings[first].row
            return _Tested(
                difference if sign > 0 else -difference,
                "itself alone" if variant.role else of,
                word,
            )
        steps = effects.compare_steps(table)
        if (first, second) in steps:
            difference = steps[first, second]
            word = next(r.verdict for r in effects.steps(table) if r.step == variant.label)
            return _Tested(
                difference if sign > 0 else -difference, f"{len(steps)} steps of its path", word
            )
    return None


def _test_apart(entry: Hypothesis, frames: Frames, family: int) -> _Tested:
    """Compute the difference for a hypothesis that tests no table row or path step."""
    table, pair = frames.named(entry.table), _ids(entry, frames)
    difference = compare(table, entry.measure or table.loss, *pair, RowFamily([pair], family))
    several = family > 1
    return _Tested(difference, f"{family} other comparisons" if several else "itself alone")


def _result(
    entry: Hypothesis, table: TableFrames, tested: _Tested, test: Expectation
) -> tuple[str, str]:
    """Return the result of a hypothesis, with the reason if it is undecidable."""
    difference, pair = tested.found, _pair(entry, table)
    if missing := _missing(entry, table, tested):
        return missing, ""
    if difference.why_not:
        return "undecidable", difference.why_not
    if reason := _undecidable(entry, table, difference):
        return "undecidable", reason
    name = entry.measure or table.loss
    is_of_loss = bool(loss_split(table, name))
    if is_of_loss and (difference.own.lost or difference.other.lost):
        return _with_lost_runs(difference, test), ""
    if not is_of_loss and name in table.numbers and name not in UNSTABLE:
        for id_, ended in zip(pair, (difference.own, difference.other), strict=True):
            if ended.lost and not describes_training(table, name):
                label = table.plan.variant(id_).label
                return (
                    "undecidable",
                    f"{label}: {_describe_lost(ended)}, which learned nothing to compare",
                )
    return test.result(difference.interval), ""


def _with_lost_runs(found: Difference, test: Expectation) -> str:
    """Return the result of a loss hypothesis if runs diverged or collapsed.

    A variant is worse if significantly more of its runs diverged or collapsed, as in a row of a
    table. Otherwise the interval covers only the seeds that both variants completed. Such an
    interval can only support the hypothesis that a variant without lost runs is better; any other
    result is `undecided`.
    """
    if found.judged() in UNSTABLE:
        return "supported" if test.direction == "worse" else "refuted"
    if (-found).judged() in UNSTABLE:
        return "supported" if test.direction == "better" else "refuted"
    allowed = {"better": not found.own.lost, "worse": not found.other.lost}
    result = test.result(found.interval)
    return result if allowed.get(test.direction) and result == "supported" else "undecided"


def _describe_lost(ended: Ended) -> str:
    return f"{ended.lost} of {ended.runs} runs diverged or collapsed"


def _missing(entry: Hypothesis, table: TableFrames, tested: _Tested) -> str:
    """Return `pending` or `failed` if runs of a hypothesis are missing; otherwise ""."""
    if tested.verdict in ("pending", "failed"):
        return tested.verdict
    pair = _pair(entry, table)
    ends = [{run.outcome for run in table.runs if run.variant == id_} for id_ in pair]
    is_open = len(table.experiment.looks) > 1 and not tested.verdict
    nothing = math.isnan(tested.found.interval.mean)
    if any("pending" in end for end in ends) and (nothing or is_open):
        return "pending"
    lost = tested.found.own.lost + tested.found.other.lost
    return "failed" if nothing and not lost and any(end.isdisjoint(FINAL) for end in ends) else ""


def _remark(result: str, test: Expectation, tested: _Tested, margin: str | None) -> str:
    """Explain a hypothesis' result that seems to contradict the verdict of its table row.

    The bounds of the hypothesis may differ from the table's margin. Return "" without a
    contradiction.
    """
    word, interval = tested.verdict, tested.found.interval
    if result == "undecided" and word == "equivalent":
        return f"equivalent within {margin}"
    if result == "undecided" and word in ("better", "worse"):
        inside = [end for end in test.region if interval.low <= end <= interval.high]
        bounds = " and ".join(f"{end:+g}" for end in inside)
        return f"{word}, but the interval holds {bounds}" if inside else ""
    one_sided = test.direction != "equivalent" and (
        (result == "supported" and test.margin >= 0) or (result == "refuted" and test.margin <= 0)
    )
    return f"by less than the margin of {margin}" if one_sided and word == "equivalent" else ""


def _guarded(entry: Hypothesis, table: TableFrames) -> str:
    """Return the broken guards of a variant that is claimed to be better; else ""."""
    if entry.direction != "better" or entry.against is not None:
        return ""
    return next((r.guard for r in table.comparison if r.label == entry.variant), "")


def _at_one_rate(entry: Hypothesis, table: TableFrames) -> str:
    """Return a warning if two optimizers are compared at a single learning rate."""
    if not loss_split(table, entry.measure):
        return ""
    own_variant, other = (table.plan.variant(id_) for id_ in _pair(entry, table))
    return tuning.one_rate(table.plan, table.experiment, own_variant, other)


def _undecidable(entry: Hypothesis, table: TableFrames, found: Difference) -> str:
    """Explain why a hypothesis' table cannot show a loss difference; "" if it can."""
    if entry.measure is not None and not entry.measure.endswith(_LOSS_ENDINGS):
        return ""
    if found.own.too_short or found.other.too_short:
        labels = (entry.variant, _against(entry, table))
        run = next(r for r in table.runs if r.label in labels and r.too_short)
        return f"too short: {run.label}, seed {run.seed}: {run.reason}"
    if _expectation(entry).direction == "equivalent" and not table.has_learned:
        return NOT_LEARNED
    return explain_undecidable(table)


def explain_undecidable(table: TableFrames) -> str:
    """Explain why a table cannot distinguish its variants; return "" if it can.

    One reason is that no variant has learned the text: all reported runs collapsed, or no variant's
    mean loss has covered a tenth of the distance from chance to the text's floor (its known lowest
    loss). The other reason is that all variants have reached the floor.
    """
    ranked = [run for run in table.ranked if run.role != "positive"]
    finished = [run for run in ranked if run.outcome in FINAL]
    if finished and all(run.outcome == "collapsed" for run in finished):
        return "no arm has learned the task: all runs collapsed"
    names = (f"{table.split}_loss_nats", f"{table.split}_excess_nats")
    ok = grouped((run for run in finished if run.outcome == "ok"), lambda run: run.label)
    means = [[mean_number(runs, name) for name in names] for runs in ok.values()]
    complete = [both for both in means if not any(map(math.isnan, both))]
    if not complete:
        return ""
    losses, excesses = zip(*complete, strict=True)
    chance = math.log(table.plan.text.vocab)
    if all(chance - loss < _LEARNED * (chance - loss + excess) for loss, excess in complete):
        return (
            f"no arm has learned the task: the lowest loss is {min(losses):.3f} nats, chance "
            f"{chance:.3f}"
        )
    if max(excesses) < _SOLVED and len(finished) == len(ranked):
        return (
            f"every arm has solved the task: all are within {max(excesses):.4f} nats of its floor"
        )
    return ""


def _unit(entry: Hypothesis, table: TableFrames) -> str:
    """Return the unit of a hypothesis' loss; "" for other metrics."""
    if loss_split(table, entry.measure):
        return table.unit.name
    return NATS.name if (entry.measure or "").endswith("_nats") else ""


def _sentence(entry: Hypothesis, baseline: str) -> str:
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
