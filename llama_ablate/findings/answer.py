"""Answer of an experiment in sentences on quality, costs and sizes; costs of variants."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from llama_ablate.config import labels
from llama_ablate.config.labels import name_corpus
from llama_ablate.config.schema import CostName, Experiment
from llama_ablate.evidence import written
from llama_ablate.findings.columns import iterate, list_rows
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.factors import compare_axes, describe_steps, estimate_factors
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.hypotheses import NO_LONGER_JUDGED, judge_hypotheses
from llama_ablate.findings.sizes import compare_sizes, find_optima
from llama_ablate.findings.table import Table, once
from llama_ablate.terminal import plural

MAX_WORDS = 60  # most words of an answer, if its first sentence is no longer
#: Most names of one kind in a sentence, reduced until the answer is short enough.
_NAMES = (4, 3, 2, 1)
_MAX_TABLES, _MAX_HYPOTHESES = 3, 3  # most tables and hypotheses that are named
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


@dataclass(frozen=True)
class Finding:
    """Verdict and difference in loss of a variant, factor or path step, with a remark."""

    name: str
    verdict: str
    difference: float
    low: float
    high: float
    remark: str = ""

    def __str__(self) -> str:
        """Format the difference with its interval; "" if it is unknown."""
        if math.isnan(self.difference):
            return ""
        return written.interval(self.difference, self.low, self.high)


def headline(frames: Frames) -> str:
    """Write the answer of an experiment with its scale, in sentences."""
    return " ".join(filter(None, (answer(frames), describe_scale(frames))))


def answer(frames: Frames) -> str:
    """Write the answer of an experiment in at most 60 words.

    With several model sizes the trend comes first. If the experiment asks for a cost, the answer
    lists variants that are cheaper and as good. A factorial design is answered by its effects, and
    a path by its steps. A single sentence is kept whole.
    """
    for most in _NAMES:
        parts = (_rates, _trends, _tables, _hypotheses)
        sentences = [text for part in parts for text in part(frames, most)]
        if len(" ".join(sentences).split()) <= MAX_WORDS:
            break
    fitting = sentences[:1]
    for sentence in sentences[1:]:
        if len(" ".join([*fitting, sentence]).split()) <= MAX_WORDS:
            fitting.append(sentence)
    return " ".join(fitting)


def describe_scale(frames: Frames) -> str:
    """Write texts, model sizes, tokens and seeds of an answer in a sentence."""
    plans = [table.plan for table in frames.tables]
    parameters = written.ends((plan.baseline.parameters for plan in plans), written.count)
    each = [plan.tokens_per_run / plan.baseline.parameters for plan in plans]
    seeds, experiment = count_seeds(frames), frames.plan.experiment
    choosing = experiment.race or len(experiment.seed_list)
    tuned = f", each variant at the {_join([*experiment.tune])}" if experiment.tune else ""
    tuned += f" chosen on {choosing} {plural(choosing, 'seed')}" * bool(tuned)
    return (
        f"On {name_texts(frames)}, at {parameters} parameters and "
        f"{written.ends(each, '{:.2g}'.format)} tokens a parameter; {seeds} "
        f"{plural(seeds, 'seed')}{tuned}."
    )


def count_seeds(frames: Frames) -> str:
    """Write the number of seeds that both a variant and the baseline finished, or its range."""
    rows = pd.concat([compare_variants(table) for table in frames.tables])
    rows = rows[rows["role"].eq("")]
    others = rows[~rows["baseline"]]
    counts = [n for n in (others if len(others) else rows)["n"] if n]
    return written.ends(counts or [0], "{:,}".format)


def name_texts(frames: Frames) -> str:
    """Name the texts of all tables."""
    return _join([*dict.fromkeys(name_corpus(table.plan.text.source) for table in frames.tables)])


# ---- sentences of the answer


def _rates(frames: Frames, most: int) -> Iterator[str]:
    """Yield a sentence on the best learning rates by model size, unless hypotheses are stated."""
    best = find_optima(frames)
    if best.empty or frames.plan.experiment.hypotheses:
        return
    named: list[str] = []
    for label, rates in best.groupby("label", sort=False)["lr"]:
        first, last = rates.iloc[0], rates.iloc[-1]
        way = "falls" if last < first else "rises"
        path = f"stays at {first:g}" if first == last else f"{way} from {first:g} to {last:g}"
        named.append(f"{label}'s {'best learning rate ' * (not named)}{path}")
    rungs = [*best["rung"]]
    yield f"From {rungs[0]} to {rungs[-1]}, {_list_few(named, most, '; ')}."


def _trends(frames: Frames, most: int) -> Iterator[str]:
    """Yield a sentence on how gaps to the baseline change with model size."""
    rows, parts = compare_sizes(frames).drop_duplicates("label"), []
    for word, named in rows[rows["trend"].ne("")].groupby("trend", sort=False)["label"]:
        verb = "may grow or shrink" if word == "undecided" else str(word)
        parts.append(f"{verb} for {_list_few([*map(_quote, named)], most)}")
    if parts:
        yield f"With size the gap to the baseline {'; '.join(parts)}."


def _tables(frames: Frames, most: int) -> Iterator[str]:
    """Yield a sentence per comparison table on the verdicts of its variants.

    Of model sizes, only the largest has one. With more than three tables, each variant has a
    sentence, which counts its verdicts over the tables.
    """
    tables = frames.rungs[-1:] if len(frames.rungs) > 1 else frames.tables
    if len(tables) > _MAX_TABLES:
        yield from _count_verdicts(tables, most)
        return
    for table in tables:
        read_design = _steps if table.experiment.variants.design == "path" else _factors
        text = read_design(table, most) or _at_a_cost(table, most) or _variants(table, most)
        yield f"In '{table.plan.name}': {text}." if table.plan.name else f"{text}."


def _count_verdicts(tables: Sequence[Table], most: int) -> Iterator[str]:
    every = pd.concat([compare_variants(table) for table in tables])
    every = every[every["role"].eq("") & ~every["baseline"]]
    for label in every["label"].unique()[:most]:
        verdicts = Counter(every.loc[every["label"].eq(label), "verdict"])
        words = [f"{word} in {verdicts[word]}" for word in (*_VARIANT, *_NEUTRAL) if verdicts[word]]
        yield (
            f"{_quote(label)} against {_name_baseline(tables[0])} is {_join(words)} of "
            f"{verdicts.total()} tables."
        )


def _variants(table: Table, most: int) -> str:
    """Describe the verdicts of a comparison table's variants."""
    rows = compare_variants(table)
    rows = rows[rows["role"].eq("") & ~rows["baseline"]]
    nothing = "Nothing is known yet" if len(rows) else "There are no variants to compare"
    findings = [_make_finding(row, table) for row in list_rows(rows)]
    return _describe(findings, table, _VARIANT, most, _name_baseline(table)) or nothing


