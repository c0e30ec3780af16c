"""The comparison of variants with the baseline: quality, cost, learning curves."""

import math
from collections.abc import Mapping, Sequence

from llama_ablate.evidence import written
from llama_ablate.evidence.sequential import spending
from llama_ablate.evidence.written import Estimate, plain
from llama_ablate.findings import effects, power
from llama_ablate.findings.comparison import ComparisonRow
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.findings.rows import DIFFERENCE, cells
from llama_ablate.findings.speeds import Ratio
from llama_ablate.report.picture import (
    BASELINE,
    FIGURES,
    MANY,
    Axis,
    Cast,
    Costs,
    Dot,
    Dots,
    Lines,
    Picture,
    Point,
    Tick,
    cast,
    differ,
    over,
    over_seeds,
    styles,
)
from llama_ablate.report.section import SECTIONS, Section, section, with_half
from llama_ablate.report.tables import size
from llama_ablate.report.warnings import of_text
from llama_ablate.results.plan_document import CONTEXTS, NATS
from llama_ablate.terminal import listed

#: What the combinations of a factorial design are not tested for: its factors are.
_TESTED = (DIFFERENCE, "verdict", "p, corrected", "seeds to decide")
_MANY_CELLS = 20  # of a grid, beyond which they are folded away
_DIFFER = 0.01  # of a cost, within which matching has made it equal


@SECTIONS.register("comparison", every_table=True)
def _comparison_section(frames: Frames) -> Section | None:
    table = frames.table
    compared = with_half(_in_order(table), table)
    is_loss = f"{table.split_name.capitalize()} loss in {table.unit.full}, mean over seeds"
    costs = """Speeds are ratios to the baseline's, above 1 faster, with intervals over processes
        that hold for a whole column at once; state bytes are what one sequence of so many tokens
        keeps, in 16-bit numbers, bytes/token what one further token adds there."""
    if table.plan.has_tokenizers:
        costs += (
            " Speeds are of text; bytes are of tokens, which hold another amount of it in each."
        )
    costs = " ".join([*of_text(table.plan, frames.plan.experiment), costs])
    if effects.factors(table):
        return section(
            "Combinations",
            compared,
            f"""{is_loss}, and what each combination of the factors costs. Each rests on its own few
            runs: the factors above rest on all of them, and are what is tested. {costs}""",
            cells=cells(compared).drop(columns=[*_TESTED], errors="ignore"),
            folded=len(compared) > _MANY_CELLS,
        )
    if frames.plan.experiment.variants.design == "path":
        shown = cells(compared)
        shown["variant"] = [
            row.label if row.baseline or row.role else f"up to {row.label}" for row in compared
        ]
        return section(
            "All steps so far",
            compared,
            f"""{is_loss}, of the model with a step and all before it: the difference is from where
            the path starts, over the n seeds that both finished; what a step alone does stands
            above. Intervals and verdicts are as in a comparison: of all rows at once.
            {_ends(compared)} {costs}""",
            cells=shown,
        )
    margin = frames.plan.experiment.margin
    equivalent = f" equivalent where it lies within {margin} of 0," if margin else ""
    return section(
        "Comparison",
        compared,
        f"""{is_loss}; lower is better. The difference is variant minus baseline over the n seeds
        that both finished: runs of one seed see the same batches and share the initial values of
        all weights that they have in common. All intervals of the table hold at once in 95% of
        tables (Student's t, Bonferroni over the rows; a control's holds alone). The verdict is read
        off the interval:{equivalent} better or worse where it leaves out 0, else inconclusive; the
        corrected p is below 0.05 just where the interval leaves out 0. {_ends(compared)}
        {_looks(frames)} {_expected(frames)} {costs}""",
    )


def _expected(frames: Frames) -> str:
    """Say which half width was to be expected before the first run, and which the rows have."""
    table, margin = frames.table, frames.table.margin
    halves = [row.high - row.difference for row in table.comparison if row.high > row.low]
    if margin is None or table.unit != NATS or not halves or min(halves) == math.inf:
        return ""
    found = power.expect(frames.plan, None, margin)
    low, high = (plain(found[name], 2) for name in ("half_low", "half_high"))
    return f"""Before the first run half an interval of {low} to {high} nats was to be expected; the
        rows have {plain(min(halves), 2)} to {plain(max(halves), 2)}."""


def _ends(rows: Sequence[ComparisonRow]) -> str:
    """Say how rows are judged whose runs, or whose baseline's, were too short or lost."""
    said = ""
    if any(row.too_short for row in rows):
        said += """Too short: a run of the variant or of the baseline ended near or above the loss
            of token frequencies, and still fell; more training decides. """
    if any(row.lost for row in rows):
        said += """Where runs diverged or collapsed, the loss is the mean of those that trained, and
            the difference that of the seeds that both kept: it shows no arm to be better than its
            lost seeds let it be. The share of the lost has an exact interval, and an exact p
            against the baseline's, corrected for the rows: p below 0.05, or all of them and none of
            the baseline's, is the verdict."""
    return said


