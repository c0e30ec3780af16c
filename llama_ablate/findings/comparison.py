"""Comparison of a table's variants with its baseline: paired differences, verdicts, costs."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from llama_ablate.evidence import Difference, Standing, Verdict, measure_pairing, seeds_to_decide
from llama_ablate.evidence.intervals import ALPHA
from llama_ablate.evidence.rates import fisher, share
from llama_ablate.evidence.written import decimals, interval, number, p_value, seeds
from llama_ablate.evidence.written import share as write_share
from llama_ablate.findings import tuning
from llama_ablate.findings.compare import NO_DIFFERENCE, RowFamily, compare_all
from llama_ablate.findings.paired_table import PairedTable
from llama_ablate.findings.rows import (
    ENDS,
    DifferenceRow,
    cell,
    column,
    filled,
    grouped,
    means,
)
from llama_ablate.findings.secondary import SecondaryRow
from llama_ablate.findings.speeds import UNMEASURED, Ratio, Speeds, find_peak, find_speeds
from llama_ablate.findings.values import (
    UNSTABLE,
    RunRow,
    has_number,
    mean_number,
)
from llama_ablate.results import FINAL
from llama_ablate.results.plan_document import NATS, PlannedVariant
from llama_ablate.terminal import plural


@dataclass(frozen=True)
class ComparisonRow(DifferenceRow):
    """Table row for a variant compared with the baseline: quality, size, speed, memory."""

    ORDER = (
        *("label", "baseline", "role", "n", "loss", "show_loss", *ENDS, "verdict", "show_verdict"),
        *("show_half", "show_rate"),
        *(
            "parameters",
            "train_speed",
            "show_train_speed",
            "mfu",
            "decode_speed",
            "show_decode_speed",
        ),
        *("kv_bytes_per_token", "state_bytes"),
        *(
            "asked_state_bytes",
            "show_runs",
            "show_p",
            "show_seeds",
            "point",
            "show_excess",
            "show_bits",
        ),
        *("show_perplexity", "show_active", "show_match", "epochs"),
    )

    label: str = column("label of the variant", "variant", leading=True)
    baseline: bool = column("whether it is the baseline")
    role: str = column("`aa` or `positive` for a control, else empty")
    point: str = column(
        "tuned values, as `lr 0.001`; empty without tuning", "tuned to", optional=True
    )
    outcome: str = column("counts of the outcomes of its reported runs")
    unit: str = column(
        "unit of losses and differences: `nats` per token, or `bits/byte` if tokenizers differ"
    )
    n: int = column(
        "number of seeds that it shares with the baseline",
        "n",
        leading=True,
    )
    loss: float = column("mean loss over its reported runs that ended `ok`")
    sd: float = column("standard deviation of the loss over seeds")
    verdict: str = column(
        "`better`, `worse`, `equivalent`, `inconclusive`, `no verdict` (no loss), `too short`, "
        "`diverged`, `collapsed`, `failed`, `pending`; `equal` of a repeated baseline, `baseline`"
    )
    p_corrected: float = column("two-sided p value, corrected for the number of rows (Bonferroni)")
    alpha: float = column("error level of the row's interval")
    df: float = column("degrees of freedom of the standard error")
    seed_se: float = column("standard error of the difference over seeds")
    text_se: float = column("standard error of the difference over held-out texts")
    pooled: bool = column("whether its variance over seeds is moderated by other rows")
    seeds_low: float = column("fewest seeds that decide an inconclusive row with a power of 0.8")
    correlation: float = column(
        "correlation over seeds with the baseline; missing below five pairs"
    )
    pairing_saves: float = column(
        "how many times more runs an unpaired design would need; missing below five pairs"
    )
    ended: int = column("number of its reported runs that have finished")
    too_short: int = column("number of these that were too short")
    lost: int = column("number of these that diverged or collapsed")
    lost_low: float = column("lower end of the 95% interval of their share (Clopper and Pearson)")
    lost_high: float = column("upper end of this interval")
    lost_p_corrected: float = column(
        "p of their share against the baseline's (Fisher's exact test), corrected for the rows"
    )
    look: float = column("planned look of the row")
    looks: int = column("number of planned looks")
    finished: int = column("runs that ended `ok`, `diverged` or `collapsed`, at every tuned point")
    diverged: int = column("number of these that diverged")
    collapsed: int = column("number of these that collapsed")
    # A column with the default NaN is the mean over the reported runs of the number with the
    # column's name, on the reported split if the number belongs to a split.
    perplexity: float = column("mean perplexity", default=math.nan)
    bits_per_byte: float = column("mean loss in bits per byte of text", default=math.nan)
    excess_nats: float = column(
        "mean loss above the lowest possible, if that is known",
        default=math.nan,
    )
    parameters: int = column("trained parameters", "parameters", ",", leading=True)
    active_parameters: int = column("parameters that a token passes")
    non_embedding: int = column("parameters without those of tokens and learned positions")
    residual: float = column("deviation from the matched budget, as a share")
    solved: str = column("what matching changed, as `feed-forward width 176`")
    flops_per_token: float = column("forward FLOPs per token at the training context")
    train_tokens_per_s: float = column("tokens per second of training")
    train_speed: Ratio = column(
        "training speed over the baseline's in the same turns, and its interval"
    )
    mfu: float = column(
        "training FLOP/s as a share of the device's peak; only of known devices",
        "MFU",
        ".1%",
        optional=True,
    )
    decode_tokens_per_s: float = column("tokens per second of decoding, with the cache")
    decode_speed: Ratio = column(
        "decode speed over the baseline's in the same turns, and its interval"
    )
    context: int = column("training context of the experiment, in tokens")
    kv_bytes_per_token: float = column(
        "bytes that one further token adds to the state at the training context, 16-bit",
        "bytes/token at {context:,}",
        ",.0f",
    )
    state_bytes: float = column(
        "bytes of one sequence's state at the training context, 16-bit",
        "state bytes at {context:,}",
        ",.0f",
        leading=True,
        optional=True,
    )
    asked_context: int | None = column("context of `kv_cache`, or of `match_context`")
    asked_state_bytes: float = column(
        "bytes of one sequence's state at that context, 16-bit",
        "state bytes at {asked_context:,}",
        ",.0f",
        leading=True,
        when=lambda row: row.asked_context is not None,
    )
    peak_memory_bytes: float = column(
        "peak memory of training, the mean over its runs", default=math.nan
    )
    guard: str = column(
        "`worse in NAME`, for guarded metrics in which it is worse; or empty", default=""
    )
    rate: str = column(
        "`one rate for all: not tuned` if its optimizer is not the baseline's; or empty",
        default="",
    )
    half: str | None = column(
        "verdict at half the length: `same`, `turned`, `was` another one, or `undecided`",
        default=None,
    )
    epochs: float | None = column(
        "passes over its most repeated source", "epochs", ".2f", optional=True, default=None
    )
    #: Number of decimals of losses: as many as the narrowest interval of the table justifies.
    places: int = 3

    @cell("loss ({unit})", leading=True)
    def show_loss(self) -> str:
        """Write the mean loss; if runs are missing, with the number of averaged runs."""
        form, trained = f".{self.places}f", self.ended - self.lost
        remark = f" (mean of the {trained} that trained)" if self.lost and trained else ""
        if self.verdict == "equal":  # its seeds may be fewer than the baseline's
            remark = f" ({self.n} {plural(self.n, 'seed')})"
        return number(self.loss, form) + remark

    @cell("difference [95%]", leading=True)
    def show_difference(self) -> str:
        """Write the difference with its interval."""
        return "" if self.baseline else interval(self.difference, self.low, self.high)

    @cell("verdict", leading=True)
    def show_verdict(self) -> str:
        """Write the verdict, with the guarded metrics in which a better variant is worse."""
        guarded = self.verdict == "better" and self.guard
        return f"{self.verdict}, {self.guard}" if guarded else self.verdict

    @cell("speed", leading=True, optional=True)
    def show_train_speed(self) -> str:
        """Write the training speed ratio: `*` if its interval excludes 1, `~` without interval."""
        return self._speed(self.train_speed)

    @cell("decode speed", optional=True)
    def show_decode_speed(self) -> str:
        """Write the decode speed ratio: `*` if its interval excludes 1, `~` without interval."""
        return self._speed(self.decode_speed)

    def _speed(self, ratio: Ratio) -> str:
        if math.isnan(ratio.ratio):
            return ""
        return str(ratio) if ratio.turns or self.baseline else f"~{ratio}"

    @cell("at half the length", leading=True, optional=True)
    def show_half(self) -> str:
        """Write how the verdict at half the training length compares with the final verdict."""
        return self.half or ""

    @cell("learning rate", leading=True, optional=True)
    def show_rate(self) -> str:
        """Write a warning if two optimizers were compared at a single learning rate."""
        return self.rate

    @cell("runs", optional=True)
    def show_runs(self) -> str:
        """Write the runs' outcomes with the share of lost runs; empty if all are `ok`."""
        if self.outcome.endswith(" ok") and "," not in self.outcome:
            return ""
        if not self.lost:
            return self.outcome
        p = self.lost_p_corrected
        against = "" if math.isnan(p) else f", p {p_value(p)}"
        lost = write_share(self.lost / self.ended, self.lost_low, self.lost_high)
        return f"{self.outcome}: {lost}{against}"

    @cell("p, corrected")
    def show_p(self) -> str:
        """Write the p value."""
        return p_value(self.p_corrected)

    @cell("seeds to decide", optional=True)
    def show_seeds(self) -> str:
        """Write the number of seeds needed for a verdict; empty with several looks."""
        return "" if self.looks > 1 else seeds(self.seeds_low)

    @cell("over the floor (nats)", optional=True)
    def show_excess(self) -> str:
        """Write the loss minus the text's floor, the lowest possible loss, if known."""
        return number(self.excess_nats, f"+.{self.places}f")

    def _is_in_nats(self) -> bool:
        return self.unit == NATS.name  # else the loss is bits/byte, and perplexity is incomparable

    @cell("bits/byte", optional=True)
    def show_bits(self) -> str:
        """Write the loss in bits per byte."""
        return number(self.bits_per_byte, f".{self.places}f") if self._is_in_nats() else ""

    @cell("perplexity", when=_is_in_nats)
    def show_perplexity(self) -> str:
        """Write the perplexity with the decimals of the loss."""
        value = self.perplexity
        if math.isnan(value):
            return "-"
        if not 0 < value < math.inf:
            return f"{value:g}"
        return f"{value:,.{max(0, self.places - math.floor(math.log10(value)))}f}"

    @cell("active", when=lambda row: row.active_parameters != row.parameters)
    def show_active(self) -> str:
        """Write the number of parameters that a token uses."""
        return f"{self.active_parameters:,}"

    @cell("matched to", when=lambda row: abs(row.residual) > 0)
    def show_match(self) -> str:
        """Write the deviation from the matched budget, and the width (or other size) solved for."""
        changed = self.solved.removeprefix("feed-forward ")
        return f"{self.residual:+.2%}" + (f" ({changed})" if changed else "")