def _factors(table: Table, most: int) -> str:
    """Describe the effects of a factorial design: axes, factors and interactions."""
    rows = list_rows(estimate_factors(table))
    if not rows:
        return ""
    axes = compare_axes(table)
    alone = [_make_finding(row, table) for row in rows if not row["changed"]]
    said = [f"On average over the other factors, {_describe(alone, table, _FACTOR, most)}"]
    if axes["levels"].gt(2).any():
        named = [
            f"{axis.axis} moves the loss by {write_range(axis)} {table.unit.name} (lowest: "
            f"{axis.lowest})"
            for axis in iterate(axes)
        ]
        said = [f"On average over the other factors, {'; '.join(named[:most])}"]
    both = [_make_finding(row, table) for row in rows if row["changed"]]
    decided = sorted(
        (one for one in both if one.low > 0 or one.high < 0), key=lambda one: -abs(one.difference)
    )
    said += [
        f"{one.name}: the effects do not add up{_in_brackets(one, table)}" for one in decided[:most]
    ]
    if both and not decided:
        said.append("no interaction was shown")
    return "; ".join(said)


def write_range(axis: Any) -> str:
    """Write the range of an axis with its interval, for a row of `compare_axes`."""
    form = f".{written.decimals(axis.low, axis.high)}f"
    return written.bounded(axis.range, axis.low, axis.high, form)


