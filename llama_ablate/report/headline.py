"""The headline of a report: what the experiment answers in two or three sentences; its facts."""

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, TypeVar

import pandas as pd

from llama_ablate.config.registry import entry_text
from llama_ablate.evidence import written
from llama_ablate.findings import contrasts, hypotheses, ladder, lengths
from llama_ablate.findings.contrasts import FactorRow
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.findings.hypotheses import HypothesisRow
from llama_ablate.findings.rows import ComparisonRow
from llama_ablate.results.plan_document import PlanDocument
from llama_ablate.terminal import listed, plural

#: Verdicts and test results in the order in which the answer names them.
_VERDICTS = (
    "better",
    "worse",
    "diverged",
    "collapsed",
    "failed",
    "equivalent",
    "inconclusive",
    "too short",
    "pending",
)
_RESULTS = (
    "supported",
    "refuted",
    "undecided",
    "undecidable",
    "no verdict",
    "failed",
    "pending",
)
#: What decides nothing, and is counted where there is more than a few of it.
_OPEN = ("equivalent", "inconclusive", "too short", "undecided")
#: How a gap to the baseline goes with size, as a sentence has it.
_TRENDS = {
    "grows": "grows for",
    "closes": "closes for",
    "reverses": "reverses for",
    "moves": "moves for",
    "holds": "holds for",
    "undecided": "is undecided for",
}
_CONTROLS = {"aa": "the repeated baseline", "positive": "the positive control"}
_MOST = 4  # names of one kind
_FEW = 3  # of what is open; results whose intervals stand in the answer
_MANY = 6  # hypotheses, beyond which the undecided are counted
_TABLES = 4  # whose names stand in a sentence


Differing = TypeVar("Differing", ComparisonRow, FactorRow)


class _Said(NamedTuple):
    """Something with its verdict or test result, and the number behind it."""

    name: str
    word: str
    number: str = ""

    def __str__(self) -> str:
        return f"{self.name} ({self.number})" if self.number else self.name


def headline(frames: Frames) -> str:
    """Say what the experiment answers: its hypotheses first, then what its tables show.

    Of a factorial design the factors, of a path the steps, of several tables each variant over all
    of them. What decides is named with its number; of what does not, only a few.
    """
    parts = (_hypotheses, _controls, _best_rates, _tables, _guards, _trends, _turned, _bias)
    return " ".join(sentence for part in parts for sentence in part(frames))


def facts(frames: Frames) -> str:
    """Say in a few words how the experiment was computed, over all its tables."""
    plan, experiment = frames.plan, frames.plan.experiment
    variants = frames.table.plan.variants
    arms = sum(bool(variant.role) for variant in variants)
    looks, race = experiment.looks, experiment.race
    seeds = f"{_range(looks)} {plural(looks[-1], 'seed')}"
    tokens = _range([table.tokens_per_run for table in plan.tables])
    steps = _range([table.steps for table in plan.tables])
    matches = dict.fromkeys(table.matching for table in plan.tables)
    shared = experiment.train.optimizer
    optimizers = dict.fromkeys(entry_text(v.train.get("optimizer", shared)) for v in variants)
    text = [
        *([f"{len(plan.tables)} tables"] if len(plan.tables) > 1 else []),
        f"{len(variants) - arms} variants"
        + (f" and {arms} {plural(arms, 'control')}" if arms else ""),
        seeds + (f", {race} more to tune on" if race else ""),
        f"{tokens} tokens a run ({steps} {plural(steps, 'step')} of {experiment.train.batch} x "
        f"{experiment.model.context}){_passes(plan)}",
        " or ".join(optimizers),
        "learning rate " + ("tuned" if "lr" in experiment.tune else f"{experiment.train.lr:g}"),
        " or ".join(matches) + (" (by table)" if len(matches) > 1 else ""),
    ]
    return f"{', '.join(text)}. {computed(frames)}"


