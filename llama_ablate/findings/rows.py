"""Rows of tables: frozen dataclasses, whose fields and cells say how every rendering shows them.

A field made by `column` is a column of the table as data: of its data frame, its CSV and
`docs/python.md`. With a `head` it is a column of the table as people read it too, on the page, in
Markdown, LaTeX and terminals; `cell` makes one of a method, for what is written of several fields.
Columns stand in the order of the class, those that lead before the others.
"""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from string import Formatter
from typing import Any, TypeVar

import pandas as pd

from llama_ablate.evidence.written import interval, number, p_value, pace, seeds, share
from llama_ablate.results.plan_document import NATS

Method = TypeVar("Method", bound=Callable[..., str])
#: What is written of a difference: its intervals hold for all rows of a table at once.
DIFFERENCE = "difference [95%]"
_NOTHING = ("", "-")  # cells that show nothing
_KEY = "column"
_places = itertools.count()


@dataclass(frozen=True)
class Column:
    """How a field, or a method, of a row is shown."""

    #: What it holds, for the documentation.
    about: str = ""
    #: What stands above its cells, in which the name of a field in braces stands for its value.
    head: str = ""
    #: How its numbers are formatted.
    form: str = ""
    #: Whether it stands before those that do not lead, and in short renderings.
    leading: bool = False
    #: Whether it is left out where no row has anything to show.
    optional: bool = False
    #: It is left out unless this holds of a row.
    when: Callable[..., bool] | None = None
    #: Where it stands among the others: in the order of declaration.
    place: int = field(default_factory=_places.__next__)


def column(
    about: str,
    head: str = "",
    form: str = "",
    *,
    leading: bool = False,
    optional: bool = False,
    when: Callable[..., bool] | None = None,
    default: object = MISSING,
) -> Any:
    """Declare a field as a column of its table: see `Column`.

    As with `dataclasses.field`, what is returned stands for a value of the field's type.
    """
    stated = Column(about, head, form, leading, optional, when)
    return field(default=default, metadata={_KEY: stated}, kw_only=True)


def cell(
    head: str,
    *,
    leading: bool = False,
    optional: bool = False,
    when: Callable[..., bool] | None = None,
) -> Callable[[Method], Method]:
    """Declare that a method writes a column of the table that people read (a decorator)."""
    stated = Column(head=head, leading=leading, optional=optional, when=when)

    def enter(method: Method) -> Method:
        vars(method)[_KEY] = stated
        return method

    return enter


@dataclass(frozen=True)
class Row:
    """A row of a table."""

    @property
    def variant(self) -> str:
        """The label of the variant that the row is about; empty where it is about no single one."""
        return str(getattr(self, "label", ""))

    @property
    def is_baseline(self) -> bool:
        """Whether that is the baseline."""
        return bool(getattr(self, "baseline", False))


Filled = TypeVar("Filled", bound=Row)


def columns(kind: type[Row]) -> dict[str, str]:
    """Return what the columns of a table as data hold, by their names."""
    return {one.name: one.metadata[_KEY].about for one in fields(kind) if _KEY in one.metadata}


def means(kind: type[Row]) -> list[str]:
    """Return the columns that are means over runs of the numbers of their names: of default NaN."""
    named = [(one.name, one.default) for one in fields(kind) if _KEY in one.metadata]
    return [name for name, value in named if isinstance(value, float) and math.isnan(value)]


def filled(row: Filled, mean: Callable[[str], float]) -> Filled:
    """Return a row with its columns that are means (`means`), as a function of names has them."""
    found: dict[str, Any] = {name: mean(name) for name in means(type(row))}
    return replace(row, **found)


def frame(rows: Sequence[Row], kind: type[Row] = Row) -> pd.DataFrame:
    """Return rows as a data frame; of none, an empty one with the columns of a `kind` of row.

    A column that is None in all rows is left out. A named tuple has a column for each of its
    fields: the first one's is called as the tuple.
    """
    known: dict[str, list[object]] = {}
    for name in columns(_kind(rows, kind)):
        values = [getattr(row, name) for row in rows]
        if rows and isinstance(values[0], tuple):
            _, *ends = getattr(values[0], "_fields")  # noqa: B009 - of a named tuple
            parts = [name, *(f"{name}_{end}" for end in ends)]
            known |= dict(zip(parts, map(list, zip(*values, strict=True)), strict=True))
        elif not rows or any(value is not None for value in values):
            known[name] = values
    return pd.DataFrame(known)


