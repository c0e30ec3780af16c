"""Headline of a report: the experiment's answer in sentences, its scale, and its limits."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from llama_ablate.config import labels
from llama_ablate.config.labels import name_corpus
from llama_ablate.evidence import written
from llama_ablate.evidence.written import Estimate
from llama_ablate.findings import controls, effects, hypotheses, sizes
from llama_ablate.findings.comparison import ComparisonRow
from llama_ablate.findings.effects import FactorRow
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.findings.hypotheses import HypothesisRow
from llama_ablate.findings.rows import grouped
from llama_ablate.report.costs import SAME_COST, find_asked_cost, write_share
from llama_ablate.report.tables import shorten_number
from llama_ablate.terminal import plural

#: Most items that are named one by one: variants with one verdict, tables, hypotheses, others.
MAX_NAMES, _MAX_TABLES, _MAX_HYPOTHESES, _MAX_OTHERS = 4, 3, 3, 3
#: Verbs for the verdicts `better` and `worse` of variants, of factors, and of steps of a path.
_VARIANT = {"better": "beats {} by", "worse": "is worse than {} by"}
_FACTOR = {"better": "is better by", "worse": "is worse by"}
_STEP = {"better": "lowers the loss by", "worse": "raises the loss by"}
#: The other verdicts in their order in the answer, with their verbs in singular and plural.
_NEUTRAL = {
    **dict.fromkeys(("diverged", "collapsed", "failed"), ("", "")),
    **dict.fromkeys(("equivalent", "equal", "add up", "inconclusive"), ("is ", "are ")),
    "no verdict": ("has ", "have "),
    **dict.fromkeys(("not estimable", "too short", "pending"), ("is ", "are ")),
}
_DECIDED = ("supported", "refuted")
_RESULTS = (*_DECIDED, "undecided", "undecidable", "no verdict", "failed", "pending")
#: Verbs for the trends of a gap to the baseline with model size.
_TRENDS = {word: word for word in ("grows", "closes", "reverses", "moves", "holds")} | {
    "undecided": "may grow or shrink"
}


@dataclass(frozen=True)
class Finding:
    """Verdict and difference in loss of one variant, factor or path step.

    `remark` is written in brackets after the difference.
    """

    name: str
    verdict: str
    difference: Estimate
    remark: str = ""


def headline(frames: Frames) -> str:
    """Write the answer of an experiment with its scale and limits, in sentences."""
    return " ".join(filter(None, (answer(frames), further(frames))))


def answer(frames: Frames) -> str:
    """Write the answer of an experiment: verdicts with differences, and the scale.

    With several model sizes the trend comes first. If the experiment asks for a cost, the answer
    lists variants that are cheaper and as good. A factorial design is answered by its effects, and
    a path by its steps. Rows that are better or worse are named with difference and interval, the
    largest difference first; few of the other rows are named.
    """
    parts = (_best_rates, _trends, _tables, _scope)
    return " ".join(sentence for part in parts for sentence in part(frames))


def further(frames: Frames) -> str:
    """Write the test results of hypotheses, and the limits of the answer."""
    parts = (_hypotheses, _guards, list_limits)
    return " ".join(sentence for part in parts for sentence in part(frames))


def list_limits(frames: Frames) -> list[str]:
    """List limits of the answer: failing controls, reversals with training length, unknown bias."""
    return [sentence for part in (_controls, _list_reversals, _bias) for sentence in part(frames)]


def _best_rates(frames: Frames) -> Iterator[str]:
    """Yield a sentence on the best learning rates by model size.

    Yields nothing if the experiment states hypotheses, since the hypotheses then are its question.
    """
    best = sizes.optima(frames)
    if not best or frames.plan.experiment.hypotheses:
        return
    named: list[str] = []
    for label, rows in grouped(best, lambda row: row.label).items():
        low, high = (f"{row.lr:g}" for row in (rows[0], rows[-1]))
        way = "falls" if rows[-1].lr < rows[0].lr else "rises"
        path = f"stays at {low}" if low == high else f"{way} from {low} to {high}"
        named.append(f"{label}'s {'best learning rate ' * (not named)}{path}")
    yield f"From {best[0].rung} to {best[-1].rung}, {_list_few(named, '; ')}."


def _trends(frames: Frames) -> Iterator[str]:
    """Yield a sentence on how gaps to the baseline change with model size."""
    rows = {row.label: row for row in sizes.by_size(frames)}.values()
    parts = []
    for word, said in _TRENDS.items():
        names = [f"{row.label} ({row.slope})" for row in rows if row.trend == word]
        if names:
            parts.append(f"{said} for {_list_few(names)}")
    if parts:
        yield (
            f"With size the gap to the baseline {'; '.join(parts)} (in brackets nats per tenfold "
            "parameters without embeddings)."
        )


def _tables(frames: Frames) -> Iterator[str]:
    """Yield a sentence per comparison table on the verdicts of its variants.

    With more than three tables, yield instead a sentence per variant, which counts the variant's
    verdicts over the tables.
    """
    if len(frames.tables) > _MAX_TABLES:
        yield from _count_verdicts(frames.tables)
        return
    for table in frames.tables:
        read_design = _steps if table.experiment.variants.design == "path" else _factors
        text = read_design(table) or _at_a_cost(table) or _variants(table)
        yield f"In '{table.plan.name}': {text}." if table.plan.name else f"{text}."


def _count_verdicts(tables: Sequence[TableFrames]) -> Iterator[str]:
    """Yield a sentence per variant with counts of its verdicts and the range of differences.

    Verdicts are counted over all comparison tables.
    """
    every = [row for table in tables for row in table.comparison if not (row.role or row.baseline)]
    for label, rows in grouped(every, lambda row: row.label).items():
        counted = Counter(row.verdict for row in rows)
        words = [f"{word} in {counted[word]}" for word in (*_VARIANT, *_NEUTRAL) if counted[word]]
        differences = [row.difference for row in rows if not math.isnan(row.difference)]
        ends = written.ends(differences, lambda x: f"{x:+.3f}") if differences else "-"
        yield (
            f"{label} against {_name_baseline(tables[0])} is {_join(words)} of {len(rows)} tables "
            f"({ends} {tables[0].unit.name})."
        )


def _scope(frames: Frames) -> Iterator[str]:
    """Yield a sentence on the answer's scope: texts, model sizes, tokens, and seeds."""
    plans = [table.plan for table in frames.tables]
    texts = dict.fromkeys(name_corpus(plan.text.source) for plan in plans)
    parameters = written.ends((plan.baseline.parameters for plan in plans), shorten_number)
    each = [plan.tokens_per_run / plan.baseline.parameters for plan in plans]
    rows = [row for table in frames.tables for row in table.comparison if not row.role]
    counts = [row.n for row in rows if not row.baseline] or [row.n for row in rows]
    seeds = written.ends([n for n in counts if n] or [0], "{:,}".format)
    tune = frames.table.experiment.tune
    tuned = f", each variant at its best {_join([*tune])}" if tune else ""
    yield (
        f"On {_join([*texts])}, at {parameters} parameters and "
        f"{written.ends(each, '{:.2g}'.format)} tokens a parameter; {seeds} "
        f"{plural(seeds, 'seed')}{tuned}."
    )