def differences(
    table: PairedTable,
    seeds: Mapping[str, Collection[int]],
    shares: Mapping[str, float],
) -> dict[str, Difference]:
    """Compare each variant's loss with the baseline's; return differences by variant id.

    `seeds` lists the seeds to include for each variant id, by default all. `shares` holds the
    fraction of the error level that each variant's interval uses, by default 1. The intervals are
    simultaneous over all planned variants of the table. A control (a variant with a `role`) cannot
    be the best variant, and therefore forms a family of its own.
    """
    base = table.plan.baseline.id
    others = [variant for variant in table.plan.variants if not variant.baseline]
    families = [[v for v in others if not v.role], *([v] for v in others if v.role)]
    by_variant: dict[str, Difference] = {}
    for group in families:
        family = RowFamily([(variant.id, base) for variant in group], seeds=seeds, shares=shares)
        rows = compare_all(table, table.loss, family)
        by_variant |= {variant: row for (variant, _), row in rows.items()}
    return by_variant


def compare_variants(table: PairedTable, guards: Sequence[SecondaryRow]) -> list[ComparisonRow]:
    """Return one row for each variant: quality, paired difference, size, speed and memory.

    A variant is `pending` until the runs for its next look (interim analysis) have ended. Missing
    measurements are NaN. A variant without an `ok` run has a row too.
    """
    runs_of = grouped(table.runs, lambda run: run.variant)
    speeds = find_speeds(table)
    base_outcomes = {run.outcome for run in runs_of.get(table.plan.baseline.id, ())}
    broken, peak = _broken_guards(guards), find_peak(table.machines)
    rows = []
    for variant in table.plan.variants:
        runs = runs_of.get(variant.id, [])
        row = _row(table, variant, runs, base_outcomes, broken, speeds, peak)
        ok = [run for run in runs if run.is_reported and run.outcome == "ok"]
        numbers = {name: _mean(ok, table.split, name) for name in means(ComparisonRow)}
        rows.append(filled(row, numbers))
    return _with_decimals(rows)


