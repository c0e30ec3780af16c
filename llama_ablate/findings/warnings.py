"""Warnings on the limits of a comparison: codes with fields, and one mapping of their texts."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import pandas as pd

from llama_ablate.config.experiment import Experiment
from llama_ablate.config.labels import entry_text
from llama_ablate.config.registry import Entry
from llama_ablate.evidence.medians import WANTED_HALF_WIDTH
from llama_ablate.evidence.text_error import DOCUMENTS
from llama_ablate.evidence.written import describe_ratio
from llama_ablate.evidence.written import measured as write_measured
from llama_ablate.findings import tuning
from llama_ablate.findings.columns import index_rows, iterate, list_rows
from llama_ablate.findings.compare import find_bias
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.controls import find_text_limit, list_failing
from llama_ablate.findings.factors import find_contrasts, name_factors, name_levels
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.hypotheses import NOT_LEARNED, explain_undecidable
from llama_ablate.findings.others import compare_others, list_other_items
from llama_ablate.findings.outcomes import UNSTABLE, count_outcomes
from llama_ablate.findings.sizes import compare_lengths, find_contrary
from llama_ablate.findings.stages import find_differences, find_runs
from llama_ablate.findings.table import SPLITS, Table
from llama_ablate.results import protocol
from llama_ablate.results.plan_document import PlannedTable, PlannedText
from llama_ablate.results.record import TRAINING
from llama_ablate.terminal import listed, plural

#: Fewest seeds of a table with several variants, and with one variant, which has no other rows from
#: which to pool the variance.
_MIN_SEEDS, _MIN_SEEDS_ALONE = 3, 4
_MAX_NAMES = 4  # most names of a warning
#: Share of tables with a false verdict, by the number of unplanned additions of seeds.
#: Simulated with seven variants equal to the baseline, from three seeds, doubled each time.
UNPLANNED = (0.014, 0.036, 0.065, 0.094, 0.125, 0.151)


def read_entries(package: str, name: str) -> dict[str, str]:
    """Return the texts of a package's file by key.

    An entry is a key, a colon, and a text, whose further lines are indented.
    """
    text = resources.files(package).joinpath(name).read_text("utf-8")
    entries = re.split(r"\n(?! )", text.strip())
    return dict(" ".join(entry.split()).split(": ", 1) for entry in entries)


#: Texts of warnings by code, the gravest first: in the file a code, a colon, and its text.
TEXTS: Mapping[str, str] = read_entries("llama_ablate.findings", "warnings.txt")


@dataclass(frozen=True)
class Warning:  # noqa: A001 - the report's word; Python's are not raised here
    """Limit of a comparison: its code, the names it is about, and the fields of its text."""

    code: str
    names: tuple[str, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return TEXTS[self.code].format(names=listed(self.names, _MAX_NAMES), **self.fields)


def warnings(frames: Frames) -> list[Warning]:
    """Return the warnings about an experiment's comparison, the gravest first.

    Warnings that differ in their names alone are one.
    """
    table_warnings = (
        warning for table in frames.tables for warning in _warn_of_table(frames, table)
    )
    notes = [Warning("note", (), {"text": note}) for note in frames.plan.notes]
    every = [
        *_count_runs(frames),
        *_changed(frames),
        *list_machines(frames),
        *notes,
        *table_warnings,
    ]
    return _merge(every)


def _merge(found: Sequence[Warning]) -> list[Warning]:
    alike: dict[tuple[str, ...], list[Warning]] = {}
    for one in found:
        alike.setdefault((one.code, *map(str, one.fields.values())), []).append(one)
    order = [*TEXTS]
    merged = [
        Warning(
            group[0].code,
            tuple(dict.fromkeys(name for warning in group for name in warning.names)),
            group[0].fields,
        )
        for group in alike.values()
    ]
    return sorted(merged, key=lambda one: order.index(one.code))


def planned(table: PlannedTable, experiment: Experiment) -> list[Warning]:
    """Return warnings about a comparison table that are known before any run."""
    return [
        *_few_tokens(table),
        *_unlike(table, experiment),
        *few_documents(table.text),
        *_overlaps(table.text),
        *_few_seeds(table, experiment),
    ]


def _warn_of_table(frames: Frames, table: Table) -> Iterator[Warning]:
    where = f" in '{table.plan.name}'" if len(frames.tables) > 1 else ""

    def named(label: str) -> str:
        return f"'{label}'{where}"

    yield from _checks(frames, table)
    yield from _broken_guards(table, named)
    yield from _undecided(table, named, where)
    yield from _unmeasured(table)
    yield from planned(table.plan, table.experiment)
    yield from list_speed_limits(compare_variants(table), named)
    yield from list_tuning_limits(table, named)


def _few_tokens(table: PlannedTable) -> Iterator[Warning]:
    """Yield a warning if runs train on less than one token per parameter."""
    per_parameter = table.tokens_per_run / table.baseline.parameters
    if per_parameter < 1:
        yield Warning("few_tokens", (), {"share": f"{per_parameter:.2g}"})


def _unlike(table: PlannedTable, experiment: Experiment) -> Iterator[Warning]:
    """Yield warnings about rows and numbers that a comparison table lacks.

    A row is missing for an axis value that changes nothing. Missing numbers are FLOPs, state bytes
    and bits per byte. Different optimizers with one untuned learning rate are reported, too.
    """
    base, variants = table.baseline, table.variants
    for variant in variants:
        for label in variant.covers:
            yield Warning("covered", (), {"covered": label, "label": variant.label})
    lacking = (v for v in variants if None in (v.flops_per_token, v.kv_bytes_per_token))
    entries = (v.model.get("attention", "its attention") for v in lacking)
    for name in dict.fromkeys(entry_text(entry, options=False) for entry in entries):
        yield Warning("uncounted", (f"'{name}'",))
    if labels := [f"'{v.label}'" for v in variants if tuning.one_rate(table, experiment, v, base)]:
        yield Warning("one_rate", (*labels,), {"base": base.label, "what": tuning.ONE_RATE})
    if table.text.lost:
        yield Warning("lossy_tokenizer", (), {"lost": table.text.lost})


def few_documents(text: PlannedText) -> Iterator[Warning]:
    """Yield a warning if held-out splits have few documents although the corpus has enough."""
    held_out = {split: n for split, n in text.documents.items() if split != "train"}
    total = sum(text.documents.values())
    few = [f"the {split} split has {n}" for split, n in held_out.items() if n < DOCUMENTS]
    if few and total >= len(text.documents) * DOCUMENTS:
        yield Warning("few_documents", (*few,), {"total": total, "fewest": DOCUMENTS})


def _overlaps(text: PlannedText) -> Iterator[Warning]:
    """Yield warnings about held-out text that is also in the training text."""
    if count := text.left_out:
        documents = f"{count:,} held-out {plural(count, 'document')}"
        yield Warning("left_out", (), {"documents": documents})
    for name, overlap in text.overlaps.items():
        there = "the training text" if name == "corpus" else f"the training text of '{name}'"
        there = "the validation text" if name == "test" else there
        if overlap.tokens:
            documents = f"{overlap.documents:,} of {overlap.all_documents:,} documents"
            share = f"{overlap.tokens / overlap.all_tokens:.2%}"
            fields = {"share": share, "documents": documents, "there": there}
            yield Warning("overlap", (), fields)
        if overlap.parts:
            yield Warning("parts_overlap", (), {"share": f"{overlap.parts:.0%}", "there": there})


def warn_of_text(table: PlannedTable, experiment: Experiment) -> Iterator[str]:
    """Yield notes on variants that read text differently from the baseline.

    The differences are per-document masks, or batch size, order or mixture of the training text.
    Yields nothing if all variants read the same text in the same way.
    """
    first = experiment.evaluation.documents[:1]
    if table.reading or any("documents" in v.data for v in table.variants):
        way = "with documents apart" if table.read_as == "mask" else "as one text"
        yield f"All rows are evaluated on the same held-out text, read {way}."
    if first and table.reading not in first:
        yield f"Learning curves, and how runs ended, are of held-out text read as '{first[0]}'."
    if unlike := [f"'{v.label}'" for v in table.variants if not table.pairs(v, experiment)]:
        yield (
            f"Not paired by text: {listed(unlike)} and the baseline share initial weights, but do "
            "not read the same text in the same order (another batch, order or mixture)."
        )


def _few_seeds(table: PlannedTable, experiment: Experiment) -> Iterator[Warning]:
    """Yield a warning if the planned seeds are too few to decide verdicts."""
    ranked = [variant for variant in table.variants if not (variant.baseline or variant.role)]
    wanted = _MIN_SEEDS_ALONE if len(ranked) == 1 else _MIN_SEEDS
    seeds = experiment.looks[-1]
    if seeds == 1:
        yield Warning("one_seed")
    elif ranked and seeds < wanted and not any(variant.levels for variant in table.variants):
        yield Warning("few_seeds", (), {"seeds": seeds, "wanted": wanted})


def _count_runs(frames: Frames) -> Iterator[Warning]:
    """Yield warnings about unfinished runs, runs without a loss, and too short runs."""
    runs = frames.runs[~frames.runs["use"].isin(["trial", "race"])]
    outcome, each = runs["outcome"], "{run.label}, seed {run.seed} ({run.reason})"
    kinds = {
        "pending": (outcome.eq("pending"), "{run.label}"),
        "lost": (outcome.isin(UNSTABLE), "'{run.label}' ({run.reason})"),
        "failed": (~outcome.isin(["ok", "pending", *UNSTABLE]), each),
        "too_short": (runs["too_short"], each),
    }
    for code, (chosen, form) in kinds.items():
        hit = runs[chosen]
        named = hit.drop_duplicates(["label", "seed"] if form == each else "label")
        names = (form.format(run=run).removesuffix(" ()") for run in iterate(named))
        if len(hit):
            yield Warning(code, (*names,), {"count": len(hit), "of": len(runs)})


def _checks(frames: Frames, table: Table) -> Iterator[Warning]:
    """Yield warnings about failing controls, leaks and reversals with length."""
    if frames.runs["outcome"].ne("pending").all():
        for why in list_failing(table):
            yield Warning("control", (why,))
    if not table.has_learned:
        yield Warning("not_learned", (), {"why": NOT_LEARNED})
    runs = find_runs(table)
    for split in SPLITS:
        names = [f"{split}_excess_nats", f"{split}_excess_se_nats"]
        excess, error = (runs.get(name, pd.Series(dtype=float)) for name in names)
        below = excess < -3 * error
        for run in iterate(runs.loc[below.index[below]]):
            yield Warning("leak", (f"{run.label}, seed {run.seed}",), {"split": split})
    for name, tokens in find_contrary(compare_lengths(table)).items():
        yield Warning("reversed", (f"{name} (up to {tokens / 1e6:.3g}M tokens)",))
    rows = compare_variants(table)
    words = rows.loc[rows["role"].eq(""), "verdict"]
    if find_bias(table) is None and words.isin(["better", "worse", "equivalent"]).any():
        yield Warning("no_repeat")
    if items := [f"'{task}'" for task in list_other_items(table)]:
        yield Warning("other_items", (*items,))


def _broken_guards(table: Table, named: Callable[[str], str]) -> Iterator[Warning]:
    """Yield warnings about better variants that are worse in a guarded metric."""
    rows, others = compare_variants(table), compare_others(table)
    better = rows.loc[rows["verdict"].eq("better"), "label"]
    for row in iterate(others[others["result"].eq("worse") & others["label"].isin(better)]):
        by = write_measured(row.difference, row.low, row.high, row.unit)
        yield Warning("guard", (f"{named(row.label)} ({row.measure} {by})",))


def _undecided(table: Table, named: Callable[[str], str], where: str) -> Iterator[Warning]:
    """Yield warnings about differences that the runs or the held-out text cannot decide."""
    if why := explain_undecidable(table):
        yield Warning("undecidable", (), {"where": where, "why": why})
    names, contrasts = name_levels(table), list_rows(find_contrasts(table))
    differences = index_rows(find_differences(table))
    tested = {name_factors(row["effect"], names): row for row in contrasts} or {
        variant.label: differences[variant.id]
        for variant in table.plan.variants
        if not variant.baseline and not variant.role
    }
    half = {name: find_text_limit(row, table.margin) for name, row in tested.items()}
    if limits := [f"{named(k)} (±{of:.3f})" for k, of in half.items() if of > 0]:
        yield Warning("text_limits", (*limits,), {"unit": table.unit.name})


def list_machines(frames: Frames) -> list[Warning]:
    """List differences in hardware and software between runs."""
    every = pd.concat([table.machines for table in frames.tables])
    kinds = {what: sorted(set(values)) for what, values in every.items()}
    return [
        Warning("machines", (), {"what": what, "values": "; ".join(values)})
        for what, values in kinds.items()
        if len(values) > 1
    ]


def _changed(frames: Frames) -> Iterator[Warning]:
    """Yield warnings about changes of the experiment file after the first run had finished.

    The changes include replaced controls, runs trained again on request, and unplanned additions of
    seeds.
    """
    if not any(len(table.machines) for table in frames.tables):
        return
    versions, experiment = frames.protocol, frames.plan.experiment
    if not versions:
        yield Warning("unknown_protocol", (), {"runs": "run: protocol.json is missing"})
        return
    if first := versions[0].after_runs:
        yield Warning("unknown_protocol", (), {"runs": f"{first} runs had finished"})
    for change in protocol.changes(versions, experiment):
        words = {"-": "dropped", "+": "added"}
        lines = "; ".join(f"{words[line[0]]} `{line[2:]}`" for line in change.lines)
        if lines:
            kinds = Counter(words[line[0]] for line in change.lines)
            counts = " and ".join(f"{count} {word}" for word, count in kinds.items())
            fields = {"when": change.when, "counts": counts, "lines": lines}
            yield Warning("changed", (), fields)
        for gone in change.version.replaced:
            by = gone.difference_nats
            difference = "" if by is None else f", {by:+.4f} nats from the baseline on average"
            ended = count_outcomes(gone.outcomes) or "none had finished"
            fields = {"label": gone.label, "ended": ended, "by": difference}
            yield Warning("control_replaced", (), fields)
    for version in versions:
        for redo in version.redone:
            outcomes = ", ".join(redo.outcomes)
            after = {"runs": version.after_runs, "outcomes": outcomes}
            yield Warning("redone", (), {"label": redo.label, **after})
    if looks := protocol.unplanned_looks(versions, experiment):
        most = len(UNPLANNED) - 1
        share = f"{'at least ' * (looks > most)}{UNPLANNED[min(looks, most)]:.1%}"
        times = f"{looks} {plural(looks, 'time')}"
        fields = {"looks": times, "share": share, "usual": f"{UNPLANNED[0]:.1%}"}
        yield Warning("unplanned_looks", (), fields)


def list_speed_limits(rows: pd.DataFrame, named: Callable[[str], str] = repr) -> Iterator[Warning]:
    """Yield warnings about speeds with wide intervals, and about speeds of A/A arms.

    An A/A arm runs the baseline's code, so a difference in speed has another cause than the code.
    `rows` are those of a comparison.
    """
    for name, title in (("train", "training"), ("decode", "decode")):
        kinds = ("ratio", "low", "high", "processes")
        ratio, low, high, processes = (rows[f"{name}_speed_{kind}"] for kind in kinds)
        hint = f"`llama-ablate measure DIR {name}_speed --again` measures them again."
        fields = {"what": title, "hint": hint}
        half = (high / ratio - 1)[processes > 1].max()
        if half > WANTED_HALF_WIDTH:
            yield Warning("speeds", (), {**fields, "half": half})
        leaves = rows["role"].eq("aa") & ((low > 1) | (high < 1))
        for label, *ends in zip(rows["label"], ratio, low, high, leaves, strict=True):
            if ends.pop():
                yield Warning("unlike_speed", (f"{named(label)} {describe_ratio(*ends)}",), fields)


def _unmeasured(table: Table) -> Iterator[Warning]:
    """Yield warnings about metrics that failed or are missing, and commands to measure them."""
    runs = find_runs(table)
    ok = runs[runs["outcome"].eq("ok")]
    finished = Counter(ok["label"])
    tried = table.attempts[table.attempts["run"].isin(["", *ok["id"]])]
    failed = tried[tried["error"].ne("")]
    names = (failed[name] for name in ("metric", "label", "error"))
    groups = Counter(zip(*names, failed["run"].ne(""), strict=True))
    for (metric, label, error, is_of_runs), n in groups.items():
        some = f"{n} of {finished[label]} finished runs of " * is_of_runs
        yield Warning("not_measured", (f"{some}'{label}'",), {"metric": metric, "error": error})
    run_attempts = tried[tried["run"].ne("")]
    counts = Counter(zip(run_attempts["metric"], run_attempts["label"], strict=True))
    for metric in sorted({metric for metric, _ in counts} - {TRAINING}):  # from the loop itself
        for label, n in finished.items():
            if counts[metric, label] < n:
                fields = {"metric": metric, "part": f"{counts[metric, label]} of {n}"}
                yield Warning("partly_measured", (f"'{label}'",), fields)
    if len(table.machines) == len(runs) and finished:  # else `run` will still measure
        wanted = {metric for metric in map(_name_metric, table.experiment.measure) if metric}
        for metric in sorted(wanted - {*table.attempts["metric"]}):
            yield Warning("unmeasured", (), {"metric": metric})


def _name_metric(entry: Entry) -> str:
    """Return a `measure` entry's metric name, or "" for speeds noted in training."""
    name, options = (entry, {}) if isinstance(entry, str) else (entry["name"], entry)
    return "" if name == "train_speed" and not options.get("paired") else str(name)


def list_tuning_limits(table: Table, named: Callable[[str], str] = repr) -> Iterator[Warning]:
    """Yield warnings about missing trials, and about variants whose best point is uncertain.

    The best point is uncertain at the edge of the grid, and if the trials do not tell it apart from
    the second-best point.
    """
    # A repeated baseline has the baseline's tuning point.
    repeated = {v.label for v in table.plan.variants if v.id in table.plan.repeated}
    several = len(table.experiment.tune) > 1
    for row in iterate(tuning.describe_tuning(table, find_runs(table))):
        if row.label in repeated:
            continue
        if row.finished < row.trials:
            yield Warning("trials", (f"{named(row.label)} ({row.finished} of {row.trials})",))
            continue
        edge = f"{f'{row.edge} ' * several}at the edge of the grid" * bool(row.edge)
        rival = f"not told apart from {row.rival}" * bool(row.rival)
        if why := ", ".join(filter(None, (edge, rival))):
            seeds = f"{row.seeds} {plural(row.seeds, 'seed')}"
            names = (f"{named(row.label)} ({row.chosen}: {why})",)
            yield Warning("edge", names, {"seeds": seeds})
