"""The headline of a report: the answer in two or three sentences, and facts."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TypeVar

import pandas as pd

from llama_ablate.config import labels
from llama_ablate.config.labels import entry_text, name_corpus
from llama_ablate.evidence import written
from llama_ablate.findings import controls, effects, hypotheses, sizes
from llama_ablate.findings.comparison import ComparisonRow
from llama_ablate.findings.effects import FactorRow
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.findings.hypotheses import HypothesisRow
from llama_ablate.findings.rows import grouped
from llama_ablate.report.costs import SAME_COST, find_asked_cost, write_share
from llama_ablate.results.plan_document import PlanDocument
from llama_ablate.terminal import plural

#: Verdicts in the order in which the answer names them, and test results.
_VERDICTS = (
    *("better", "worse", "lower together", "higher together", "diverged", "collapsed", "failed"),
    *("equivalent", "equal", "add up", "inconclusive", "no verdict", "not estimable", "too short"),
    "pending",
)
_DECIDED = ("supported", "refuted")
_RESULTS = (*_DECIDED, "undecided", "undecidable", "no verdict", "failed", "pending")
#: How a gap to the baseline goes with size; a sentence has it before the variants.
_TRENDS = ("grows", "closes", "reverses", "moves", "holds", "undecided")
_MOST = 4  # names of one kind
_BILLION = 1e9
_count = "{:,}".format
_FEW = 3  # of what decides nothing; hypotheses that are all told; tables that are
_ENDS = 2  # hypotheses of other numbers than the table's that are told of many


Differing = TypeVar("Differing", ComparisonRow, FactorRow)


def headline(frames: Frames) -> str:
    """Write the answer of an experiment, its scale, and its limits."""
    return " ".join(filter(None, (answer(frames), further(frames))))


def answer(frames: Frames) -> str:
    """Write the answer of an experiment: verdicts with numbers, and the scale.

    Of several sizes the trend comes first; where a cost is asked for, what is cheaper and as good.
    Of a factorial design the effects, of a path the steps. What decides is named with its number
    and interval, the largest first; of the rest only a few.
    """
    parts = (_best_rates, _trends, _tables, _scope)
    return " ".join(sentence for part in parts for sentence in part(frames))


def further(frames: Frames) -> str:
    """Write the hypotheses' results, and the limits of the answer.

    Hypotheses that are about other numbers than the table's, of more than a few how many are
    supported; controls that fail, lengths that reverse the answer, a bias that nothing bounds.
    """
    parts = (_hypotheses, _guards, list_limits)
    return " ".join(sentence for part in parts for sentence in part(frames))


def list_limits(frames: Frames) -> list[str]:
    """List what limits the answer: failing controls, reversals with length, an unknown bias."""
    return [sentence for part in (_controls, _turned, _bias) for sentence in part(frames)]


def facts(frames: Frames) -> str:
    """Say in a few words how the experiment was computed, over all its tables."""
    plan, experiment = frames.plan, frames.plan.experiment
    variants = frames.table.plan.variants
    base, arms = frames.table.plan.baseline, sum(bool(variant.role) for variant in variants)
    looks, race = experiment.looks, experiment.race
    seeds = f"{written.ends(looks, _count)} {plural(looks[-1], 'seed')}"
    tokens = written.ends([table.tokens_per_run for table in plan.tables], _count)
    steps = written.ends([table.steps for table in plan.tables], _count)
    matches = dict.fromkeys(table.matching for table in plan.tables)
    shared = experiment.train.optimizer
    optimizers = dict.fromkeys(entry_text(v.train.get("optimizer", shared)) for v in variants)
    text = [
        *([f"{len(plan.tables)} tables"] if len(plan.tables) > 1 else []),
        f"{len(variants) - arms} variants"
        + (f" and {arms} {plural(arms, 'control')}" if arms else ""),
        seeds + (f", {race} more to tune on" if race else ""),
        f"{tokens} tokens a run ({steps} {plural(steps, 'step')} of "
        f"{base.train.get('batch', experiment.train.batch)} x "
        f"{base.model.get('context', experiment.model.context)}){_passes(plan)}",
        " or ".join(optimizers),
        f"learning rate {'tuned' if 'lr' in experiment.tune else learning_rate(frames)}",
        " or ".join(matches) + (" (by table)" if len(matches) > 1 else ""),
    ]
    return f"{', '.join(text)}. {computed(frames)}"


def learning_rate(frames: Frames) -> str:
    """Write the learning rate of all variants; of several the least and the most."""
    shared = frames.plan.experiment.train.lr
    each = {v.train.get("lr", shared) for v in frames.table.plan.variants if not v.role}
    return written.ends([*each], "{:g}".format) + ", by variant" * (len(each) > 1)


def _passes(plan: PlanDocument) -> str:
    """Say how often runs read their training text, where that is more than once."""
    most = max(table.passes(table.baseline) for table in plan.tables)
    return f" in {most:.3g} passes over the training text" if most > 1 else ""


def computed(frames: Frames) -> str:
    """Say on what, and in which precision, the runs of all tables computed."""
    made = pd.concat([table.machines for table in frames.tables])

    def named(what: str, key: str) -> str:
        return " or ".join(sorted({*made.get(what, ())})) or str(frames.compute.get(key, "?"))

    threads = named("numbers of threads", "threads")
    return (
        f"Computed on {named('devices', 'device')} in {named('precisions', 'precision')} with the "
        f"{named('attention kernels', 'kernel')} attention kernel and {threads} "
        f"{plural(threads, 'thread')} a worker"
        f"{', training steps compiled' if frames.compute.get('compiled') else ''}."
    )


def _hypotheses(frames: Frames) -> Iterator[str]:
    """Yield how the hypotheses came out; of many, those that the tables do not show by name."""
    rows = hypotheses.results(frames)
    if len(rows) > _FEW:
        counted = Counter(row.result for row in rows)
        words = [f"{counted[word]} {word}" for word in _RESULTS if counted[word]]
        yield f"Of {len(rows)} hypotheses: {', '.join(words)}."
        stated = zip(frames.plan.hypotheses, rows, strict=True)
        rows = [row for entry, row in stated if entry.measure]
        rows = [row for row in rows if row.result in _DECIDED][:_ENDS]
    for word in _RESULTS:
        own = grouped((row for row in rows if row.result == word), lambda row: row.hypothesis)
        if own:
            yield f"{word.capitalize()}: {'; '.join(map(_of_hypothesis, own.values()))}."


def _of_hypothesis(rows: Sequence[HypothesisRow]) -> str:
    """Write a hypothesis with its bound, tables, measured numbers and reasons.

    What a row of the table has measured stands there.
    """
    told = []
    for row in rows:
        shown = row.family.endswith("its table") or math.isnan(row.difference)
        measured = "" if shown else row.of_difference()
        why = row.remark if row.result in _DECIDED else row.of_remark()
        told.append("; ".join(filter(None, (f"{row.table} {measured}".strip(), why))))
    listing = "; ".join(filter(None, dict.fromkeys(told)))
    return f"{rows[0].hypothesis} ({listing})" if listing else rows[0].hypothesis


def _controls(frames: Frames) -> Iterator[str]:
    """Yield which controls fail, once all runs of a table have ended."""
    ended = all(run.outcome != "pending" for table in frames.tables for run in table.runs)
    if ended:
        checks = [controls.check_controls(table) for table in frames.tables]
        for why in dict.fromkeys(why for rows in checks for why in controls.failing(rows)):
            yield f"Control {why}."
    if not all(table.has_learned for table in frames.tables):
        yield f"Too short to call any row equivalent: {hypotheses.NOT_LEARNED}."


def _turned(frames: Frames) -> Iterator[str]:
    """Yield which verdicts were the contrary at a shorter length."""
    told = dict.fromkeys(
        f"{name} (up to {tokens / 1e6:.3g}M tokens)"
        for table in frames.tables
        for name, tokens in sizes.contrary(sizes.by_length(table)).items()
    )
    if told:
        yield f"Reverses with the length of training: {_listed([*told], ', ', _FEW)}."


def _bias(frames: Frames) -> Iterator[str]:
    """Yield that no run repeats the baseline, where a verdict says something of a difference."""
    decided = ("better", "worse", "equivalent")
    for table in frames.tables:
        rows = (row for row in table.comparison if not row.role)
        if table.bias is None and any(row.verdict in decided for row in rows):
            yield "No run repeats the baseline: a fault common to all variants is not excluded."
            return


def _best_rates(frames: Frames) -> Iterator[str]:
    """Yield where the best learning rates lie over a ladder, unless its question is another."""
    best = sizes.optima(frames)
    if not best or frames.plan.experiment.hypotheses:
        return
    named: list[str] = []
    for label, own in grouped(best, lambda row: row.label).items():
        low, high = (f"{row.lr:g}" for row in (own[0], own[-1]))
        way = "falls" if own[-1].lr < own[0].lr else "rises"
        path = f"stays at {low}" if low == high else f"{way} from {low} to {high}"
        named.append(f"{label}'s {'best learning rate ' * (not named)}{path}")
    first, last = best[0].rung, best[-1].rung
    yield f"From {first} to {last}, {_listed(named, '; ')}."


def _guards(frames: Frames) -> Iterator[str]:
    """Yield the variants that are better in loss and worse in a guarded number."""
    named = []
    for table in frames.tables:
        better = [row.label for row in table.comparison if row.verdict == "better"]
        worse = [row for row in table.guards if row.label in better and row.result == "worse"]
        where = f" in '{table.plan.name}'" if table.plan.name else ""
        for label, own in grouped(worse, lambda row: row.label).items():
            numbers = [f"{row.measure} {row.of_difference()}" for row in own]
            named.append(f"{label}{where} ({_listed(numbers)})")
    if named:
        yield f"Better in loss, and worse in what is guarded: {_listed(named, '; ')}."


def _trends(frames: Frames) -> Iterator[str]:
    """Yield whether gaps to the baseline grow with size."""
    rows = {row.label: row for row in sizes.by_size(frames)}.values()
    parts = []
    for word in _TRENDS:
        own = [f"{row.label} ({row.slope})" for row in rows if row.trend == word]
        if own:
            parts.append(f"{'is ' * (word == 'undecided')}{word} for {_listed(own)}")
    if parts:
        yield f"With size (nats per tenfold parameters) the gap {'; '.join(parts)}."


def _tables(frames: Frames) -> Iterator[str]:
    """Yield the verdicts of each table; of many tables, of each variant over all."""
    if len(frames.tables) > _FEW:
        yield from _over_tables(frames.tables)
        return
    for table in frames.tables:
        of_design = _steps if frames.plan.experiment.variants.design == "path" else _factors
        text = of_design(table) or _at_a_cost(table) or _variants(table)
        if table.plan.name:
            yield f"In '{table.plan.name}', {text}."
        else:  # a label stands as it is
            ours = text.startswith(
                ("on average", "no verdict", "no variant", "pending", "too short", "nothing")
            )
            yield f"{text[0].upper() if ours else text[0]}{text[1:]}."


def _over_tables(tables: Sequence[TableFrames]) -> Iterator[str]:
    """Yield in how many tables a variant is what, and between which differences."""
    every = [row for table in tables for row in table.comparison if not (row.role or row.baseline)]
    base, unit = _base(tables[0]), tables[0].unit.name
    for label, rows in grouped(every, lambda row: row.label).items():
        counted = Counter(row.verdict for row in rows)
        words = [f"{word} in {counted[word]}" for word in _VERDICTS if counted[word]]
        known = [row.difference for row in rows if not math.isnan(row.difference)]
        ends = written.ends(known, lambda x: f"{x:+.3f}") if known else "-"
        yield f"{label} against {base} is {_and(words)} of {len(rows)} tables ({ends} {unit})."


def _scope(frames: Frames) -> Iterator[str]:
    """Yield on which text the answer was measured, at what size, and with how many seeds."""
    tables = [table.plan for table in frames.tables]
    texts = dict.fromkeys(name_corpus(table.text.source) for table in tables)
    parameters = [table.baseline.parameters for table in tables]
    tokens = [table.tokens_per_run for table in tables]
    each = [run / size for run, size in zip(tokens, parameters, strict=True)]
    every = (row for table in frames.tables for row in table.comparison if not row.role)
    most = max((row.n for row in every), default=0)
    per_parameter = f"{written.ends(each, '{:.2g}'.format)} tokens a parameter"
    size = f"{written.ends(parameters, _millions)} parameters and {per_parameter}"
    yield f"On {_and([*texts])}, at {size}; {most} {plural(most, 'seed')}."


def _and(names: Sequence[str]) -> str:
    """List names in a sentence."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _quoted(name: str) -> str:
    """Write a name in quotes where it has a comma."""
    return f"'{name}'" if "," in name else name


