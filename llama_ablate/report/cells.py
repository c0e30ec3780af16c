"""Cells of the report's tables: data frames with their numbers written as people read them."""

import math
from typing import Any

import pandas as pd

from llama_ablate.evidence.written import decimals, interval, number, plain, times
from llama_ablate.findings.frames import rows
from llama_ablate.findings.lengths import at_half, turned
from llama_ablate.findings.outcomes import UNSTABLE
from llama_ablate.report.tables import NO_DIFFERENCE
from llama_ablate.results.plan_document import BITS, HELD_OUT, NATS
from llama_ablate.terminal import plural

#: Head of the differences: their intervals hold for all rows of a table at once.
DIFFERENCE = "difference [95%]"
_MOST_SAVED = 10  # times: beyond, a few seeds do not tell how many
_LEVEL = 0.05  # of the family: p is below it just where an interval leaves out 0
_LEAST_P, _LARGE_P = 1e-4, 0.1  # below which p is a bound; from which two decimals are enough
_MANY = 12  # variants beyond which a column for each is too wide
#: The columns of a comparison that matter most, in this order; the others stand behind them.
LEADING = (
    "variant",
    "n",
    *(f"loss ({unit.name})" for unit in (NATS, BITS)),
    DIFFERENCE,
    "verdict",
    "at half the length",
    "bias",
    "learning rate",
    "parameters",
    "speed",
    "state bytes",
)