def _variants(table: TableFrames) -> str:
    """Describe the verdicts of a comparison table's variants."""
    rows = [row for row in table.comparison if not (row.role or row.baseline)]
    findings = [_make_finding(row, table) for row in rows]
    nothing = "nothing yet" if rows else "no variants to compare"
    return _describe(findings, table, _VARIANT, _name_baseline(table)) or nothing


def _factors(table: TableFrames) -> str:
    """Describe the effects of a factorial design: axes, factors and interactions.

    Returns "" for other designs.
    """
    rows = effects.factors(table)
    if not rows:
        return ""
    axes, unit = effects.axes(table), table.unit.name
    alone = _describe(
        [_make_finding(row, table) for row in rows if not row.changed], table, _FACTOR
    )
    if any(axis.levels > 2 for axis in axes):
        alone = "; ".join(
            f"{axis.axis} moves the loss by {axis.show_range()} {unit} (lowest: {axis.lowest})"
            for axis in axes
        )
    together = [row for row in rows if row.changed]
    shown_effects = sorted(
        (row for row in together if row.verdict.endswith("together")),
        key=lambda row: -abs(row.difference),
    )
    widest = max((max(abs(row.low), abs(row.high)) for row in together), default=math.nan)
    margin = table.margin or widest
    said = [
        f"{row.effect} are {row.verdict}{_in_brackets(_make_finding(row, table), table)}"
        for row in shown_effects
    ]
    if together and not shown_effects:
        said = ["no interaction differs from 0"]
        if widest <= margin:
            limit = table.experiment.margin or f"{widest:.2g} {unit}"
            said = [f"no interaction larger than {limit} was seen"]
    return "; ".join([f"On average over the other factors, {alone}", *said[:_MAX_OTHERS]])