def _looks(frames: Frames) -> str:
    """Say how seeds come: by looks that were planned, or how many more would decide."""
    experiment = frames.plan.experiment
    if len(experiment.looks) == 1:
        return """Seeds that are added after a look at the results make false verdicts more likely,
        unless they are planned from the start (seeds: {looks: [3, 6, 12]})."""
    shares = experiment.spend or spending(experiment.looks)
    planned = ", ".join(
        f"{share:.0%} at {seeds}" for share, seeds in zip(shares, experiment.looks, strict=True)
    )
    return f"""Seeds come in looks: a variant stops at the first that decides it, so n differs. Each
    look spends a share of the 5%, fixed before the first run ({planned} seeds); a row is pending
    until it is decided or has had its last look."""


@FIGURES.register("effects", every_table=True)
def effects_picture(frames: Frames) -> Picture | None:
    """Show each variant's paired difference in loss from the baseline; left of the line is better.

    The shape is the verdict, the bar the interval that it is read from; thin strokes are seeds.
    Variants with a run that was lost say so. The positive control stands in the table alone: it
    would set the scale.
    """
    table = frames.table
    if effects.factors(table) or effects.steps(table):
        return None
    compared = [row for row in _in_order(table) if not row.baseline and row.role != "positive"]
    title = f"{_against(table)} ({table.unit.name})"
    panel = Dots([_mark(row) for row in compared], Axis(title, at=0), _ticks(table), table.margin)
    return Picture([panel], "comparison", over((row.n for row in compared), rows=True))


def _in_order(table: TableFrames) -> list[ComparisonRow]:
    """Return a table's rows as they are shown: the baseline, the others by loss, then controls.

    The steps of a path stay in their order.
    """
    if table.experiment.variants.design == "path":
        return table.comparison
    by_loss = sorted(table.comparison, key=lambda row: (math.isnan(row.difference), row.difference))
    return sorted(by_loss, key=lambda row: (not row.baseline, bool(row.role)))


def _against(table: TableFrames) -> str:
    return f"loss minus that of {table.plan.baseline.label}"


def _mark(row: ComparisonRow, cost: Mapping[str, Estimate] | None = None) -> Dot:
    return Dot(
        row.label,
        Estimate(row.difference, row.low, row.high),
        str(row.verdict),
        row.outcome if row.of_runs() else "",
        cost=cost or {},
        told={
            "n": row.n,
            "loss": row.loss,
            "interval": row.of_difference(),
            "p": row.p_corrected,
            "parameters": row.parameters,
            "speed": written.number(row.train_speed.ratio, ".2f", "x"),
        },
    )


def _ticks(table: TableFrames) -> list[Tick]:
    """Return each reported run's difference from the baseline's run of the same seed."""
    runs = {(run.variant, run.seed): run.id for run in table.ranked}
    base = table.losses[table.plan.baseline.id]
    return [
        Tick(variant.label, loss - base[seed], seed, runs[variant.id, seed])
        for variant in table.plan.variants
        if not variant.baseline and variant.role != "positive"
        for seed, loss in table.losses[variant.id].items()
        if seed in base
    ]


@FIGURES.register("learning_curves", every_table=True)
def learning_curves_picture(frames: Frames) -> Picture | None:
    """Show validation loss along training, of the first 8,192 tokens, and how variants differ.

    Differences are from the baseline's run of the same seed, below 0 is better. Thick lines are
    means over seeds, thin ones single seeds. A run that did not end ok is drawn as far as it went,
    dotted, and ends in a cross. The positive control is left out of all pictures of losses: it
    would set the scale.
    """
    table, shown = frames.table, cast(frames.table)
    curves = table.curves(shown.all)
    if not curves:
        return None
    ok = [point for point in curves if point.run.outcome == "ok"]
    base = {(p.run.seed, p.read): p.loss for p in ok if p.run.baseline}
    both = [
        (point, point.loss - base[point.run.seed, point.read])
        for point in ok
        if not point.run.baseline and (point.run.seed, point.read) in base
    ]
    ticks = [
        (point.read, Tick(run.label, round(difference, 5), run.seed, run.id))
        for point, difference in both
        if (run := point.run).label in shown.named
    ]
    x, unit = Axis(table.unit.text, "count"), table.unit
    lost = [
        Point(point.run.label, point.read, Estimate(point.loss), part=point.run.outcome)
        for point in curves
        if point.run.outcome != "ok"
    ]
    means = over_seeds((p.run.label, p.read, p.run.seed, p.loss) for p in ok)
    plain = [Point(p.name, p.x, Estimate(p.at.value), p.n) for p in means]
    losses = Lines([*plain, *lost], x, Axis(f"validation loss ({unit.full})"), shown, zoom=True)
    if len({point.read for point, _ in both}) < 2:
        return Picture([losses], "comparison", interactive=False)
    paired = over_seeds((p.run.label, p.read, p.run.seed, value) for p, value in both)
    others = Cast({k: v for k, v in shown.named.items() if v.colour != BASELINE}, shown.thin)
    y = Axis(f"validation {_against(table)} ({unit.name})", at=0)
    differences = Lines(paired, x, y, others, ticks, zoom=True)
    return Picture([differences, losses], "comparison", f"Differences: {over(p.n for p in paired)}")