def comparison(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the comparison with its numbers written as people read them.

    `LEADING` columns come first, those of them that there are. Losses have as many decimals as the
    narrowest interval of a difference bears out.
    """
    ends = zip(frame["low"], frame["high"], strict=True)
    places = max(
        (decimals(low, high) for low, high in ends if high > low),
        default=decimals(math.nan, math.nan),
    )
    shown = pd.DataFrame({"variant": frame["label"], "n": frame["n"].astype(str)})
    unit = frame["unit"].iloc[0]
    shown[f"loss ({unit})"] = [_loss(row, f".{places}f") for row in rows(frame)]
    shown[DIFFERENCE] = [
        "" if row.baseline else interval(row.difference, row.low, row.high) for row in rows(frame)
    ]
    shown["verdict"] = [_guarded(row) for row in rows(frame)]
    shown = shown.assign(**_beside_verdicts(frame))
    shown["parameters"] = [f"{v:,}" for v in frame["parameters"]]
    shown = shown.assign(**speeds(frame))
    shown = shown.assign(**_state(frame))
    if not all(map(_all_ok, frame["outcome"])):
        shown["runs"] = [_ended(row) for row in rows(frame)]
    shown["p, corrected"] = [p_value(v) for v in frame["p_corrected"]]
    if any(seeds := [_seeds(row) for row in rows(frame)]):
        shown["seeds to decide"] = seeds
    if frame["point"].any():
        shown["tuned to"] = frame["point"]
    if frame["excess_nats"].notna().any():
        shown["over the floor (nats)"] = [number(v, f"+.{places}f") for v in frame["excess_nats"]]
    if unit == NATS.name:  # else one is the loss, and the other does not compare
        if frame["bits_per_byte"].notna().any():
            shown["bits/byte"] = [number(v, f".{places}f") for v in frame["bits_per_byte"]]
        shown["perplexity"] = [_perplexity(v, places) for v in frame["perplexity"]]
    if (frame["active_parameters"] != frame["parameters"]).any():
        shown["active"] = [f"{v:,}" for v in frame["active_parameters"]]
    if frame["residual"].abs().max() > 0:
        shown["matched to"] = [
            f"{row.residual:+.2%}"
            + (f" ({row.solved.removeprefix('feed-forward ')})" if row.solved else "")
            for row in rows(frame)
        ]
    first = [name for name in LEADING if name in shown]
    return shown[[*first, *(name for name in shown if name not in first)]]


def _beside_verdicts(frame: pd.DataFrame) -> dict[str, "pd.Series[str]"]:
    """Return what limits verdicts, where anything does: a bias, and rates that were not tuned."""
    titles = {"at half the length": "half", "bias": "bias", "learning rate": "rate"}
    known = {title: frame[name] for title, name in titles.items() if name in frame}
    return {title: own for title, own in known.items() if own.any()}


def _loss(row: Any, form: str) -> str:
    """Write a variant's mean loss; where runs were lost, of how many it is."""
    mean = number(row.loss, form)
    trained = row.ended - row.lost
    return f"{mean} (mean of the {trained} that trained)" if row.lost and trained else mean


def _ended(row: Any) -> str:
    """Write how a variant's runs ended; of those that were lost also the share."""
    if _all_ok(row.outcome):
        return ""
    if not row.lost:
        return str(row.outcome)
    share = row.lost / row.ended
    against = "" if math.isnan(row.lost_p_corrected) else f", p {p_value(row.lost_p_corrected)}"
    return f"{row.outcome}: {share:.0%} [{row.lost_low:.0%}, {row.lost_high:.0%}]{against}"


def _guarded(row: Any) -> str:
    """Write a verdict; of a variant that is better, also in what guarded number it is worse."""
    return f"{row.verdict}, {row.guard}" if row.verdict == "better" and row.guard else row.verdict


def speeds(frame: pd.DataFrame) -> dict[str, list[str]]:
    """Return ratios of speeds to the baseline's: `speed` is that of training.

    Where the interval holds 1, the cell says that no difference was seen.
    """
    columns = {}
    for title, name in (("speed", "train"), ("decode speed", "decode")):
        ratios = frame[f"{name}_speed_ratio"]
        if ratios.notna().any():
            bounds = (frame[f"{name}_speed_{end}"] for end in ("low", "high"))
            columns[title] = [_speed(*v) for v in zip(ratios, *bounds, strict=True)]
    return columns


def _speed(ratio: float, low: float, high: float) -> str:
    if low <= 1 <= high:
        return f"{NO_DIFFERENCE} [{low:.2f}, {high:.2f}]"
    return times(ratio, low, high)


def combinations(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the comparison of a factorial design: what each combination reached and costs."""
    judged = [DIFFERENCE, "verdict", "bias", "p, corrected", "seeds to decide"]
    return comparison(frame).drop(columns=judged, errors="ignore")


def diagnostics(frame: pd.DataFrame) -> pd.DataFrame:
    """Return what each row's interval is made of, and what pairing saved."""
    name = "label" if "label" in frame else "effect"
    shown = pd.DataFrame({name.replace("label", "variant"): frame[name]})
    if "n" in frame:
        shown["n"] = frame["n"].astype(str)
    shown["error of seeds"] = [number(v, ".2g") for v in frame["seed_se"]]
    if (frame["text_se"] > 0).any():
        shown["error of the text"] = [number(v, ".2g") for v in frame["text_se"]]
    shown["degrees of freedom"] = [number(v, ".1f") for v in frame["df"]]
    shown["variance"] = [
        "" if math.isnan(row.df) else "pooled" if row.pooled else "own" for row in rows(frame)
    ]
    shown["level"] = [number(100 * (1 - v), ".4g", "%") for v in frame["alpha"]]
    if "looks" in frame and frame["looks"].max() > 1:
        shown["look"] = [
            number(v, ".0f", f" of {n}") for v, n in zip(frame["look"], frame["looks"], strict=True)
        ]
    if "correlation" in frame and frame["correlation"].notna().any():
        shown["r over seeds"] = [number(v, ".2f") for v in frame["correlation"]]
        shown["runs that pairing saves"] = [_saved(v) for v in frame["pairing_saves"]]
    if "aliases" in frame and frame["aliases"].any():
        shown["confounded with"] = frame["aliases"]
    return shown


def _saved(times: float) -> str:
    """Write how many times the runs an unpaired design would need: a rough figure."""
    return "over 10x" if times > _MOST_SAVED else number(times, ".1f", "x")


def _all_ok(outcomes: str) -> bool:
    """Return whether all runs ended ok, of outcomes as the comparison counts them: `3 ok`."""
    return outcomes.endswith(" ok") and "," not in outcomes


def p_value(p: float) -> str:
    """Write a p value with two digits; with more where it would else cross the level."""
    if math.isnan(p):
        return ""
    if p < _LEAST_P:
        return f"< {_LEAST_P:.4f}"
    text = f"{p:.2g}" if p < _LARGE_P else f"{p:.2f}"
    return text if (float(text) < _LEVEL) == (p < _LEVEL) else f"{p:.5f}"


def _perplexity(value: float, places: int) -> str:
    """Write a perplexity with the decimals of a loss that has so many places."""
    if math.isnan(value):
        return "-"
    if not 0 < value < math.inf:
        return f"{value:g}"
    return f"{value:,.{max(0, places - math.floor(math.log10(value)))}f}"


def factors(frame: pd.DataFrame) -> pd.DataFrame:
    """Return effects of factors with their numbers written as people read them."""
    shown = frame[["effect"]].copy()
    shown[DIFFERENCE] = _intervals(frame, "difference", "low", "high")
    shown["verdict"] = frame["verdict"]
    shown = shown.assign(**_beside_verdicts(frame))
    shown["in other words"] = [_interaction(row) if row.changed else "" for row in rows(frame)]
    shown["p, corrected"] = [p_value(v) for v in frame["p_corrected"]]
    return shown


def lengths(frame: pd.DataFrame) -> pd.DataFrame:
    """Return differences by length of training, a column a length, and what half of it says."""
    order = list(dict.fromkeys(frame["name"]))
    shown = pd.DataFrame({"row": order})
    for tokens in map(int, sorted(set(frame["tokens"]))):
        own = frame[frame["tokens"] == tokens].set_index("name").reindex(order)
        shown[f"{plain(tokens / 1e6, 3)}M tokens"] = [
            ""
            if math.isnan(row.difference)
            else f"{interval(row.difference, row.low, row.high)} {row.verdict}"
            for row in rows(own)
        ]
    if half := at_half(frame):
        shown["at half the length"] = [half.get(name, "") for name in order]
    if contrary := turned(frame):
        shown["with length"] = ["reverses" if name in contrary else "" for name in order]
    return shown


def _interaction(row: Any) -> str:
    """Write what one factor does with and without another, and what the two make together."""
    extra = 2 * row.difference
    form = f"z.{decimals(row.low, row.high)}f"
    return (
        f"{row.changed} {row.with_present:+{form}} with {row.present}, {row.with_absent:+{form}} "
        f"with {row.absent}: together {abs(extra):{form}} {'lower' if extra < 0 else 'higher'} "
        "than the sum of each alone"
    )


def hypotheses(frame: pd.DataFrame) -> pd.DataFrame:
    """Return hypotheses: what was stated beside what was measured."""
    shown = frame[["hypothesis"]].copy()
    if frame["table"].any():
        shown["table"] = frame["table"]
    shown["measured [95%]"] = [measured(row) for row in rows(frame)]
    shown["test result"] = frame["result"]
    if frame["bias"].any():
        shown["bias"] = frame["bias"]
    remarks = [_remark(row) for row in rows(frame)]
    if any(remarks):
        shown["remark"] = remarks
    shown["corrected for"] = frame["family"]
    if frame["source"].any() or frame["said"].any():
        shown = shown.assign(**{"source": frame["source"], "source said": frame["said"]})
    return shown


def tasks(frame: pd.DataFrame) -> pd.DataFrame:
    """Return accuracies on tasks with their numbers written as people read them."""
    shown = pd.DataFrame({"task": frame["task"], "variant": frame["label"]})
    shown["n"] = frame["n"].astype(str)
    shown["accuracy"] = [number(v, ".3f") for v in frame["accuracy"]]
    shown[DIFFERENCE] = _intervals(frame, "difference", "low", "high")
    shown["verdict"] = frame["verdict"]
    for title, column, form in (
        ("chance", "chance", ".3f"),
        ("accuracy per byte", "accuracy_norm", ".3f"),
        ("perplexity of targets", "target_perplexity", ",.4g"),
        ("items", "items", ",.0f"),
    ):
        if frame[column].notna().any():
            shown[title] = [number(v, form) for v in frame[column]]
    if (frame["cut_items"] > 0).any():
        shown["items cut"] = [number(v, ",.0f") for v in frame["cut_items"]]
    return shown


def guards(frame: pd.DataFrame) -> pd.DataFrame:
    """Return guards: how each variant differs in what is guarded, and whether it is worse."""
    shown = pd.DataFrame({"variant": frame["label"], "guarded": frame["measure"]})
    shown["n"] = frame["n"].astype(str)
    shown[DIFFERENCE] = [measured(row) for row in rows(frame)]
    shown["worse by"] = [f"{row.worse_by} {row.worse}" for row in rows(frame)]
    shown["test result"] = frame["result"]
    return shown


def _remark(row: Any) -> str:
    """Write why a hypothesis has no test result, or what it takes to decide it."""
    if row.result == "no verdict":
        return "a control fails"
    seeds = _seeds(row)
    return "; ".join(filter(None, (row.why, row.remark, f"{seeds} would decide" if seeds else "")))


def measured(row: Any) -> str:
    """Write a hypothesis' difference in its unit, with its interval."""
    if math.isnan(row.difference):
        return "not measured"
    return interval(row.difference, row.low, row.high) + (f" {row.unit}" if row.unit else "")


def winners(frame: pd.DataFrame) -> pd.DataFrame:
    """Return who wins each table, and where that flips."""
    shown = frame[["table", "winner"]].copy()
    shown[DIFFERENCE] = _intervals(frame, "difference", "low", "high")
    shown["verdict"] = frame["verdict"]
    shown["flips"] = ["flips" if flips else "" for flips in frame["flips"]]
    return shown


def steps(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the steps of a path."""
    shown = frame[["step"]].assign(n=frame["n"].astype(str))
    ends = ("marginal", "marginal_low", "marginal_high")
    shown["this step [95%]"] = _intervals(frame, *ends)
    shown["verdict"] = frame["verdict"]
    shown = shown.assign(**_beside_verdicts(frame))
    ends = ("cumulative", "cumulative_low", "cumulative_high")
    shown["all so far [95%]"] = _intervals(frame, *ends)
    shown["p of the step, corrected"] = [p_value(v) for v in frame["p_corrected"]]
    return shown


def tuning(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the trials of each variant and the point that was chosen."""
    shown = pd.DataFrame({"variant": frame["label"]})
    shown["trials"] = [
        ", ".join(
            [
                f"{row.finished} of {row.trials}",
                *(f"{n} {word}" for word in UNSTABLE if (n := getattr(row, word))),
            ]
        )
        for row in rows(frame)
    ]
    shown["best"] = frame["chosen"]
    shown["at the edge"] = frame["edge"]
    shown["loss"] = [number(v, ".4f") for v in frame["loss"]]
    shown["LR sensitivity [95% interval]"] = _intervals(
        frame, "sensitivity", "low", "high", sign=""
    )
    return shown


def heldout(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the size of each held-out split, and the text's part of the differences' variance."""
    shown = pd.DataFrame({"split": frame["split"].replace(HELD_OUT, "held-out")})
    if frame["text"].any():
        shown.insert(0, "text", frame["text"])
    shown["documents"] = [f"{v:,}" if v else "-" for v in frame["documents"]]
    shown["bytes"] = [f"{v:,}" for v in frame["bytes"]]
    shown["error between"] = [
        f"{row.clusters} {plural(row.clusters, row.cluster.removesuffix('s'))}"
        if row.clusters
        else "-"
        for row in rows(frame)
    ]
    shown["text's part of the variance"] = [
        "" if math.isnan(low) else f"{low:.0%} to {high:.0%}"
        for low, high in zip(frame["share_low"], frame["share_high"], strict=True)
    ]
    return shown


def stability(frame: pd.DataFrame) -> pd.DataFrame:
    """Return how often each variant diverged or collapsed, its spikes and gradient norms."""
    shown = pd.DataFrame({"variant": frame["label"], "runs": frame["runs"].astype(str)})
    for outcome in UNSTABLE:
        ends = (frame[f"{outcome}_{end}"] for end in ("share", "low", "high"))
        shown[f"{outcome} [95% interval]"] = [
            f"{share:.0%} [{low:.0%}, {high:.0%}]" for share, low, high in zip(*ends, strict=True)
        ]
    shown["loss spikes"] = [number(v, ".2%") for v in frame["loss_spike_share"]]
    shown["gradient spikes"] = [number(v, ".2%") for v in frame["grad_norm_spike_share"]]
    shown["gradient norm, median"] = [number(v, ".3f") for v in frame["grad_norm_median"]]
    shown["largest"] = [number(v, ".2f") for v in frame["grad_norm_max"]]
    return shown


#: What a ladder's law is, and why where it is none.
_FORMS = {
    "none": "",
    "local": "none: power law over these sizes alone",
    "floor fitted": "floor fitted",
    "floor known": "floor known",
}


def laws(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the trend of the gap to the baseline over a ladder, and the laws through it."""
    shown = pd.DataFrame({"variant": frame["label"], "along": frame["axis"]})
    shown["sizes"] = frame["n"].astype(str)
    if "trend" in frame:
        shown["gap"] = frame["trend"].fillna("")
        shown["per tenfold (nats)"] = _intervals(frame, "slope", "slope_low", "slope_high")
    shown["law"] = [_FORMS[form] for form in frame["form"]]
    for title in ("exponent", "floor (nats)"):
        shown[title] = _bounded(frame, title.removesuffix(" (nats)"), ".3f")
    shown["largest size: predicted"] = _bounded(frame, "predicted", ".4f")
    shown["measured"] = [number(v, ".4f") for v in frame["measured"]]
    failed = frame["measured"].notna() & frame["projected"].isna()
    shown["projected (nats)"] = [
        "none: the check failed" if fails else projected
        for fails, projected in zip(failed, _bounded(frame, "projected", ".3f"), strict=True)
    ]
    shown["at"] = [number(v, ".3g") for v in frame["at"]]
    return shown


def transfer(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the best learning rate of each variant by size, and how far it moves."""
    written = frame.assign(
        best=[f"{row.lr:g}{'*' if row.edge else ''} ({row.moved:+d})" for row in rows(frame)]
    )
    table = written.pivot_table(
        index="label", columns="rung", values="best", aggfunc="first", sort=False
    )
    return table.reset_index().rename(columns={"label": "variant"}).rename_axis(columns=None)


def surface(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the constants of a surface in parameters and tokens."""
    shown = pd.DataFrame({"variant": frame["label"], "points": frame["n"].astype(str)})
    for name in ("E", "A", "alpha", "B", "beta"):
        shown[name] = _bounded(frame, name, ".4g")
    share = "parameters_exponent"  # below 1: what grows as compute leaves no tokens
    bounded = frame.assign(
        **{f"{share}_high": frame[f"{share}_high"].where(lambda v: v < 1, math.inf)}
    )
    shown["best parameters grow as compute^"] = _bounded(bounded, share, ".3f")
    return shown


def _bounded(frame: pd.DataFrame, name: str, form: str) -> list[str]:
    """Write estimates with their intervals; those that reach a bound as one-sided statements.

    An end of 0 or infinity is none: the measurements do not bound the number there.
    """
    columns = (frame[name], frame[f"{name}_low"], frame[f"{name}_high"])
    return [estimate(*row, form=form) for row in zip(*columns, strict=True)]


def estimate(value: float, low: float, high: float, *, form: str) -> str:
    """Write an estimate with its interval, of which an end of 0 or infinity is no end."""
    if low == 0 and math.isinf(high):
        return "not determined"
    if low == 0 and high > 0:
        return f"at most {high:{form}}"
    return f"at least {low:{form}}" if math.isinf(high) else interval(value, low, high, form)


def speed_ups(frame: pd.DataFrame) -> pd.DataFrame:
    """Return effective speed-ups."""
    shown = pd.DataFrame({"variant": frame["label"]})
    if frame["table"].any():
        shown.insert(0, "table", frame["table"])
    unit = frame["unit"].iloc[0]
    shown[f"at a loss of ({unit})"] = [number(v, ".4f") for v in frame["loss"]]
    named = {"tokens": "text" if unit == BITS.name else "tokens", "flops": "FLOPs"}
    for cost in ("tokens", "flops", "seconds"):
        title = f"{named.get(cost, cost)} [95% interval]"
        ends = (frame[f"{cost}{end}"] for end in ("", "_low", "_high", "_least", "_most"))
        shown[title] = [_multiple(*row) for row in zip(*ends, strict=True)]
    checked = ["unchecked" if math.isnan(form) else f"within {form:.0%}" for form in frame["form"]]
    shown["form of the curve"] = checked
    return shown


def _multiple(value: float, low: float, high: float, least: float, most: float) -> str:
    """Write a multiple with its interval; what is beyond the runs by what it is above or below."""
    if math.isnan(value):
        return "-"

    def written(one: float, unit: str = "") -> str:
        if one == 0 or math.isinf(one):
            return f"below {least:.2f}{unit}" if one == 0 else f"above {most:.2f}{unit}"
        return f"{one:.2f}{unit}"

    if math.isnan(low) or low == high:
        return written(value, "x")
    return f"{written(value, 'x')} [{written(low)}, {written(high)}]"


def metrics(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the mean over runs of each measured value, one row a value, one column a variant.

    Of more than twelve variants the first, the lowest and the highest are shown.
    """
    keys = ["table", "metric", "name"]
    means = frame.dropna(subset="value").pivot_table("value", keys, "label", sort=False)
    shown = means.index.to_frame(index=False)
    if not shown["table"].any():
        shown = shown.drop(columns="table")
    if len(means.columns) <= _MANY:
        columns = {str(label): [plain(v, 5) for v in means[label]] for label in means}
    else:
        first = str(means.columns[0])
        columns = {first: [plain(v, 5) for v in means[first]]}
        for title, values, labels in (
            ("lowest", means.min(axis=1), means.idxmin(axis=1)),
            ("highest", means.max(axis=1), means.idxmax(axis=1)),
        ):
            columns[title] = [f"{plain(v, 5)} ({at})" for v, at in zip(values, labels, strict=True)]
    for title, texts in columns.items():
        shown[f"{title} (variant)" if title in shown else title] = texts
    return shown


def _state(frame: pd.DataFrame) -> dict[str, list[str]]:
    """Return what is kept between tokens; plans of older versions know what a token adds alone."""
    columns = {"KV bytes/token": [f"{v:,}" for v in frame["kv_bytes_per_token"]]}
    if frame["state_bytes"].notna().any():
        columns["state bytes"] = [number(v, ",.0f") for v in frame["state_bytes"]]
    return columns


def _seeds(row: Any) -> str:
    """Write how many seeds would decide a row; nothing where unknown, or looks are planned."""
    if math.isnan(row.seeds_low) or getattr(row, "looks", 1) > 1:
        return ""
    if math.isinf(row.seeds_high):
        return f"{row.seeds_low:.0f} seeds or more"
    if row.seeds_low == row.seeds_high:
        return f"{row.seeds_low:.0f} seeds"
    return f"{row.seeds_low:.0f} to {row.seeds_high:.0f} seeds"


def _intervals(frame: pd.DataFrame, mean: str, low: str, high: str, sign: str = "+") -> list[str]:
    if mean not in frame:
        return [""] * len(frame)
    columns = (frame[mean], frame[low], frame[high])
    return [
        "" if math.isnan(m) else interval(m, a, b, sign=sign)
        for m, a, b in zip(*columns, strict=True)
    ]