def _steps(table: TableFrames) -> str:
    """Describe the effect of each step of a path, and of all steps together.

    Returns "" for other designs.
    """
    rows = effects.steps(table)
    if not rows:
        return ""
    findings = [
        Finding(
            _quote(row.step),
            row.verdict,
            Estimate(row.marginal, row.marginal_low, row.marginal_high),
            row.rate,
        )
        for row in rows
    ]
    last = next(row for row in table.comparison if row.label == rows[-1].step)
    path_finding = Finding(
        "the whole path", last.verdict, _make_finding(last, table).difference, last.rate
    )
    parts = [_describe(findings, table, _STEP)]
    if last.n and last.verdict in _STEP:
        parts.append(_describe([path_finding], table, _VARIANT, _name_baseline(table)))
    return "; ".join(parts)


def _at_a_cost(table: TableFrames) -> str:
    """Describe the variants that cost less than the baseline.

    Variants that are better than or equivalent to the baseline come first, then the other cheaper
    variants, each group in order of cost. The cost is the result of `find_asked_cost`. Returns ""
    without a cost, and if no cheaper variant is better or equivalent unless the experiment file
    names the cost.
    """
    rows = [row for row in table.comparison if not row.role]
    cost = find_asked_cost(table.experiment, rows)
    (base,) = (row for row in rows if row.baseline)
    if cost is None or not cost.read(base).value > 0:
        return ""
    shares = {row.label: cost.read(row).value / cost.read(base).value for row in rows}
    cheaper = sorted(
        (row for row in rows if shares[row.label] < 1 - SAME_COST), key=lambda r: shares[r.label]
    )
    good = [row for row in cheaper if row.verdict in ("better", "equivalent")]
    if not good and not table.experiment.answer.cost:
        return ""
    said = []
    if not good:
        base_name = _name_baseline(table)
        said = [f"No variant that needs less of {cost.words} is shown to be as good as {base_name}"]
    left = [row for row in cheaper if row not in good]
    for row in (*good[:_MAX_OTHERS], *left[:_MAX_OTHERS]):
        share = write_share(shares[row.label])
        needs = f"needs {share}" if said else f"needs {share} of {cost.words}"
        within = _within_margin(row.verdict, table)
        finding = _make_finding(row, table)
        number = _in_brackets(finding, table)
        said.append(f"{finding.name} {needs} and is {row.verdict}{within}{number}")
    return "; ".join(said)


def _within_margin(verdict: str, table: TableFrames) -> str:
    """Write the margin of a row that is equivalent; "" if none was given, and it is equal."""
    margin = table.experiment.margin
    return f" within {margin}" if margin and verdict == "equivalent" else ""