def _millions(count: float) -> str:
    return f"{count / _BILLION:.3g}B" if count >= _BILLION else f"{count / 1e6:.2g}M"


def _factors(table: TableFrames) -> str:
    """Say which axes of a grid matter, or what two-level factors do, alone and two together."""
    rows = effects.factors(table)
    if not rows:
        return ""
    axes = effects.axes(table)
    if any(axis.levels > 2 for axis in axes):
        by, unit = ("moves the loss by", *["by"] * (len(axes) - 1)), table.unit.name
        each = zip(axes, by, strict=True)
        told = ", ".join(
            f"{one.axis} {how} {one.of_range()} {unit} (lowest: {one.lowest})" for one, how in each
        )
    else:
        alone = _by_size([row for row in rows if not row.changed])
        told = _by_word(alone, table, "")
    together = _by_size([row for row in rows if row.changed])
    seen = [row for row in together if row.verdict.endswith("together")]
    said = "; ".join(
        f"{row.effect} are {row.verdict} ({_signed(row, table)})" for row in seen[:_FEW]
    )
    margin = table.experiment.margin
    widest = max((max(abs(row.low), abs(row.high)) for row in together), default=math.nan)
    none = f"no interaction larger than {margin or f'{widest:.2g} {table.unit.name}'} was seen"
    is_none = all(max(abs(row.low), abs(row.high)) <= (table.margin or widest) for row in together)
    which = said or (none if is_none else "no interaction is told from 0")
    return f"on average over the other factors, {told}" + f"; {which}" * bool(together)


