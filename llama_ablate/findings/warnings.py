"""Warnings on the limits of a comparison: codes with fields, and one mapping of their texts."""

import math
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
from llama_ablate.evidence.text_error import DOCUMENTS
from llama_ablate.findings import controls, effects, heldout, secondary, sizes, tuning
from llama_ablate.findings.comparison import ComparisonRow, count_outcomes
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.findings.hypotheses import NOT_LEARNED, explain_undecidable
from llama_ablate.findings.rows import grouped
from llama_ablate.findings.values import UNSTABLE
from llama_ablate.results import protocol
from llama_ablate.results.plan_document import PlannedTable, PlannedText
from llama_ablate.results.record import TRAINING
from llama_ablate.terminal import listed, plural

#: Target for the relative half width of speed intervals when speeds are measured in pairs.
WANTED_HALF_WIDTH = 0.05
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
    alike = grouped(found, lambda one: (one.code, tuple(map(str, one.fields.values()))))
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


def _warn_of_table(frames: Frames, table: TableFrames) -> Iterator[Warning]:
    where = f" in '{table.plan.name}'" if len(frames.tables) > 1 else ""

    def named(label: str) -> str:
        return f"'{label}'{where}"

    yield from _checks(frames, table)
    yield from _broken_guards(table, named)
    yield from _undecided(table, named, where)
    yield from _unmeasured(table)
    yield from planned(table.plan, table.experiment)
    yield from list_speed_limits(table.comparison, named)
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
    every = {run.id: run for table in frames.tables for run in table.runs}
    runs = [run for run in every.values() if run.use not in ("trial", "race")]

    def warn(code: str, chosen: Callable[[Any], bool], form: str) -> Iterator[Warning]:
        hit = [run for run in runs if chosen(run)]
        named = grouped(hit, lambda run: (run.label, run.seed if "{1}" in form else 0)).values()
        said = (form.format(run.label, run.seed, run.reason) for run, *_ in named)
        names = (name.removesuffix(" ()") for name in said)
        if hit:
            yield Warning(code, (*names,), {"count": len(hit), "of": len(runs)})

    each = "{0}, seed {1} ({2})"
    yield from warn("pending", lambda run: run.outcome == "pending", "{0}")
    yield from warn("lost", lambda run: run.outcome in UNSTABLE, "'{0}' ({2})")
    yield from warn("failed", lambda run: run.outcome not in ("ok", "pending", *UNSTABLE), each)
    yield from warn("too_short", lambda run: run.too_short, each)


def _checks(frames: Frames, table: TableFrames) -> Iterator[Warning]:
    """Yield warnings about failing controls, leaks and reversals with length."""
    if all(run.outcome != "pending" for each in frames.tables for run in each.runs):
        for why in controls.failing(controls.check_controls(table)):
            yield Warning("control", (why,))
    if not table.has_learned:
        yield Warning("not_learned", (), {"why": NOT_LEARNED})
    for split in tuning.SPLITS:
        for run in table.runs:
            if run.number(f"{split}_excess_nats") < -3 * run.number(f"{split}_excess_se_nats"):
                yield Warning("leak", (f"{run.label}, seed {run.seed}",), {"split": split})
    for name, tokens in sizes.contrary(sizes.by_length(table)).items():
        yield Warning("reversed", (f"{name} (up to {tokens / 1e6:.3g}M tokens)",))
    rows = (row for row in table.comparison if not row.role)
    if table.bias is None and any(r.verdict in ("better", "worse", "equivalent") for r in rows):
        yield Warning("no_repeat")
    if items := [f"'{task}'" for task in secondary.other_items(table)]:
        yield Warning("other_items", (*items,))


def _broken_guards(table: TableFrames, named: Callable[[str], str]) -> Iterator[Warning]:
    """Yield warnings about better variants that are worse in a guarded metric."""
    better = [row.label for row in table.comparison if row.verdict == "better"]
    for row in table.guards:
        if row.label in better and row.result == "worse":
            yield Warning("guard", (f"{named(row.label)} ({row.measure} {row.show_difference()})",))