def _hypotheses(frames: Frames) -> Iterator[str]:
    """Yield a sentence for each kind of test result, with its hypotheses.

    With more than three hypotheses, a single sentence counts the results.
    """
    rows = hypotheses.results(frames)
    if len(rows) > _MAX_HYPOTHESES:
        counted = Counter(row.result for row in rows)
        words = [f"{counted[word]} {word}" for word in _RESULTS if counted[word]]
        yield f"Of {len(rows)} hypotheses: {', '.join(words)}."
        return
    for word in _RESULTS:
        by_hypothesis = grouped(
            (row for row in rows if row.result == word), lambda row: row.hypothesis
        )
        sentences = []
        for name, each in by_hypothesis.items():
            within = "; ".join(filter(None, dict.fromkeys(map(_explain, each))))
            sentences.append(f"'{name}' ({within})" if within else f"'{name}'")
        if sentences:
            yield f"{word.capitalize()}: {'; '.join(sentences)}."


def _explain(row: HypothesisRow) -> str:
    """Write the comparison table, the difference and the reason of a hypothesis' test result.

    The parts are joined by semicolons. The difference is left out if it is unknown, or if a row of
    the comparison table states it already.
    """
    is_row = row.family.endswith("its table") or math.isnan(row.difference)
    where = " ".join(filter(None, (row.table, "" if is_row else row.show_difference())))
    why = row.remark if row.result in _DECIDED else row.show_remark()
    return "; ".join(filter(None, (where, why)))


def _guards(frames: Frames) -> Iterator[str]:
    """Yield a sentence on variants that have a better loss but break a guard.

    A guard limits how much worse than the baseline another metric may be.
    """
    named = []
    for table in frames.tables:
        better = [row.label for row in table.comparison if row.verdict == "better"]
        worse = [row for row in table.guards if row.label in better and row.result == "worse"]
        where = f" in '{table.plan.name}'" if table.plan.name else ""
        for label, rows in grouped(worse, lambda row: row.label).items():
            numbers = [f"{row.measure} {row.show_difference()}" for row in rows]
            named.append(f"{label}{where} ({_list_few(numbers)})")
    if named:
        yield f"Better in loss, but worse in a guarded metric: {_list_few(named, '; ')}."


def _controls(frames: Frames) -> Iterator[str]:
    """Yield a sentence for each failing control, and a sentence if runs were too short.

    Controls are checked once all runs have ended.
    """
    ended = all(run.outcome != "pending" for table in frames.tables for run in table.runs)
    if ended:
        checks = [controls.check_controls(table) for table in frames.tables]
        for why in dict.fromkeys(why for rows in checks for why in controls.failing(rows)):
            yield f"Control {why}."
    if not all(table.has_learned for table in frames.tables):
        yield f"Too short to call any row equivalent: {hypotheses.NOT_LEARNED}."


def _list_reversals(frames: Frames) -> Iterator[str]:
    """Yield a sentence on variants whose verdict was reversed at a shorter training length."""
    reversals = dict.fromkeys(
        f"{name} (up to {tokens / 1e6:.3g}M tokens)"
        for table in frames.tables
        for name, tokens in sizes.contrary(sizes.by_length(table)).items()
    )
    if reversals:
        yield f"Reverses with the length of training: {_list_few([*reversals])}."


def _bias(frames: Frames) -> Iterator[str]:
    """Yield a warning if no control run repeats the baseline although variants have verdicts."""
    for table in frames.tables:
        rows = (row for row in table.comparison if not row.role)
        if table.bias is None and any(row.verdict in (*_VARIANT, "equivalent") for row in rows):
            yield (
                "No run repeats the baseline unchanged: a fault common to all variants is not "
                "excluded."
            )
            return