def _steps(table: Table, most: int) -> str:
    """Describe the effect of each step of a path, and of all steps together."""
    rows = [*iterate(describe_steps(table))]
    if not rows:
        return ""
    findings = [
        Finding(
            _quote(row.step),
            row.verdict,
            *(row.marginal, row.marginal_low, row.marginal_high),
            row.rate,
        )
        for row in rows
    ]
    parts = [_describe(findings, table, _STEP, most)]
    last = rows[-1]
    total = next(row for row in list_rows(compare_variants(table)) if row["label"] == last.step)
    if total["n"] and total["verdict"] in _STEP:
        ends = total["difference"], total["low"], total["high"]
        whole = Finding("the whole path", total["verdict"], *ends)
        parts.append(_describe([whole], table, _VARIANT, most, _name_baseline(table)))
    return "; ".join(parts)


def _at_a_cost(table: Table, most: int) -> str:
    """Describe the variants that need less of the asked cost, the cheapest first.

    A variant is as good if it is better, equivalent, or surely not worse by more than the file's
    `not_worse_by`, or else by more than its margin.
    Returns "" without a cost, and if no cheaper variant is as good unless the experiment file names
    the cost.
    """
    rows = compare_variants(table)
    rows = rows[rows["role"].eq("")]
    cost = find_asked_cost(table.experiment, rows)
    if cost is None:
        return ""
    values = cost.read(rows)["value"]
    (base,) = values[rows["baseline"]]
    cheaper = rows.assign(share=values / base).query(f"share < {1 - SAME_COST}")
    cheaper = cheaper.sort_values("share", kind="stable")
    limit = table.allowed or table.margin or 0.0
    good = cheaper["verdict"].isin(["better", "equivalent", "equal"]) | cheaper["not_worse"]
    if not table.allowed:
        good |= cheaper["verdict"].eq("inconclusive") & cheaper["high"].le(limit)
    if not good.any() and not table.experiment.answer.cost:
        return ""
    none = f"No variant that needs less of {cost.words} is shown to be as good as the baseline"
    said = [none] * (not good.any())
    chosen = pd.concat([cheaper[good].head(most), cheaper[~good]])
    for row in list_rows(chosen.head(most + 1 - len(said))):
        needs = f"needs {write_share(row['share'])}" + f" of {cost.words}" * (not said)
        finding = _make_finding(row, table)
        word = f"{finding.verdict}{_within(finding.verdict, table)}"
        is_open = finding.verdict in ("inconclusive", "worse")
        if is_open and (row["not_worse"] or row["high"] <= limit):
            word = f"not worse by more than {limit}"
        said.append(f"{finding.name} {needs} and is {word}{_in_brackets(finding, table)}")
    measured, context = table.experiment.model.context, rows["asked_context"].iloc[0]
    where = f" (losses measured at context {measured:,})"
    return "; ".join(said) + where * (cost.column == "asked_state_bytes" and context != measured)


def _hypotheses(frames: Frames, _most: int) -> Iterator[str]:
    """Yield a sentence that names the hypotheses by test result, or counts the results."""
    rows = judge_hypotheses(frames)
    rows = rows[rows["result"].ne(NO_LONGER_JUDGED)]
    if len(rows) > _MAX_HYPOTHESES:
        words = [f"{count} {word}" for word, count in Counter(rows["result"]).items()]
        yield f"Of {len(rows)} hypotheses: {', '.join(words)}."
        return
    for word, of in rows.groupby("result", sort=False)["hypothesis"]:
        names = dict.fromkeys(f"'{name}'" for name in of)
        yield f"{str(word).capitalize()}: {'; '.join(names)}."


# ---- words