def _undecided(table: TableFrames, named: Callable[[str], str], where: str) -> Iterator[Warning]:
    """Yield warnings about differences that the runs or the held-out text cannot decide."""
    if why := explain_undecidable(table):
        yield Warning("undecidable", (), {"where": where, "why": why})
    names = effects.level_names(table.plan, table.experiment)
    contrasts = effects.find_contrasts(table)
    tested = {
        effects.name_effect(contrast.effect, names): contrast.interval for contrast in contrasts
    } or {
        variant.label: table.intervals[variant.id]
        for variant in table.plan.variants
        if not variant.baseline and not variant.role
    }
    half = {name: heldout.by_text_alone(row, table.margin) for name, row in tested.items()}
    if limits := [f"{named(k)} (±{of:.3f})" for k, of in half.items() if not math.isnan(of)]:
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


def list_speed_limits(
    rows: Sequence[ComparisonRow], named: Callable[[str], str] = repr
) -> Iterator[Warning]:
    """Yield warnings about speeds with wide intervals, and about speeds of A/A arms.

    An A/A arm runs the baseline's code, so a difference in speed has another cause than the code.
    """
    for name, title in (("train", "training"), ("decode", "decode")):
        of = {row: getattr(row, f"{name}_speed") for row in rows}
        hint = f"`llama-ablate measure DIR {name}_speed --again` measures them again."
        fields = {"what": title, "hint": hint}
        halves = (ratio.high / ratio.ratio - 1 for ratio in of.values() if ratio.processes > 1)
        half = max((value for value in halves if not math.isnan(value)), default=0)
        if half > WANTED_HALF_WIDTH:
            yield Warning("speeds", (), {**fields, "half": half})
        for row, ratio in of.items():
            if row.role == "aa" and (ratio.low > 1 or ratio.high < 1):
                yield Warning("unlike_speed", (f"{named(row.label)} {ratio}",), fields)


def _unmeasured(table: TableFrames) -> Iterator[Warning]:
    """Yield warnings about metrics that failed or are missing, and commands to measure them."""
    runs = {run.id: run.label for run in table.runs if run.outcome == "ok"}
    finished = Counter(runs.values())
    tried = [row for row in table.attempts if row.run in runs or not row.run]
    failed = Counter(
        (row.metric, row.label, row.error, bool(row.run)) for row in tried if row.error
    )
    for (metric, label, error, is_of_runs), n in failed.items():
        some = f"{n} of {finished[label]} finished runs of " * is_of_runs
        yield Warning("not_measured", (f"{some}'{label}'",), {"metric": metric, "error": error})
    counts = Counter((row.metric, row.label) for row in tried if row.run)
    for metric in sorted({metric for metric, _ in counts} - {TRAINING}):  # from the loop itself
        for label, n in finished.items():
            if counts[metric, label] < n:
                fields = {"metric": metric, "part": f"{counts[metric, label]} of {n}"}
                yield Warning("partly_measured", (f"'{label}'",), fields)
    if len(table.machines) == len(table.runs) and finished:  # else `run` will still measure
        wanted = {metric for metric in map(_name_metric, table.experiment.measure) if metric}
        for metric in sorted(wanted - {row.metric for row in table.attempts}):
            yield Warning("unmeasured", (), {"metric": metric})


def _name_metric(entry: Entry) -> str:
    """Return a `measure` entry's metric name, or "" for speeds noted in training."""
    name, options = (entry, {}) if isinstance(entry, str) else (entry["name"], entry)
    return "" if name == "train_speed" and not options.get("paired") else str(name)


def list_tuning_limits(table: TableFrames, named: Callable[[str], str] = repr) -> Iterator[Warning]:
    """Yield warnings about best values at a tuning grid's edge, and missing trials."""
    for row in tuning.trials(table.runs, table.plan.repeated, table.loss):
        if row.finished < row.trials:
            yield Warning("trials", (f"{named(row.label)} ({row.finished} of {row.trials})",))
        elif row.edge:
            yield Warning("edge", (f"{named(row.label)} ({row.chosen})",), {"key": row.edge})