def _passes(plan: PlanDocument) -> str:
    """Say how often runs read their training text, where that is more than once."""
    most = max(table.tokens_per_run / table.text.tokens["train"] for table in plan.tables)
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


def _range(values: Sequence[int]) -> str:
    """Write the least and the most of some counts; once, where they are the same."""
    return " to ".join(dict.fromkeys(f"{value:,}" for value in (min(values), max(values))))


def _hypotheses(frames: Frames) -> Iterator[str]:
    """Yield a sentence for each test result: its hypotheses with their numbers, or how many."""
    rows = hypotheses.results(frames)
    every = len(rows)
    for word in _RESULTS if every else ():
        own = [row for row in rows if row.result == word]
        of_sentence: dict[str, list[HypothesisRow]] = {}
        for row in own:
            of_sentence.setdefault(row.hypothesis, []).append(row)
        named = [_of_hypothesis(of, alone=every <= _FEW) for of in of_sentence.values()]
        if not named:
            continue
        if word in ("no verdict", "undecidable"):
            of = f"{len(own)} of {every}" if len(own) < every else f"{every}"
            whys = dict.fromkeys(row.why for row in own)
            why = _failing(frames) if word == "no verdict" else "; ".join(whys)
            measured = f" (measured: {'; '.join(named)})" if len(named) <= _FEW else ""
            what = "the hypothesis" if every == 1 else f"{of} hypotheses"
            yield f"{word.capitalize()} on {what}: {why}{measured}."
        elif word in _OPEN and every > _MANY:
            yield f"{word.capitalize()}: {len(named)} hypotheses."
        else:
            yield f"{word.capitalize()}: {_listed(named, '; ', _FEW)}."


def _of_hypothesis(rows: Sequence[HypothesisRow], *, alone: bool) -> str:
    """Write a hypothesis with what was measured in each of its tables; `alone` with intervals."""
    numbers = [
        f"{row.table} {_measured(row, alone=alone)}".strip()
        for row in rows
        if not math.isnan(row.difference)
    ]
    told = [", ".join(dict.fromkeys(numbers)), *dict.fromkeys(row.remark for row in rows)]
    return str(_Said(rows[0].hypothesis, "", "; ".join(filter(None, told))))


def _measured(row: HypothesisRow, *, alone: bool) -> str:
    if alone:
        return row.of_difference().removesuffix(" nats")
    unit = f" {row.unit}" if row.unit not in ("", "nats") else ""
    return written.estimate(row.difference, row.low, row.high) + unit


def _controls(frames: Frames) -> Iterator[str]:
    """Yield which controls fail, unless hypotheses say so, once all runs of a table have ended."""
    stated = frames.plan.experiment.hypotheses
    ended = all(run.outcome != "pending" for table in frames.tables for run in table.runs)
    if not stated and ended and (failing := _failing(frames)):
        what = "No difference" if _CONTROLS["aa"] in failing else "No equivalence"
        yield f"{what} is sure: {failing}."


def _turned(frames: Frames) -> Iterator[str]:
    """Yield which verdicts were the contrary at a shorter length."""
    told = [
        f"{name} (up to {tokens / 1e6:.3g}M tokens)"
        for table in frames.tables
        for name, tokens in lengths.turned(lengths.by_length(table)).items()
    ]
    if told:
        yield f"Reverses with the length of training: {_listed(told, ', ', _FEW)}."


def _bias(frames: Frames) -> Iterator[str]:
    """Yield that no control bounds the bias, where a verdict says something of a difference."""
    if any(table.bias.ends is None and table.is_decided for table in frames.tables):
        yield "Bias is not bounded: no arm repeats the baseline with nothing changed."


def _failing(frames: Frames) -> str:
    """Name the controls that fail in any table."""
    failing = [
        name
        for kind, name in _CONTROLS.items()
        if not all(t.controls[kind].holds for t in frames.tables if kind in t.controls)
    ]
    return f"{' and '.join(failing)} {'fails' if len(failing) == 1 else 'fail'}" if failing else ""