def cells(rows: Sequence[Row], kind: type[Row] = Row) -> pd.DataFrame:
    """Return rows with their numbers written as people read them, the leading columns first."""
    shown: list[tuple[bool, str, list[str]]] = []
    for name, stated in _shown(_kind(rows, kind)).items():
        if stated.when and not any(map(stated.when, rows)):
            continue
        written = [_written(getattr(row, name), stated.form) for row in rows]
        if not stated.optional or any(text not in _NOTHING for text in written):
            shown.append((not stated.leading, _head(stated, rows), written))
    return pd.DataFrame({head: written for _, head, written in sorted(shown, key=lambda s: s[0])})


def leading(rows: Sequence[Row]) -> list[str]:
    """Return the heads of the columns that lead the others."""
    return [_head(one, rows) for one in _shown(_kind(rows, Row)).values() if one.leading]


def _kind(rows: Sequence[Row], kind: type[Row]) -> type[Row]:
    return type(rows[0]) if rows else kind


def _shown(kind: type[Row]) -> dict[str, Column]:
    """Return the columns that people read by the field or method that writes each, in order."""
    stated = {one.name: one.metadata.get(_KEY) for one in fields(kind)}
    stated |= {name: vars(of).get(_KEY) for name, of in vars(kind).items() if callable(of)}
    found = {name: one for name, one in stated.items() if one and one.head}
    return dict(sorted(found.items(), key=lambda entry: entry[1].place))


def _head(stated: Column, rows: Sequence[Row]) -> str:
    """Return a head with what the first row has of the fields that it names."""
    named = [name for _, name, _, _ in Formatter().parse(stated.head) if name]
    return stated.head.format_map({name: getattr(rows[0], name) for name in named})


def _written(value: object, form: str) -> str:
    """Write a field, or what a method returns."""
    if callable(value):
        value = value()
    if value is None:
        return ""
    return number(value, form) if form and isinstance(value, float) else format(value, form)