def _row(
    table: PairedTable,
    variant: PlannedVariant,
    runs: Sequence[RunRow],
    of_base: set[str],
    broken: Mapping[str, str],
    speeds: tuple[Speeds, Speeds],
    peak: float,
) -> ComparisonRow:
    plan, experiment, id_ = table.plan, table.experiment, variant.id
    at, base = table.standings.get(id_), plan.baseline.id
    row = at.row if at else NO_DIFFERENCE
    interval, reported = row.interval, [run for run in runs if run.is_reported]
    counts = Counter(run.outcome for run in runs)
    losses = [*table.losses[id_].values()]
    pairs = table.pair(table.loss, id_, base)
    pairing = measure_pairing([*pairs.own.values()], [*pairs.other.values()])
    word = _verdict(table, at, {*counts}, of_base)
    if id_ in plan.repeated and interval.mean == interval.low == interval.high == 0:
        word = "equal"
    # The seeds needed are known only for rows without lost runs.
    is_open = word == "inconclusive" and not row.own.lost + row.other.lost
    fewest = seeds_to_decide(interval, table.equivalence) if is_open else None
    ended = row.own if at else table.ended_of(id_)
    train, decode = (of.get(id_, UNMEASURED) for of in speeds)
    contexts = experiment.state_contexts
    context = contexts[1] if len(contexts) > 1 else None
    lost_low, lost_high = share(ended.lost, ended.runs) if ended.runs else (math.nan, math.nan)
    return ComparisonRow(
        label=variant.label,
        baseline=variant.baseline,
        role=variant.role,
        point=reported[0].point if reported else "",
        outcome=count_outcomes(run.ended for run in reported),
        unit=table.unit.name,
        n=interval.n if at else len(losses),
        loss=float(np.mean(losses)) if losses else math.nan,
        sd=float(np.std(losses, ddof=1)) if len(losses) > 1 else math.nan,
        difference=interval.mean if at else 0.0,
        low=interval.low,
        high=interval.high,
        verdict=word,
        p_corrected=interval.p,
        alpha=interval.alpha,
        df=interval.df,
        seed_se=interval.seed_se,
        text_se=interval.text_se if at else math.nan,
        pooled=interval.pooled,
        seeds_low=math.nan if fewest is None else fewest,
        correlation=pairing.correlation if at else math.nan,
        pairing_saves=pairing.saved if at else math.nan,
        ended=ended.runs,
        too_short=ended.too_short,
        lost=ended.lost,
        lost_low=lost_low,
        lost_high=lost_high,
        lost_p_corrected=_p_of_lost(row),
        look=float(at.look + 1) if at else math.nan,
        looks=len(experiment.looks),
        finished=sum(counts[end] for end in FINAL),
        diverged=counts["diverged"],
        collapsed=counts["collapsed"],
        parameters=variant.parameters,
        active_parameters=variant.active,
        non_embedding=variant.non_embedding,
        residual=variant.residual,
        solved=variant.solved,
        flops_per_token=_to_float(variant.flops_per_token),
        train_tokens_per_s=train[0],
        train_speed=train[1],
        mfu=train[0] * variant.flops / peak,
        decode_tokens_per_s=decode[0],
        decode_speed=decode[1],
        context=contexts[0],
        kv_bytes_per_token=_to_float(variant.kv_bytes_per_token),
        state_bytes=_to_float(variant.state_bytes),
        asked_context=context,
        asked_state_bytes=_to_float(variant.state_growth.get(context or 0)),
        guard=broken.get(variant.label, ""),
        rate=tuning.one_rate(plan, experiment, variant, plan.baseline),
        epochs=plan.passes(variant) if table.mixes else None,
    )