def _describe(
    every: Sequence[Finding],
    table: Table,
    verbs: dict[str, str],
    most: int,
    base: str = "",
) -> str:
    """Describe findings grouped by verdict: better and worse first, the largest first.

    `verbs` maps these two verdicts to verb phrases. `base` is the baseline's name, which is written
    only once.
    """
    parts: list[str] = []
    by_size = sorted(every, key=lambda one: -abs(one.difference))
    for word, verb in verbs.items():
        matching = [finding for finding in by_size if finding.verdict == word]
        said = verb.format(base) if not parts else verb.replace(" than {}", "").format(base)
        named = [
            f"{finding.name} {'by' if number else said} {_size(finding, table)}"
            for number, finding in enumerate(matching)
        ]
        if named:
            parts.append(_list_few(named, most))
    for word, (is_, are) in _NEUTRAL.items():
        matching = [finding for finding in every if finding.verdict == word]
        if not matching:
            continue
        names = [f"{f.name} ({f.remark})" if f.remark else f.name for f in matching]
        rest = "others" if parts else "variants"
        subject = _join(names) if len(names) <= most else f"{len(names)} {rest}"
        against = f" {'to' if word in ('equivalent', 'equal') else 'against'} {base}" * bool(base)
        to_base = against * (not parts and word in ("equivalent", "equal", "inconclusive"))
        number = _in_brackets(matching[0], table) if len(matching) == 1 else ""
        be = is_ if len(matching) == 1 else are
        said = "too short to compare" if word == "too short" else word
        parts.append(f"{subject} {be}{said}{to_base}{_within(word, table)}{number}")
    if len(parts) == 1 and len(every) > most and every[0].verdict == "inconclusive":
        best = min(every, key=lambda one: one.difference)
        parts.append(f"the lowest is {best.name}{_in_brackets(best, table)}")
    return "; ".join(parts)


def _make_finding(row: Mapping[str, Any], table: Table) -> Finding:
    """Make the finding of a variant or an effect.

    Its remark is the outcome of lost runs, and an untuned rate.
    """
    lost = row["outcome"] if row.get("lost") else ""
    is_alike = lost == f"{row.get('ended')} {row['verdict']}"
    remark = "; ".join(filter(None, (lost * (not is_alike), row["rate"])))
    name = row.get("effect") or row["label"]
    short = _shorten(table)
    ends = row["difference"], row["low"], row["high"]
    return Finding(_quote(short.get(name, name)), row["verdict"], *ends, remark)


@once
def _shorten(table: Table) -> Mapping[str, str]:
    """Return short labels of the table's variants by label."""
    return labels.shorten_labels([variant.label for variant in table.plan.variants])


def _name_baseline(table: Table) -> str:
    """Return the baseline's label, or "the baseline" with its value on each axis."""
    label = table.plan.baseline.label
    if label == labels.UNCHANGED:
        base, data = table.plan.baseline.model, table.plan.text.source
        levels = labels.name_levels(table.experiment, base, data)
        return f"the baseline ({', '.join(levels)})" if levels else label
    name = label.removesuffix(f" ({labels.UNCHANGED})")
    return label if " " in name else name


def _within(word: str, table: Table) -> str:
    """Write the margin of a row that is equivalent; "" if none was given, and it is equal."""
    margin = table.experiment.margin
    return f" within {margin}" if margin and word == "equivalent" else ""


def _size(finding: Finding, table: Table) -> str:
    """Format a finding's difference without sign, and its remark: `0.21 nats [0.14, 0.27]`."""
    value, low, high = finding.difference, finding.low, finding.high
    ends = (low, high) if value > 0 else (-high, -low)
    number = _add_unit(written.interval(abs(value), *ends, sign=""), table)
    return f"{number} ({finding.remark})" if finding.remark else number


def _in_brackets(finding: Finding, table: Table) -> str:
    """Format a difference with its sign: ` (-0.006 nats [-0.021, +0.009])`; "" if unknown."""
    number = str(finding)
    return f" ({_add_unit(number, table)})" if number else ""


def _add_unit(number: str, table: Table) -> str:
    """Insert the unit of losses between a number and its interval."""
    value, *ends = number.split(" ", 1)
    return " ".join([value, table.unit.name, *ends])


def _quote(name: str) -> str:
    """Put a name that contains a comma or "and" in quotes, for lists."""
    return f"'{name}'" if "," in name or " and " in name else name