def _steps(table: TableFrames) -> str:
    """Write the effects of the steps of a path, and of all together."""
    rows = effects.steps(table)
    if not rows:
        return ""
    moved = [row for row in rows if row.verdict in ("better", "worse")]
    moved.sort(key=lambda row: -abs(row.marginal))
    told = [
        f"{row.step} {'lowers' if row.marginal < 0 else 'raises'} the loss by "
        + _with(row.rate, _size(row.marginal, row.marginal_low, row.marginal_high, table, not i))
        for i, row in enumerate(moved)
    ]
    for word in dict.fromkeys(row.verdict for row in rows if row not in moved):
        own = [_quoted(row.step) for row in rows if row.verdict == word]
        told.append(f"{_and(own)} {'is' if len(own) == 1 else 'are'} {word}")
    last = {row.label: row for row in table.comparison}[rows[-1].step]
    if last.n and last.verdict in ("better", "worse"):
        word = "below" if last.difference < 0 else "above"
        end = _size(last.difference, last.low, last.high, table)
        told.append(f"all together end {_with(last.rate, end)} {word} {_base(table)}")
    return "; ".join(told)


def _at_a_cost(table: TableFrames) -> str:
    """Say which variants need less of the cost that is asked for, and are as good.

    The cheapest come first, then those that are not as good. Nothing where no cost is asked for, or
    where the file states none and none is as good.
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
    left = [row for row in cheaper if row not in good]
    if not good and not table.experiment.answer.cost:
        return ""
    said = [_of_cost(row, table, shares[row.label], cost.words) for row in good[:1]]
    said += [_of_cost(row, table, shares[row.label]) for row in (*good[1:_FEW], *left[:_FEW])]
    none = f"no variant that needs less of {cost.words} than {_base(table)} is shown to be as good"
    return "; ".join([*[none] * (not good), *said])


def _of_cost(row: ComparisonRow, table: TableFrames, share: float, words: str = "") -> str:
    """Write which share of a cost a row needs, and its verdict; of the first row in a sentence."""
    number = "" if math.isnan(row.difference) else f" ({_signed(row, table)})"
    within = f" within {table.experiment.margin}" * (row.verdict == "equivalent")
    if words:
        needs = f"needs {write_share(share)} of {words}"
        return f"{_name(row)} {needs} and is {row.verdict}{within}{number}"
    return f"{_name(row)} {write_share(share)}, {row.verdict}{number}"


def _variants(table: TableFrames) -> str:
    """Say how the variants of a table compare with its baseline."""
    rows = _by_size([row for row in table.comparison if not (row.role or row.baseline)])
    (base,) = (row for row in table.comparison if row.baseline)
    lost = f" (of which {base.outcome})" if base.lost else ""
    return _by_word(rows, table, _base(table) + lost) or "nothing yet"


def _base(table: TableFrames) -> str:
    """Name the baseline by its component, or else by all its levels."""
    label = table.plan.baseline.label
    if label == labels.UNCHANGED:
        base, data = table.plan.baseline.model, table.plan.text.source
        levels = labels.name_levels(table.experiment, base, data)
        return f"the baseline ({', '.join(levels)})" if levels else label
    name = label.removesuffix(f" ({labels.UNCHANGED})")
    return label if " " in name else name


def _by_word(rows: Sequence[ComparisonRow | FactorRow], table: TableFrames, base: str) -> str:
    """Write the verdicts of rows, with numbers of those better or worse."""
    parts: list[str] = []
    for word in _VERDICTS:
        own = [row for row in rows if row.verdict == word]
        if not own:
            continue
        more = f" and {len(own) - _MOST} more" if len(own) > _MOST + 1 else ""
        shown = own[: _MOST if more else None]
        if word in ("better", "worse"):
            numbers = [_number(row, table, not (parts or i)) for i, row in enumerate(shown)]
            first, *others = zip(map(_name, shown), numbers, strict=True)
            if word == "worse" and len(rows) == 1 and base:
                text = f"{base} beats {first[0]} by {first[1]}"
            else:
                verb = "beats" if word == "better" and base else f"is {word} than"
                named = f"{verb} {base}" if base and not parts else verb.removesuffix(" than")
                named = f"is {word}" if base and parts else named
                text = f"{first[0]} {named} by {first[1]}"
            parts.append(", ".join([text, *(f"{name} by {by}" for name, by in others)]) + more)
        else:
            parts.append(_undecided(word, own, table, base if not parts else ""))
    return "; ".join(parts)


def _undecided(
    word: str, own: Sequence[ComparisonRow | FactorRow], table: TableFrames, base: str
) -> str:
    """Say which rows are neither better nor worse; of a single one with its number."""
    listing = f"{len(own)} others" if len(own) > _MOST else _and([*map(_with_ends, own)])
    be = "is" if len(own) == 1 else "are"
    row = own[0]
    number = "" if len(own) > 1 or math.isnan(row.difference) else f" ({_signed(row, table)})"
    if word == "equivalent":
        within = f" within {table.experiment.margin}" if table.experiment.margin else ""
        return f"{listing} {be} equivalent{f' to {base}' if base else ''}{within}{number}"
    if word in ("diverged", "collapsed", "failed"):
        return f"{listing} {word}" + f", {base} did not" * bool(base)
    if word == "inconclusive":
        return f"{listing}{f' against {base}' if base else ''} {be} inconclusive{number}"
    told = {"no verdict": "no verdict on", "too short": "too short to compare:"}.get(word, word)
    against = f" against {base}" if base else ""
    return f"{told}{':' * (told == 'pending')} {listing}{against}{number}"


def _name(row: ComparisonRow | FactorRow) -> str:
    return _quoted(sizes.name_of(row))


def _with_ends(row: ComparisonRow | FactorRow) -> str:
    """Name a row, and how its runs ended where not all of them ended alike."""
    if isinstance(row, FactorRow) or not row.lost or row.outcome == f"{row.ended} {row.verdict}":
        return _name(row)
    return f"{_name(row)} ({row.outcome})"


def _number(row: ComparisonRow | FactorRow, table: TableFrames, unit: bool) -> str:
    """Write the size of a row's difference, with lost runs and an untuned rate."""
    size = _size(row.difference, row.low, row.high, table, unit)
    return _with(row.rate, size, row.outcome if isinstance(row, ComparisonRow) and row.lost else "")