@dataclass(frozen=True)
class ComparisonRow(Row):
    """A variant beside the baseline of its table: quality, difference, size, speed and memory."""

    label: str = column("label of the variant", "variant", leading=True)
    baseline: bool = column("whether it is the baseline")
    role: str = column("`aa` or `positive` for a control, else empty")
    point: str = column("what was tuned, as `lr 0.001`; empty where nothing is")
    outcome: str = column("how its reported runs ended, counted")
    unit: str = column(
        "unit of losses and differences: `nats` per token, or `bits/byte` where variants have "
        "tokenizers of their own"
    )
    n: int = column(
        "number of seeds that are paired with the baseline's; of the baseline its own",
        "n",
        leading=True,
    )
    loss: float = column("mean loss over its reported runs that ended `ok`: those that trained")
    sd: float = column("standard deviation of the loss over seeds")
    difference: float = column(
        "mean difference from the baseline, paired by seed; below 0 is better"
    )
    low: float = column("lower end of its interval, which holds for all rows of the table at once")
    high: float = column("upper end of its interval")
    verdict: str = column(
        "`better`, `worse`, `equivalent`, `inconclusive`, `too short`, `diverged`, `collapsed`, "
        "`failed`, `pending`; of the baseline `baseline`"
    )

    @cell("loss ({unit})", leading=True)
    def of_loss(self) -> str:
        """Write the mean loss; where runs were lost, of how many it is."""
        mean, trained = number(self.loss, f".{self.places}f"), self.ended - self.lost
        told = f" (mean of the {trained} that trained)" if self.lost and trained else ""
        return mean + told

    @cell(DIFFERENCE, leading=True)
    def of_difference(self) -> str:
        """Write the difference with its interval."""
        return "" if self.baseline else interval(self.difference, self.low, self.high)

    @cell("verdict", leading=True)
    def of_verdict(self) -> str:
        """Write the verdict; of a better variant, also in what guarded number it is worse."""
        guarded = self.verdict == "better" and self.guard
        return f"{self.verdict}, {self.guard}" if guarded else self.verdict

    @cell("at half the length", leading=True, optional=True)
    def of_half(self) -> str:
        """Write how the verdict at half the length of training compares."""
        return self.half or ""

    @cell("bias", leading=True, optional=True)
    def of_bias(self) -> str:
        """Write what is known of a bias."""
        return self.bias

    @cell("learning rate", leading=True, optional=True)
    def of_rate(self) -> str:
        """Write whether the learning rate was tuned."""
        return self.rate

    p_corrected: float = column(
        "two-sided p value, corrected for the number of rows (Bonferroni): below 0.05 just where "
        "the interval leaves out 0"
    )
    alpha: float = column("error that the row's interval spends")
    df: float = column("degrees of freedom of the standard error")
    seed_se: float = column("standard error of the difference over seeds")
    text_se: float = column("standard error of the difference over held-out texts")
    pooled: bool = column("whether the variance over seeds is moderated by the other rows'")
    seeds_low: float = column(
        "fewest seeds that would decide an inconclusive row, four times in five"
    )
    seeds_high: float = column("most seeds that would; infinite beyond a thousand")
    correlation: float = column(
        "correlation over seeds with the baseline; missing below five pairs"
    )
    pairing_saves: float = column(
        "how many times the runs an unpaired design would need; missing as that is"
    )
    ended: int = column("its reported runs that have finished")
    too_short: int = column("how many of them were too short")
    lost: int = column("how many of them diverged or collapsed")
    lost_low: float = column(
        "lower end of the 95% interval of the share of the lost (Clopper and Pearson)"
    )
    lost_high: float = column("upper end of it")
    lost_p_corrected: float = column(
        "exact two-sided p of that share against the baseline's, corrected for the number of rows; "
        "missing where neither has lost any"
    )
    look: float = column("which of the planned looks the row is from")
    looks: int = column("how many looks are planned")
    finished: int = column("runs that ended `ok`, `diverged` or `collapsed`, at every tuned point")
    diverged: int = column("how many of them diverged")
    collapsed: int = column("how many of them collapsed")
    # With NaN as its default a column is the mean over its reported runs of the number that has the
    # column's name, on the reported split where it is of one.
    perplexity: float = column("mean perplexity", default=math.nan)
    bits_per_byte: float = column("mean loss in bits per byte of text", default=math.nan)
    excess_nats: float = column(
        "mean loss above that of the best possible, of a text whose source is known",
        default=math.nan,
    )
    parameters: int = column("trained parameters", "parameters", ",", leading=True)
    active_parameters: int = column("parameters that a token passes")
    non_embedding: int = column("parameters without those of tokens and learned positions")
    residual: float = column("what matching left of the budget, as a share")
    solved: str = column("what matching changed, as `feed-forward width 176`")
    flops_per_token: int = column("forward FLOPs per token at the training context")
    train_tokens_per_s: float = column("tokens per second of training")
    train_speed_ratio: float = column("training speed over that of the baseline in the same turns")
    train_speed_low: float = column("lower end of its 95% interval")
    train_speed_high: float = column("upper end of its 95% interval")
    train_speed_turns: int = column("turns that both were timed in")
    train_speed_processes: int = column("processes that the turns were in")
    train_speed_spread: float = column(
        "width of the middle half of the turns' ratios, over their median"
    )
    decode_tokens_per_s: float = column("tokens per second of decoding, with the cache")
    decode_speed_ratio: float = column("decode speed over that of the baseline in the same turns")
    decode_speed_low: float = column("lower end of its 95% interval")
    decode_speed_high: float = column("upper end of its 95% interval")
    decode_speed_turns: int = column("turns that both were timed in")
    decode_speed_processes: int = column("processes that the turns were in")
    decode_speed_spread: float = column(
        "width of the middle half of the turns' ratios, over their median"
    )

    @cell("speed", leading=True, optional=True)
    def of_training(self) -> str:
        """Write the ratio of training speeds."""
        return pace(self.train_speed_ratio, self.train_speed_low, self.train_speed_high)

    @cell("decode speed", optional=True)
    def of_decoding(self) -> str:
        """Write the ratio of decode speeds."""
        return pace(self.decode_speed_ratio, self.decode_speed_low, self.decode_speed_high)

    kv_bytes_per_token: int = column(
        "bytes that a token adds to the state, of 16-bit numbers", "KV bytes/token", ","
    )
    state_bytes: float = column(
        "bytes of the state of one sequence of the training context, 16-bit",
        "state bytes",
        ",.0f",
        leading=True,
        optional=True,  # plans of older versions know what a token adds alone
    )
    kv_measured_bytes_per_token: float = column("bytes that a token adds, counted on live tensors")
    peak_memory_bytes: float = column(
        "mean over its runs of the most memory that training held", default=math.nan
    )

    @cell("runs", optional=True)
    def of_runs(self) -> str:
        """Write how the runs ended, where not all ended ok; of the lost also the share."""
        if self.outcome.endswith(" ok") and "," not in self.outcome:
            return ""
        if not self.lost:
            return self.outcome
        p = self.lost_p_corrected
        against = "" if math.isnan(p) else f", p {p_value(p)}"
        lost = share(self.lost / self.ended, self.lost_low, self.lost_high)
        return f"{self.outcome}: {lost}{against}"

    @cell("p, corrected")
    def of_p(self) -> str:
        """Write the p value."""
        return p_value(self.p_corrected)

    @cell("seeds to decide", optional=True)
    def of_seeds(self) -> str:
        """Write how many seeds would decide the row; nothing where looks are planned."""
        return "" if self.looks > 1 else seeds(self.seeds_low, self.seeds_high)

    @cell("tuned to", optional=True)
    def of_point(self) -> str:
        """Write what was tuned."""
        return self.point

    @cell("over the floor (nats)", optional=True)
    def of_excess(self) -> str:
        """Write the loss above that of the best possible."""
        return number(self.excess_nats, f"+.{self.places}f")

    def _is_in_nats(self) -> bool:
        return self.unit == NATS.name  # else one is the loss, and the other does not compare

    @cell("bits/byte", optional=True)
    def of_bits(self) -> str:
        """Write the loss in bits per byte."""
        return number(self.bits_per_byte, f".{self.places}f") if self._is_in_nats() else ""

    @cell("perplexity", when=_is_in_nats)
    def of_perplexity(self) -> str:
        """Write the perplexity with the decimals of the loss."""
        value = self.perplexity
        if math.isnan(value):
            return "-"
        if not 0 < value < math.inf:
            return f"{value:g}"
        return f"{value:,.{max(0, self.places - math.floor(math.log10(value)))}f}"

    def _has_idle_parameters(self) -> bool:
        return self.active_parameters != self.parameters

    @cell("active", when=_has_idle_parameters)
    def of_active(self) -> str:
        """Write the parameters that a token passes."""
        return f"{self.active_parameters:,}"

    def _is_matched(self) -> bool:
        return abs(self.residual) > 0

    @cell("matched to", when=_is_matched)
    def of_match(self) -> str:
        """Write what matching left of the budget, and what it changed."""
        changed = self.solved.removeprefix("feed-forward ")
        return f"{self.residual:+.2%}" + (f" ({changed})" if changed else "")

    bias: str = column(
        "what is known of a bias of all arms but the baseline, beside a verdict on a difference: "
        "empty where a repeated baseline is equal bit for bit, `not bounded` where there is none "
        "(and whether the word stands after an A/A arm's interval), else `within` an interval",
        default="",
    )
    guard: str = column(
        "in which guarded numbers it is worse, as `worse in NAME`; empty where in none", default=""
    )
    rate: str = column(
        "`one rate for all: not tuned` where it has another optimizer than the baseline, and only "
        "the baseline's learning rate; else empty",
        default="",
    )
    half: str | None = column(
        "what half the length of training said: `same`, `turned` (better for worse), `was` with "
        "another verdict, `undecided`; only where runs have a branch there",
        default=None,
    )
    #: Decimals of losses: as many as the narrowest interval of the table bears out.
    places: int = 3
