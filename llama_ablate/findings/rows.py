"""Rows of tables: frozen dataclasses, whose fields and cells say how every rendering shows them.

A field made by `column` is a column of the table as data: of its data frame, its CSV and
`docs/python.md`. With a `head` it is a column of the table as people read it too, on the page, in
Markdown, LaTeX and terminals; `cell` makes one of a method, for what is written of several fields.
Columns stand in the order of the class, those that lead before the others.
"""

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from functools import cached_property
from string import Formatter
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from llama_ablate.evidence.medians import Turns
from llama_ablate.evidence.written import interval, number, p_value, pace, seeds, share
from llama_ablate.results.plan_document import NATS
from llama_ablate.results.record import Coordinate

if TYPE_CHECKING:
    import pandas as pd

Method = TypeVar("Method", bound=Callable[..., str])
Filled = TypeVar("Filled", bound="Row")
Thing = TypeVar("Thing")
Key = TypeVar("Key", bound=Hashable)
_NO_DEFAULT: Any = MISSING
#: What is written of a difference: its intervals hold for all rows of a table at once.
DIFFERENCE = "difference [95%]"
_NOTHING = ("", "-")  # cells that show nothing
_KEY, _KEYS = "column", "keys"
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
    default: Thing = _NO_DEFAULT,
) -> Thing:
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
    """Declare that a method writes a column of the table that people read (a decorator).

    What it holds is what the method's docstring says that it writes.
    """
    stated = Column("", head, "", leading, optional, when)

    def enter(method: Method) -> Method:
        about = " ".join((method.__doc__ or "").split()).removeprefix("Write ").rstrip(".")
        vars(method)[_KEY] = replace(stated, about=about)
        return method

    return enter