def _best_rates(frames: Frames) -> Iterator[str]:
    """Yield where the best learning rates lie over a ladder, unless its question is another."""
    best = ladder.optima(frames)
    if not best or frames.plan.experiment.hypotheses:
        return
    of_label: dict[str, list[float]] = {}
    for row in best:
        of_label.setdefault(row.label, []).append(row.lr)
    named = []
    for label, rates in of_label.items():
        each = list(dict.fromkeys(rates))
        every = [f"{rate:g}" for rate in (rates if len(each) > 1 else each)]
        named.append(f"{label} {', '.join(every)}" + " throughout" * (len(each) == 1))
    yield f"Best learning rate, from the first size to the last: {_listed(named, '; ')}."


def _guards(frames: Frames) -> Iterator[str]:
    """Yield which variants are better in loss and worse in what the file guards."""
    named = []
    for table in frames.tables:
        better = [row.label for row in table.comparison if row.verdict == "better"]
        worse: dict[str, list[str]] = {}
        for row in table.guards:
            if row.label in better and row.result == "worse":
                worse.setdefault(row.label, []).append(f"{row.measure} {row.of_difference()}")
        where = f" in '{table.plan.name}'" if table.plan.name else ""
        named += [f"{label}{where} ({_listed(numbers)})" for label, numbers in worse.items()]
    if named:
        yield f"Better in loss, and worse in what is guarded: {_listed(named, '; ')}."


def _trends(frames: Frames) -> Iterator[str]:
    """Yield whether gaps to the baseline grow with size."""
    laws = ladder.laws(frames)
    parts = []
    for word, phrase in _TRENDS.items():
        own = [str(_Said(row.label, "", str(row.slope))) for row in laws if row.trend == word]
        if own:
            parts.append(f"{phrase} {_listed(own)}")
    if parts:
        yield f"With size (nats per tenfold parameters) the gap {'; '.join(parts)}."


def _tables(frames: Frames) -> Iterator[str]:
    """Yield what the tables show: factors, steps, or the variants over all of them."""
    of_design = _steps if frames.plan.experiment.variants.design == "path" else _factors
    told = {table.plan.name: of_design(table) for table in frames.tables}
    if all(told.values()):
        for name, text in told.items():
            yield f"In '{name}': {text}" if name else text
    else:
        yield _variants(frames)


def _factors(table: TableFrames) -> str:
    """Say what the effects of factors show, alone and two together; of other designs nothing."""
    rows = contrasts.factors(table)
    if not rows:
        return ""
    effects = [
        _Said(row.effect, row.verdict, _with(row.rate, _estimate(row))) for row in _by_size(rows)
    ]
    pairs = {row.effect for row in rows if row.changed}
    alone, together = (
        [effect for effect in effects if (effect.name in pairs) == pair] for pair in (False, True)
    )
    text = (
        f"On average over the other factors (difference in {table.unit.name}): {_by_word(alone)}."
    )
    return text + (f" Interactions: {_by_word(together)}." if together else "")


def _steps(table: TableFrames) -> str:
    """Say what each step of a path changes, in their order, and what all change together."""
    rows = contrasts.steps(table)
    if not rows:
        return ""
    each = []
    for row in rows:
        step = written.estimate(row.marginal, row.marginal_low, row.marginal_high)
        told = _with(row.rate, f"{step}, {row.verdict}".removeprefix("-, "))
        each.append(str(_Said(row.step, "", told)))
    last = {row.label: row for row in table.comparison}[rows[-1].step]
    together = _with(last.rate, f"all together {_of_row(last)}, {last.verdict}")
    told = "; ".join([", ".join(each)] + [together] * bool(last.n))
    return f"Step by step (difference in {table.unit.name}): {told}."