@FIGURES.register("costs", every_table=True)
def costs_picture(frames: Frames) -> Picture | None:
    """Show the difference in loss from the baseline against what a variant costs.

    Below the line is better, to the left is cheaper, with the interval of the difference and that
    of a measured cost. On the page a stepped line joins the variants that nothing beats in both
    mean loss and cost (the Pareto frontier). A cost that is that of all is left out.
    """
    table, shown = frames.table, cast(frames.table)
    known = [row for row in table.comparison if row.label in shown.all and row.role != "positive"]
    lost = [row.label for row in known if math.isnan(row.difference)]
    known = [row for row in known if not math.isnan(row.difference)]
    each = {row.label: _costs(row) for row in known}
    axes = {
        name: axis
        for name, axis in _cost_axes(table.comparison[0]).items()
        if differ([of[name].value for of in each.values()], _DIFFER)
    }
    if len(known) < 2 or not axes:
        return None
    y = Axis(f"{_against(table)} ({table.unit.name})", at=0)
    marks = [_mark(row, each[row.label]) for row in known]
    without = f"without a loss: {listed(lost)}" if lost else ""
    others = [row.n for row in known if not row.baseline]
    panel = Costs(marks, axes, y, shown, without)
    return Picture([panel], "comparison", over(others, rows=True), columns=2)


def _cost_axes(row: ComparisonRow) -> dict[str, Axis]:
    """Return the axis of each cost of a variant, of which less is better."""
    state = "bytes of the state of one sequence of {:,} tokens"
    further = f"bytes that one token adds to a state of {row.context:,}"
    return {
        "train_time": Axis("training time, multiple of the baseline's"),
        "state_bytes": Axis(state.format(row.context), "bytes", whole=True),
        "asked_state_bytes": Axis(state.format(row.asked_context or 0), "bytes", whole=True),
        "decode_time": Axis("decoding time, multiple of the baseline's"),
        "parameters": Axis("parameters", "count"),
        "active_parameters": Axis("parameters that a token passes", "count"),
        "flops_per_token": Axis("FLOPs of a forward pass per token", "count"),
        "kv_bytes_per_token": Axis(further, "bytes", whole=True),
        "peak_memory_bytes": Axis("peak memory in training, bytes", "bytes"),
    }


def _costs(row: ComparisonRow) -> dict[str, Estimate]:
    """Return the costs of a variant; speeds are times, as multiples of the baseline's."""
    return {
        "train_time": _time(row.train_speed),
        "decode_time": _time(row.decode_speed),
        "state_bytes": Estimate(row.state_bytes),
        "asked_state_bytes": Estimate(row.asked_state_bytes),
        "parameters": Estimate(row.parameters),
        "active_parameters": Estimate(row.active_parameters),
        "flops_per_token": Estimate(row.flops_per_token),
        "kv_bytes_per_token": Estimate(row.kv_bytes_per_token),
        "peak_memory_bytes": Estimate(row.peak_memory_bytes),
    }


def _time(speed: Ratio) -> Estimate:
    """Return a ratio of speeds as one of times."""
    return Estimate(1 / speed.ratio, 1 / speed.high, 1 / speed.low)


@FIGURES.register("cache_growth")
def cache_growth_picture(frames: Frames) -> Picture | None:
    """Show the bytes of the state against the context; variants with equal states share a line.

    Keys and values grow with every token, those of a window until it is full, a recurrence does
    not. Computed in closed form, which `kv_cache` checks on live tensors. None where all are equal.
    """
    groups: dict[tuple[int, ...], list[str]] = {}
    for variant in frames.table.plan.variants:
        if growth := variant.state_growth:
            groups.setdefault(tuple(growth[n] for n in CONTEXTS), []).append(variant.label)
    if len(groups) < 2:
        return None
    ordered = sorted(groups.items(), key=lambda group: group[0][-1])
    left = len(ordered) - MANY
    if left > 0:
        ordered = ordered[: MANY // 2] + ordered[-MANY // 2 :]
    named = {
        f"{size(sizes[-1])} at {CONTEXTS[-1]:,}: {listed(labels, 4)}": sizes
        for sizes, labels in ordered
    }
    drawn = [
        Point(name, n, Estimate(of))
        for name, sizes in named.items()
        for n, of in zip(CONTEXTS, sizes, strict=True)
    ]
    x = Axis("context (tokens)", "count", log=True)
    y = Axis("state of one sequence (16-bit)", "bytes", log=True)
    more = f"{left:,} of {len(groups):,} sizes are left out: drawn are the ends" * (left > 0)
    panel = Lines(drawn, x, y, Cast(styles(named)), remark=more)
    return Picture([panel], "comparison", interactive=False)