def _size(mean: float, low: float, high: float, table: TableFrames, unit: bool = True) -> str:
    """Write the size of a difference with its interval: `0.21 nats [0.14, 0.27]`."""
    ends = (low, high) if mean > 0 else (-high, -low)
    return _of_unit(written.interval(abs(mean), *ends, sign=""), table.unit.name * unit)


def _signed(row: ComparisonRow | FactorRow, table: TableFrames) -> str:
    """Write a difference with its sign and interval: `-0.006 nats [-0.021, +0.009]`."""
    return _of_unit(written.interval(row.difference, row.low, row.high), table.unit.name)


def _of_unit(number: str, unit: str) -> str:
    """Write a unit behind a number, before its interval."""
    value, *ends = number.split(" ", 1)
    return " ".join(filter(None, (value, unit, *ends)))


def _by_size(rows: Sequence[Differing]) -> list[Differing]:
    """Sort rows by the size of their difference, the largest first."""
    return sorted(rows, key=lambda row: (math.isnan(row.difference), -abs(row.difference)))


def _listed(names: Sequence[str], between: str = ", ", most: int = _MOST) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most + 1 else ""
    return between.join(names[: most if more else len(names)]) + more


def _with(rate: str, text: str, lost: str = "") -> str:
    """Append lost runs and an untuned rate to a text."""
    beside = "; ".join(filter(None, (lost, rate)))
    return f"{text} ({beside})" if beside else text