def _variants(frames: Frames) -> str:
    """Say how the variants compare with the baseline: in one table, or over all of them."""
    names = [table.plan.name for table in frames.tables]
    of_variant: dict[str, dict[str, ComparisonRow]] = {}
    for table in frames.tables:
        compared = [row for row in table.comparison if not (row.role or row.baseline)]
        for row in _by_size(compared):
            of_variant.setdefault(row.label, {})[table.plan.name] = row
    groups: dict[tuple[str, ...], list[_Said]] = {}
    for label, of_table in of_variant.items():
        words = tuple(str(of_table[name].verdict) if name in of_table else "" for name in names)
        numbers = [_of_row(of_table[name]) if name in of_table else "-" for name in names]
        known = len(names) <= _TABLES and any(number not in ("", "-") for number in numbers)
        rate = next((row.rate for row in of_table.values() if row.rate), "")
        told = _with(rate, " | ".join(numbers) if known else "")
        said = _Said(label, _over(words, names), told)
        groups.setdefault(words, []).append(said)
    ordered = sorted(groups, key=lambda words: [_VERDICTS.index(word) for word in words if word])
    every = [one for words in ordered for one in groups[words]]
    where = f"; {' | '.join(names)}" if 1 < len(names) <= _TABLES else ""
    shown = _by_word(every, dict.fromkeys(one.word for one in every)) or "nothing yet"
    bases = [row for table in frames.tables for row in table.comparison if row.baseline]
    lost = "".join(f"{row.outcome}; " for row in bases if row.lost)
    label, unit = frames.table.plan.baseline.label, frames.table.unit.name
    return f"Against '{label}' ({lost}difference in {unit}{where}): {shown}."


def _over(words: Sequence[str], names: Sequence[str]) -> str:
    """Write a variant's verdicts over several tables: `better in text, worse in recall`."""
    kinds = [word for word in _VERDICTS if word in words]
    if len(names) == 1:
        return kinds[0]
    if len(set(words)) == 1:
        return f"{kinds[0]} in {'both' if len(names) == 2 else f'all {len(names)}'}"
    of = {
        kind: [name for name, word in zip(names, words, strict=True) if word == kind]
        for kind in kinds
    }
    where = {
        kind: f"{kind} in {listed(own) if len(names) <= _TABLES else len(own)}"
        for kind, own in of.items()
    }
    if len(of) == 2 < len(names):
        few, rest = sorted(of, key=lambda kind: len(of[kind]))
        return f"{where[few]}, else {rest}"
    return ", ".join(where.values())


def _by_word(said: Sequence[_Said], words: Iterable[str] = _VERDICTS) -> str:
    """List what has each word; where it decides nothing, and is more than a few, how many."""
    parts = []
    for word in words:
        own = [str(one) for one in said if one.word == word]
        if own:
            count = f"all {len(own)}" if len(own) == len(said) else f"{len(own)} others"
            is_open = word.split(" in ")[0] in _OPEN  # what decides stands first
            parts.append(f"{word}: {count if is_open and len(own) > _FEW else _listed(own)}")
    return "; ".join(parts)


def _listed(names: Sequence[str], between: str = ", ", most: int = _MOST) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most + 1 else ""
    return between.join(names[: most if more else len(names)]) + more


def _by_size(rows: Sequence[Differing]) -> list[Differing]:
    """Sort rows by the size of their difference, the largest first."""
    return sorted(rows, key=lambda row: (math.isnan(row.difference), -abs(row.difference)))


def _of_row(row: ComparisonRow) -> str:
    """Write a variant's difference; where runs were lost, how they ended before it."""
    is_said = row.outcome == f"{row.ended} {row.verdict}"  # all of them collapsed
    ended = "" if is_said or not row.lost else row.outcome
    return ": ".join(filter(None, (ended, _estimate(row))))


def _estimate(row: ComparisonRow | FactorRow) -> str:
    """Write a row's difference with the decimals that its interval bears out."""
    if math.isnan(row.difference):
        return ""
    return written.estimate(row.difference, row.low, row.high)


def _with(rate: str, text: str) -> str:
    """Write what is said of a row, and where its optimizer was compared at another's rate."""
    return "; ".join(filter(None, (text, rate)))