def _describe(
    every: Sequence[Finding], table: TableFrames, verbs: Mapping[str, str], base: str = ""
) -> str:
    """Describe findings grouped by verdict.

    Findings with the verdict `better` or `worse` come first, each with its difference, the largest
    difference first. `verbs` maps these two verdicts to verb phrases. `base` is the baseline's
    name, which is written only once.
    """
    parts: list[str] = []
    by_size = sorted(every, key=lambda one: -abs(one.difference.value))
    for word, verb in verbs.items():
        matching = [finding for finding in by_size if finding.verdict == word]
        said = verb.format(base) if not parts else verb.replace(" than {}", "").format(base)
        sizes_of = [f"by {_size(finding, table)}" for finding in matching]
        if matching:
            first = f"{matching[0].name} {said} {_size(matching[0], table)}"
            others = [
                f"{finding.name} {by}"
                for finding, by in zip(matching[1:], sizes_of[1:], strict=True)
            ]
            parts.append(_list_few([first, *others]))
    for word, (is_, are) in _NEUTRAL.items():
        matching = [finding for finding in every if finding.verdict == word]
        if not matching:
            continue
        named = [
            f"{finding.name} ({finding.remark})" if finding.remark else finding.name
            for finding in matching
        ]
        rest = "others" if parts else "variants"
        names = _join(named) if len(matching) <= MAX_NAMES else f"{len(matching)} {rest}"
        against = f" {'to' if word == 'equivalent' else 'against'} {base}" * bool(base)
        to_base = against * (not parts and word in ("equivalent", "inconclusive"))
        within = _within_margin(word, table)
        number = _in_brackets(matching[0], table) if len(matching) == 1 else ""
        be = is_ if len(matching) == 1 else are
        said = word + " to compare" * (word == "too short")
        parts.append(f"{names} {be}{said}{to_base}{within}{number}")
    return "; ".join(parts)


def _make_finding(row: ComparisonRow | FactorRow, table: TableFrames) -> Finding:
    """Make the finding of a table row.

    The finding's remark lists the outcomes of runs if some diverged or collapsed.
    """
    lost = row.outcome if isinstance(row, ComparisonRow) and row.lost else ""
    is_alike = isinstance(row, ComparisonRow) and row.outcome == f"{row.ended} {row.verdict}"
    remark = "; ".join(filter(None, (lost * (not is_alike), row.rate)))
    return Finding(
        _name(row, table), row.verdict, Estimate(row.difference, row.low, row.high), remark
    )


def _name(row: ComparisonRow | FactorRow, table: TableFrames) -> str:
    """Return the name of a row: a factorial effect, or a variant's short label."""
    name = sizes.name_of(row)
    short = labels.shorten_labels([variant.label for variant in table.plan.variants])
    return _quote(short.get(name, name))


def _quote(name: str) -> str:
    """Put a name that contains a comma or "and" in quotes, for lists."""
    return f"'{name}'" if "," in name or " and " in name else name


def _name_baseline(table: TableFrames) -> str:
    """Return the baseline's label, or "the baseline" with its value on each axis.

    The second form is used if the label is only `baseline`.
    """
    label = table.plan.baseline.label
    if label == labels.UNCHANGED:
        base, data = table.plan.baseline.model, table.plan.text.source
        levels = labels.name_levels(table.experiment, base, data)
        return f"the baseline ({', '.join(levels)})" if levels else label
    name = label.removesuffix(f" ({labels.UNCHANGED})")
    return label if " " in name else name


def _size(finding: Finding, table: TableFrames) -> str:
    """Format a finding's difference without sign, and its remark: `0.21 nats [0.14, 0.27]`."""
    difference = finding.difference
    ends = (
        (difference.low, difference.high)
        if difference.value > 0
        else (-difference.high, -difference.low)
    )
    number = _add_unit(written.interval(abs(difference.value), *ends, sign=""), table)
    return f"{number} ({finding.remark})" if finding.remark else number


def _in_brackets(finding: Finding, table: TableFrames) -> str:
    """Format a difference with its sign: ` (-0.006 nats [-0.021, +0.009])`; "" if unknown."""
    number = str(finding.difference)
    return f" ({_add_unit(number, table)})" if number else ""


def _add_unit(number: str, table: TableFrames) -> str:
    """Insert the unit of losses between a number and its interval."""
    value, *ends = number.split(" ", 1)
    return " ".join([value, table.unit.name, *ends])


def _join(names: Sequence[str]) -> str:
    """Join names with commas and "and"."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _list_few(names: Sequence[str], between: str = ", ") -> str:
    """Join names; if too many, join the first `MAX_NAMES` and count the others.

    `MAX_NAMES` + 1 names are still joined.
    """
    more = f" and {len(names) - MAX_NAMES:,} more" if len(names) > MAX_NAMES + 1 else ""
    return between.join(names[: MAX_NAMES if more else len(names)]) + more