def _join(names: Sequence[str]) -> str:
    """Join names with commas and "and"."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _list_few(names: Sequence[str], most: int, between: str = ", ") -> str:
    """Join names; of more than `most` + 1, count those after the first `most`."""
    more = f" and {len(names) - most:,} more" if len(names) > most + 1 else ""
    return between.join(names[: most if more else len(names)]) + more


# ---- costs of variants; lower is better

SAME_COST = 0.02  # relative difference up to which two costs count as equal


class VariantCost(NamedTuple):
    """Cost of variants: its name in experiment files, its column, and its words."""

    name: CostName
    #: Column of the comparison; for a speed the stem of its ratio and interval.
    column: str
    #: Title of an axis, and the noun phrase that follows a share, as in "needs 1/4 of the FLOPs".
    title: str
    words: str
    #: Kind of the cost: `speed`, `bytes` or `count`.
    kind: str

    def read(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return the cost of each row of a comparison, with the interval of a speed.

        The columns are `value`, `low` and `high`. The cost of a speed is its inverse.
        """
        if self.kind == "speed":
            names = {"value": "ratio", "low": "high", "high": "low"}
            inverse = {new: 1 / rows[f"{self.column}_{old}"] for new, old in names.items()}
            return pd.DataFrame(inverse)
        return pd.DataFrame({"value": rows[self.column], "low": math.nan, "high": math.nan})

    def differs(self, rows: pd.DataFrame) -> bool:
        """Return whether the cost differs between rows by more than 2% of the largest."""
        values = self.read(rows)["value"]
        return bool(values.max() - values.min() > SAME_COST * values.abs().max())


_TIME, _STATE = "time, multiple of the baseline's", "state of one sequence of"
#: Costs in order of importance, with the contexts at which bytes are counted in braces.
COSTS = (
    VariantCost("train_speed", "train_speed", f"training {_TIME}", "the training time", "speed"),
    VariantCost(
        *("kv_cache", "asked_state_bytes", f"{_STATE} {{asked:,}} tokens"),
        *("the state bytes at {asked:,} tokens", "bytes"),
    ),
    VariantCost(
        *("kv_cache", "state_bytes", f"{_STATE} {{context:,}} tokens"),
        *("the state bytes at {context:,} tokens", "bytes"),
    ),
    VariantCost("decode_speed", "decode_speed", f"decoding {_TIME}", "the decoding time", "speed"),
    VariantCost("parameters", "parameters", "parameters", "the parameters", "count"),
    VariantCost(
        *("active", "active_parameters", "parameters that a token passes"),
        *("those parameters", "count"),
    ),
    VariantCost(
        "flops", "flops_per_token", "FLOPs of a forward pass per token", "the FLOPs", "count"
    ),
    VariantCost("memory", "peak_memory_bytes", "peak memory in training", "the memory", "bytes"),
)


def list_costs(rows: pd.DataFrame) -> list[VariantCost]:
    """List the costs in which rows of a comparison differ, with their contexts in words."""
    contexts = rows.get("asked_context", pd.Series(dtype=float)).dropna()
    at = {
        "context": int(rows["context"].iloc[0]),
        "asked": int(contexts.max()) if len(contexts) else 0,
    }
    return [
        cost._replace(title=cost.title.format(**at), words=cost.words.format(**at))
        for cost in COSTS
        if (at["asked"] or cost.column != "asked_state_bytes") and cost.differs(rows)
    ]


def find_asked_cost(experiment: Experiment, rows: pd.DataFrame) -> VariantCost | None:
    """Return the cost that the report's answer weighs against differences in loss.

    The experiment file names this cost as `answer: {cost: NAME}`. Without that key, the cost is the
    KV cache if the file states an equivalence margin and, besides, either `kv_cache` has a context
    or only the attention is varied. Returns None if no cost applies, or if the variants do not
    differ in the cost.
    """
    name = experiment.answer.cost
    slots = {key.partition(".")[0] for key in experiment.variants.axes}
    is_asked = len(experiment.state_contexts) > 1 or slots == {"attention"}
    if name is None and experiment.margin and is_asked:
        name = "kv_cache"
    return next((cost for cost in list_costs(rows) if cost.name == name), None)


def write_share(share: float) -> str:
    """Format a share of the baseline's cost that is below 1: `1/4`, `0.93`."""
    parts = round(1 / share) if share > 0 else 0
    is_whole = parts > 1 and math.isclose(share * parts, 1, rel_tol=0.01)
    return f"1/{parts}" if is_whole else f"{share:.2g}"