def _broken_guards(guards: Sequence[SecondaryRow]) -> dict[str, str]:
    """Describe the guards that each variant breaks, as in `worse in test_accuracy`, by label.

    A guard is a metric in which no variant may be worse than the baseline by more than a limit.
    """
    worse = grouped((row for row in guards if row.result == "worse"), lambda row: row.label)
    return {
        label: f"worse in {', '.join(r.measure for r in guards)}" for label, guards in worse.items()
    }


def _to_float(count: int | None) -> float:
    return math.nan if count is None else count


def _with_decimals(rows: Sequence[ComparisonRow]) -> list[ComparisonRow]:
    """Set the number of decimals of all losses, as the narrowest interval justifies."""
    digits = [decimals(row.low, row.high) for row in rows if row.high > row.low]
    places = max(digits, default=decimals(math.nan, math.nan))
    return [replace(row, places=places) for row in rows]


def count_outcomes(values: Iterable[str]) -> str:
    """Format the counts of run outcomes: `3 ok`, or `2 ok, 1 diverged`."""
    counts = Counter(values)
    order = sorted(counts, key=lambda outcome: (outcome != "ok", outcome))
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in order)


def _verdict(
    table: PairedTable, at: Standing[Difference] | None, every: set[str], of_base: set[str]
) -> Verdict:
    """Return a variant's verdict, or `failed` or `pending` without a pair of finished runs.

    `at` is the variant's last look with the difference there, or None for the baseline. `every` is
    the set of outcomes of all the variant's runs, `of_base` the set of outcomes of all the
    baseline's runs.
    """
    if at is None:
        return "baseline"
    word, paired = at.row.judged(table.equivalence), at.row.interval.n
    if word in UNSTABLE and not at.is_open:
        return word
    if not paired and every - {*FINAL, "pending"}:
        return "failed"
    if at.is_open or (not paired and (every | of_base) - {*FINAL}):
        return "pending"
    # Without a pair and without lost runs, no loss was measured.
    is_measured = paired or at.row.own.lost + at.row.other.lost
    return "no verdict" if word == "inconclusive" and not is_measured else word


def _p_of_lost(row: Difference) -> float:
    """Compute the p value of a difference between two variants' shares of lost runs.

    A lost run diverged or collapsed. The p value is corrected for the table's rows and looks.
    """
    variant_ended, other = row.own, row.other
    if not ((variant_ended.lost or other.lost) and variant_ended.runs and other.runs):
        return math.nan
    rows = ALPHA / row.interval.alpha  # rows and looks that share the error
    return min(
        1.0, rows * fisher((variant_ended.lost, variant_ended.runs), (other.lost, other.runs))
    )


def _mean(runs: Sequence[RunRow], split: str, name: str) -> float:
    """Compute the mean of a metric over runs; NaN if no run has a value.

    If any run has the number `{split}_{name}`, this number is averaged, otherwise the number
    `name`.
    """
    split_name = f"{split}_{name}"
    chosen = split_name if has_number(runs, split_name) else name
    return mean_number(runs, chosen)