def keys() -> dict[str, Key]:
    """Declare a field whose keys are columns: numbers by their names, or coordinates."""
    return field(default_factory=dict, metadata={_KEYS: True}, kw_only=True)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table: of the variant of its `label` or `variant`, where it is about one."""


def columns(kind: type[Row]) -> dict[str, str]:
    """Return what the columns of a table as data hold, by their names."""
    return {one.name: one.metadata[_KEY].about for one in fields(kind) if _KEY in one.metadata}


def shared(kind: type[Row], other: object) -> dict[str, Any]:
    """Return those columns of a kind of row that another row, or an interval, has too, by name."""
    return {name: getattr(other, name) for name in columns(kind) if hasattr(other, name)}


def means(kind: type[Row]) -> list[str]:
    """Return the columns that are means over runs of the numbers of their names: of default NaN."""
    named = [(one.name, one.default) for one in fields(kind) if _KEY in one.metadata]
    return [name for name, value in named if isinstance(value, float) and math.isnan(value)]


def filled(row: Filled, known: Mapping[str, float]) -> Filled:
    """Return a row with its columns that are found by name (`means`), of those that are known."""
    found: dict[str, Any] = {name: known[name] for name in means(type(row)) if name in known}
    return replace(row, **found)


def frame(rows: Sequence[Row], kind: type[Row] = Row) -> "pd.DataFrame":
    """Return rows as a data frame; of none, an empty one with the columns of a `kind` of row.

    A column that is None in all rows is left out. A named tuple has a column for each of its
    fields: the first one's is called as the tuple. Of `keys` each is a column: one that is called
    as another column is has an underscore behind its name.
    """
    import pandas as pd  # what only counts runs starts without it

    known: dict[str, list[object]] = {}
    kind = type(rows[0]) if rows else kind
    for one in fields(kind):
        if one.metadata.get(_KEYS):
            each: list[Mapping[str, object]] = [getattr(row, one.name) for row in rows]
            unlike = {id(own): own for own in each}.values()  # rows share theirs
            for key in dict.fromkeys(key for own in unlike for key in own):
                name = f"{key}_" if key in columns(kind) else key
                known[name] = [own.get(key, math.nan) for own in each]
        elif _KEY in one.metadata:
            values = [getattr(row, one.name) for row in rows]
            if rows and isinstance(values[0], tuple):
                _, *ends = getattr(values[0], "_fields")  # noqa: B009 - of a named tuple
                parts = [one.name, *(f"{one.name}_{end}" for end in ends)]
                known |= dict(zip(parts, map(list, zip(*values, strict=True)), strict=True))
            elif not rows or any(value is not None for value in values):
                known[one.name] = values
    with pd.option_context("mode.string_storage", "python"):  # equal texts are then one object
        return pd.DataFrame(known)


def grouped(things: Iterable[Thing], key: Callable[[Thing], Key]) -> dict[Key, list[Thing]]:
    """Return things by a key, in the order in which each key comes first."""
    groups: dict[Key, list[Thing]] = {}
    for one in things:
        groups.setdefault(key(one), []).append(one)
    return groups


def mean(values: Iterable[float]) -> float:
    """Return the mean of those numbers that are not missing; NaN of none."""
    known = np.array([*values], float)
    count = np.count_nonzero(~np.isnan(known))
    return float(np.nansum(known) / count) if count else math.nan


def cells(rows: Sequence[Row], kind: type[Row] = Row) -> "pd.DataFrame":
    """Return rows with their numbers written as people read them, the leading columns first."""
    import pandas as pd

    shown: list[tuple[bool, str, list[str]]] = []
    for name, stated in _shown(rows, kind).items():
        written = [_written(getattr(row, name), stated.form) for row in rows]
        if not stated.optional or any(text not in _NOTHING for text in written):
            shown.append((not stated.leading, _head(stated, rows), written))
    return pd.DataFrame({head: written for _, head, written in sorted(shown, key=lambda s: s[0])})


def leading(rows: Sequence[Row]) -> list[str]:
    """Return the heads of the columns that lead the others."""
    return [_head(one, rows) for one in _shown(rows).values() if one.leading]


def explained(rows: Sequence[Row]) -> dict[str, str]:
    """Return what the columns that people read hold, by their heads."""
    return {_head(one, rows): one.about for one in _shown(rows).values()}


def _shown(rows: Sequence[Row], kind: type[Row] = Row) -> dict[str, Column]:
    """Return the columns that people read by the field or method that writes each, in order."""
    kind = type(rows[0]) if rows else kind
    stated = {one.name: one.metadata.get(_KEY) for one in fields(kind)}
    stated |= {name: vars(of).get(_KEY) for name, of in vars(kind).items() if callable(of)}
    found = {
        name: one
        for name, one in stated.items()
        if one and one.head and (one.when is None or any(map(one.when, rows)))
    }
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


@dataclass(frozen=True, slots=True, eq=False)
class RunRow(Row):
    """A planned run: how it ended, as it counts beside the others of its seed, and its numbers."""

    label: str = column("label of the variant")
    variant: str = column("hash of the variant's architecture and train config")
    seed: int = column("seed of the run")
    id: str = column("id of the run: a hash of all that it depends on. Tables may share a run")
    point: str = column("what was tuned, as `lr 0.001`; empty where nothing is", default="")
    chosen: bool = column(
        "whether the run is one of those that the comparison reports", default=True
    )
    outcome: str = column(
        "`ok`, `diverged`, `collapsed`, `oom`, `timeout`, `error`, or `pending`; as it counts "
        "beside the other runs of its seed",
        default="pending",
    )
    reason: str = column("why it did not end `ok`, or why it was too short; else empty", default="")
    baseline: bool = column("whether it is a run of the baseline", default=False)
    role: str = column("`aa` or `positive` for a run of a control, else empty", default="")
    race: bool = column("whether it only chose a tuned point, and is never reported", default=False)
    # With NaN as its default a column is the number of its name, for those who read frames.
    loss: float = column(
        "loss on the split that the comparison reports, in the unit of the table", default=math.nan
    )
    steps_done: float = column("optimizer steps that it took")
    train_s: float = column("seconds of training, without evaluation", default=math.nan)
    peak_memory_bytes: float = column("most memory that the run held", default=math.nan)
    too_short: bool = column(
        "whether it ended near or above the loss of token frequencies, and still fell",
        default=False,
    )
    #: Every number that was measured of it, by name; NaN where only other runs of its table have
    #: one. Of how it ended, 1 for `diverged` and `collapsed`, else 0.
    numbers: Mapping[str, float] = keys()
    #: What was tuned, as JSON, and whether that is the point that its variant is reported at.
    tuned: str = field(default="{}", kw_only=True)
    best: bool = field(default=True, kw_only=True)
    #: Whether it is needed by now, and whether it may yet be.
    needed: bool = field(default=True, kw_only=True)
    possible: bool = field(default=True, kw_only=True)

    def number(self, name: str) -> float:
        """Return a number of its; NaN where that was not measured."""
        return self.numbers.get(name, math.nan)

    @property
    def ended(self) -> str:
        """How it ended in words: its outcome, or `too short`."""
        return "too short" if self.too_short else self.outcome


def mean_number(runs: Iterable[RunRow], name: str) -> float:
    """Return the mean of a number over the runs that have it; NaN where none has."""
    return mean(run.number(name) for run in runs)


def has_number(runs: Iterable[RunRow], name: str) -> bool:
    """Return whether a number of that name was measured of any of some runs."""
    return any(name in run.numbers for run in runs)


@dataclass(frozen=True, slots=True, eq=False)
class AttemptRow(Row):
    """A metric that was tried on a run, or on a variant (then `run` is empty)."""

    table: str = column("name of the table", default="")
    variant: str = column("hash of the variant")
    label: str = column("label of the variant")
    run: str = column("id of the run")
    seed: float = column("seed of the run; missing for what was tried on a variant")
    metric: str = column("name of the metric")
    error: str = column("why it failed; else empty")


@dataclass(frozen=True, slots=True, eq=False)
class MetricRow(Row):
    """A measured value, of a run or of a variant (then `run` is empty)."""

    table: str = column("name of the table; empty where the experiment has one alone", default="")
    variant: str = column("hash of the variant's architecture and train config")
    label: str = column("label of the variant")
    run: str = column(
        "id of the run; empty for what was measured of a variant, such as a speed", default=""
    )
    seed: float = column(
        "seed of the run; missing for what was measured of a variant", default=math.nan
    )
    metric: str = column("name of the metric, as in `measure:`")
    name: str = column("name of the number")
    quantity: str = column("what kind of number it is, as `loss` or `decode_speed`")
    unit: str = column("unit of the value", default="")
    value: float = column("the number")
    #: Where it was measured; shared by the rows that are equal in it.
    coordinates: Mapping[str, Coordinate] = keys()
    #: The values by document or by round of an interleaved pass, if any.
    samples: Sequence[float] = field(default=(), kw_only=True)
    #: Of a variant, those of each process.
    by_process: Turns = field(default=(), kw_only=True)

    @property
    def ends(self) -> tuple[float, float]:
        """The lowest and the highest of what the value stands for."""
        samples = self.samples or (self.value,)
        return min(samples), max(samples)


class MeasuredValues(tuple[MetricRow, ...]):  # noqa: SLOT001 - what is made of them is kept
    """The measured values of a table, of runs and of variants."""

    @cached_property
    def named(self) -> Mapping[str, Sequence[MetricRow]]:
        """The values by the name of the number."""
        return grouped(self, lambda row: row.name)

    @cached_property
    def of_variants(self) -> Sequence[MetricRow]:
        """The values of variants."""
        return [row for row in self if not row.run]


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
    low: float = column("lower end of its interval, which holds for all rows at once")
    high: float = column("upper end of its interval")
    verdict: str = column(
        "`better`, `worse`, `equivalent`, `inconclusive`, `no verdict` (failing control, no loss), "
        "`too short`, `diverged`, `collapsed`, `failed`, `pending`; of the baseline `baseline`, of "
        "the baseline repeated `equal`"
    )

    @cell("loss ({unit})", leading=True)
    def of_loss(self) -> str:
        """Write the mean loss, and of how many where runs were lost; of a control both losses."""
        form, trained = f".{self.places}f", self.ended - self.lost
        told = f" (mean of the {trained} that trained)" if self.lost and trained else ""
        if self.verdict == "equal":  # its seeds may be fewer than the baseline's
            told = f" (baseline {number(self.loss - self.difference, form)})"
        return number(self.loss, form) + told

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
    flops_per_token: float = column("forward FLOPs per token at the training context")
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

    context: int = column("training context of the experiment, in tokens")
    kv_bytes_per_token: float = column(
        "bytes that one further token adds to the state at the training context, 16-bit: 0 where a "
        "window is full",
        "bytes/token at {context:,}",
        ",.0f",
    )
    state_bytes: float = column(
        "bytes of the state of one sequence of the training context, 16-bit",
        "state bytes at {context:,}",
        ",.0f",
        leading=True,
        optional=True,
    )
    asked_context: int | None = column("context of `kv_cache`, or of `match_context`")
    asked_state_bytes: float = column(
        "bytes of the state of one sequence of that context, 16-bit",
        "state bytes at {asked_context:,}",
        ",.0f",
        leading=True,
        when=lambda row: row.asked_context is not None,
    )
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

    @cell("active", when=lambda row: row.active_parameters != row.parameters)
    def of_active(self) -> str:
        """Write the parameters that a token passes."""
        return f"{self.active_parameters:,}"

    @cell("matched to", when=lambda row: abs(row.residual) > 0)
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
    epochs: float | None = column(
        "passes over its most repeated source", "epochs", ".2f", optional=True, default=None
    )
    #: Decimals of losses: as many as the narrowest interval of the table bears out.
    places: int = 3
