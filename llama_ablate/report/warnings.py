"""Warnings of a report: limits of an experiment's comparison, in sentences."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

import pandas as pd

from llama_ablate.config.experiment import Experiment
from llama_ablate.config.labels import entry_text
from llama_ablate.config.registry import Entry
from llama_ablate.evidence.text_error import DOCUMENTS
from llama_ablate.findings import effects, heldout, secondary, tuning
from llama_ablate.findings.comparison import ComparisonRow, count_outcomes
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.findings.hypotheses import explain_undecidable
from llama_ablate.findings.rows import grouped
from llama_ablate.results import protocol
from llama_ablate.results.plan_document import PlannedTable, PlannedText
from llama_ablate.results.record import TRAINING
from llama_ablate.terminal import listed, plural

#: Target for the relative half width of speed intervals when speeds are measured in pairs.
WANTED_HALF_WIDTH = 0.05
DIFF_WORDS = {"-": "Dropped from", "+": "Added to"}
#: Fewest seeds of a table with several variants, and with one variant, which has no other rows from
#: which to pool the variance.
_MIN_SEEDS, _MIN_SEEDS_ALONE = 3, 4
#: Share of tables with a false verdict, by the number of unplanned additions of seeds.
#: Simulated with seven variants equal to the baseline, from three seeds, doubled each time.
UNPLANNED = (0.014, 0.036, 0.065, 0.094, 0.125, 0.151)


def warnings(frames: Frames) -> list[str]:
    """Return the warnings about an experiment's comparison, without repetitions."""
    table_warnings = (sentence for table in frames.tables for sentence in _warn_of_table(table))
    all_warnings = (*_changed(frames), *list_machines(frames), *frames.plan.notes)
    return list(dict.fromkeys([*all_warnings, *table_warnings]))


def planned(table: PlannedTable, experiment: Experiment) -> list[str]:
    """Return warnings about a comparison table that are known before any run."""
    text_warnings = (*few_documents(table.text), *_overlaps(table.text))
    return [
        *_few_tokens(table),
        *_unlike(table, experiment),
        *text_warnings,
        *_few_seeds(table, experiment),
    ]


def _warn_of_table(table: TableFrames) -> Iterator[str]:
    for part in (_outcomes, _other_items, _undecidable, _short_of_text, _leaks, _unmeasured):
        yield from part(table)
    yield from planned(table.plan, table.experiment)
    yield from list_speed_limits(table.comparison)
    yield from list_tuning_limits(table)


def _few_tokens(table: PlannedTable) -> Iterator[str]:
    """Yield a warning if runs train on less than one token per parameter."""
    per_parameter = table.tokens_per_run / table.baseline.parameters
    if per_parameter < 1:
        yield (
            f"{per_parameter:.2g} tokens a parameter: a run this short shows that everything "
            "works, but hardly which variant learns better. Train on at least one token a "
            "parameter, better on twenty."
        )


def _unlike(table: PlannedTable, experiment: Experiment) -> Iterator[str]:
    """Yield warnings about rows and numbers that a comparison table lacks.

    A row is missing for an axis value that changes nothing. Missing numbers are FLOPs, state bytes
    and bits per byte. Different optimizers with one untuned learning rate are reported, too.
    """
    base, variants = table.baseline, table.variants
    for variant in variants:
        for label in variant.covers:
            yield f"'{label}' changes nothing of '{variant.label}', so it has no row of its own."
    lacking = (v for v in variants if None in (v.flops_per_token, v.kv_bytes_per_token))
    entries = (v.model.get("attention", "its attention") for v in lacking)
    for name in dict.fromkeys(entry_text(entry, options=False) for entry in entries):
        yield f"A dash in FLOPs or in bytes of a state: '{name}' does not provide them."
    if labels := [f"'{v.label}'" for v in variants if tuning.one_rate(table, experiment, v, base)]:
        yield (
            f"The optimizers of {listed(labels)} and of '{base.label}' differ, with "
            f"{tuning.ONE_RATE}. `tune: {{lr: [...]}}` chooses a rate for each."
        )
    if table.text.lost:
        yield f"The tokenizer loses text ({table.text.lost}), so there are no bits per byte."


def few_documents(text: PlannedText) -> Iterator[str]:
    """Yield a warning if held-out splits have few documents although the corpus has enough."""
    held_out = {split: n for split, n in text.documents.items() if split != "train"}
    total = sum(text.documents.values())
    few = [f"the {split} split has {n}" for split, n in held_out.items() if n < DOCUMENTS]
    if few and total >= len(text.documents) * DOCUMENTS:
        yield (
            f"Of {total:,} documents {listed(few)}: fewer than {DOCUMENTS} say little about how a "
            "difference varies over texts; splits of [0.9, 0.05, 0.05] have more."
        )


def _overlaps(text: PlannedText) -> Iterator[str]:
    """Yield warnings about held-out text that is also in the training text."""
    if text.left_out:
        yield (
            f"{text.left_out:,} held-out {plural(text.left_out, 'document')} also stood in "
            "training text, or test in validation text: left out (overlap: drop)."
        )
    for name, overlap in text.overlaps.items():
        there = "the training text" if name == "corpus" else f"the training text of '{name}'"
        there = "the validation text" if name == "test" else there
        if overlap.tokens:
            yield (
                f"{overlap.tokens / overlap.all_tokens:.2%} of the held-out tokens, "
                f"{overlap.documents:,} of {overlap.all_documents:,} documents as a whole, also "
                f"stand in {there}: their loss "
                "says nothing about new text."
            )
        if overlap.parts:
            yield (
                f"{overlap.parts:.0%} of the held-out text also stands in {there}, in passages of "
                "some 400 bytes: parts of documents that are not equal as a whole."
            )


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


def _few_seeds(table: PlannedTable, experiment: Experiment) -> Iterator[str]:
    """Yield a warning if the planned seeds are too few to decide verdicts."""
    ranked = [variant for variant in table.variants if not (variant.baseline or variant.role)]
    wanted = _MIN_SEEDS_ALONE if len(ranked) == 1 else _MIN_SEEDS
    seeds = experiment.looks[-1]
    if seeds == 1:
        yield "There is one seed: differences have no interval."
    elif ranked and seeds < wanted and not any(variant.levels for variant in table.variants):
        yield (
            f"{seeds} seeds decide little here: use {wanted} or more, or a design that pools them "
            "(fraction, product)."
        )


def _other_items(table: TableFrames) -> Iterator[str]:
    """Yield a warning if a task's file was changed between runs."""
    named = [f"'{task}'" for task in secondary.other_items(table)]
    if named:
        yield (
            f"Some runs have answered other items of {listed(named)}: its file was changed. Only "
            "runs with the same items are compared; `measure DIR cloze --again` asks all."
        )


def _undecidable(table: TableFrames) -> Iterator[str]:
    """Yield the reason if a table cannot decide differences in loss."""
    if why := explain_undecidable(table):
        where = f" in '{table.plan.name}'" if table.plan.name else ""
        yield f"Differences of losses{where} cannot be decided: {why}."


def _outcomes(table: TableFrames) -> Iterator[str]:
    """Yield warnings about unfinished runs, runs without a loss, and too short runs."""
    runs = [run for run in table.runs if run.use not in ("trial", "race")]
    if pending := sum(run.outcome == "pending" for run in runs):
        yield f"{pending} of {len(runs)} planned runs have not finished."
    for run in runs:
        if run.outcome not in ("ok", "pending"):
            yield f"{run.label}, seed {run.seed}: {run.outcome} ({run.reason})."
    if short := [run for run in runs if run.too_short]:
        first = short[0]
        yield (
            f"{len(short)} of {len(runs)} runs are too short to compare, such as {first.label}, "
            f"seed {first.seed}: {first.reason}."
        )


def _short_of_text(table: TableFrames) -> Iterator[str]:
    """Yield a warning about variants or effects that more seeds would leave undecided.

    The sampling error of the held-out text alone makes the intervals too wide.
    """
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
    named = [f"'{label}' (±{width:.3f})" for label, width in half.items() if not math.isnan(width)]
    if named:
        yield (
            f"More documents, not more seeds, would decide {listed(named)}: in brackets, in "
            f"{table.unit.name}, the error from the held-out text alone."
        )


def list_machines(frames: Frames) -> list[str]:
    """List differences in hardware and software between runs, one sentence each."""
    every = pd.concat([table.machines for table in frames.tables])
    kinds = {what: sorted(set(values)) for what, values in every.items()}
    return [
        f"The runs were made with different {what} ({'; '.join(values)})."
        for what, values in kinds.items()
        if len(values) > 1
    ]


def _changed(frames: Frames) -> Iterator[str]:
    """Yield warnings about changes of the experiment file after the first run had finished.

    The changes include replaced controls, runs trained again on request, and unplanned additions of
    seeds.
    """
    if not any(len(table.machines) for table in frames.tables):
        return
    versions, experiment = frames.protocol, frames.plan.experiment
    if not versions:
        yield "It is not known what was stated before the first run: protocol.json is missing."
        return
    if first := versions[0].after_runs:
        yield f"What was stated before the first {first} runs is not known."
    for change in protocol.changes(versions, experiment):
        for line in change.lines:
            yield f"{DIFF_WORDS[line[0]]} the file {change.when}: `{line[2:]}`."
        for gone in change.version.replaced:
            ended = count_outcomes(gone.outcomes) or "none had finished"
            is_known = gone.difference_nats is not None
            by = (
                f", {gone.difference_nats:+.4f} nats from the baseline on average"
                if is_known
                else ""
            )
            yield f"A control was replaced, '{gone.label}', whose runs had ended: {ended}{by}."
    for version in versions:
        for redo in version.redone:
            yield (
                f"'{redo.label}' was trained again on request, after {version.after_runs} runs had "
                f"finished; the earlier records lie in redone/: {', '.join(redo.outcomes)}."
            )
    if looks := protocol.unplanned_looks(versions, experiment):
        most = len(UNPLANNED) - 1
        share = f"{'at least ' * (looks > most)}{UNPLANNED[min(looks, most)]:.1%}"
        yield (
            f"Seeds were added {looks} {plural(looks, 'time')} after a look at results: where no "
            f"variant differs, that gives {share} of tables a false verdict and not "
            f"{UNPLANNED[0]:.1%} (simulated: seven variants, seeds doubled each time from three "
            "on). `seeds: {looks: [3, 6, 12]}` plans for it."
        )


def list_speed_limits(rows: Sequence[ComparisonRow]) -> Iterator[str]:
    """Yield warnings about speeds with wide intervals, and about speeds of A/A arms.

    An A/A arm runs the baseline's code, so a difference in speed has another cause than the code.
    """
    for name, title in (("train", "training"), ("decode", "decode")):
        of = {row: getattr(row, f"{name}_speed") for row in rows}
        hint = f"`llama-ablate measure DIR {name}_speed --again` measures them again."
        half = max(
            (ratio.high / ratio.ratio - 1 for ratio in of.values() if ratio.processes > 1),
            default=0,
        )
        if half > WANTED_HALF_WIDTH:
            yield f"Intervals of {title} speeds are up to {half:.0%} wide to either side. {hint}"
        for row, ratio in of.items():
            if row.role == "aa" and (ratio.low > 1 or ratio.high < 1):
                yield (
                    f"The same code differs in its {title} speed: '{row.label}' {ratio}. Something "
                    f"other than the code decides speeds here. {hint}"
                )


def _leaks(table: TableFrames) -> Iterator[str]:
    """Yield warnings about runs whose loss is below the entropy of the text."""
    for split in tuning.SPLITS:
        for run in table.runs:
            if run.number(f"{split}_excess_nats") < -3 * run.number(f"{split}_excess_se_nats"):
                yield (
                    f"{run.label}, seed {run.seed}: the {split} loss is below the best possible by "
                    "more than three standard errors: something leaks."
                )


def _unmeasured(table: TableFrames) -> Iterator[str]:
    """Yield warnings about metrics that failed or are missing, and commands to measure them."""
    runs = {run.id: run.label for run in table.runs if run.outcome == "ok"}
    finished = Counter(runs.values())
    tried = [row for row in table.attempts if row.run in runs or not row.run]
    failed = Counter(
        (row.metric, row.label, row.error, bool(row.run)) for row in tried if row.error
    )
    for (metric, label, error, runs_text), n in failed.items():
        some = f"{n} of {finished[label]} finished runs of " * runs_text
        yield f"{metric} was not measured of {some}'{label}': {error}."
    counts = Counter((row.metric, row.label) for row in tried if row.run)
    missing = {
        (metric, label): (counts[metric, label], n)
        for metric in sorted({metric for metric, _ in counts} - {TRAINING})  # from the loop itself
        for label, n in finished.items()
        if counts[metric, label] < n
    }
    for (metric, (n, of)), keys in grouped(missing, lambda key: (key[0], missing[key])).items():
        labels = listed([f"'{label}'" for _, label in keys])
        measured = f"{metric} was measured on {n} of {of} finished runs of {labels}"
        yield f"{measured}; `llama-ablate measure DIR {metric}` measures the rest."
    if len(table.machines) == len(table.runs) and finished:  # else `run` will still measure
        wanted = {metric for metric in map(_name_metric, table.experiment.measure) if metric}
        for metric in sorted(wanted - {row.metric for row in table.attempts}):
            yield f"{metric} was not measured; `llama-ablate measure DIR {metric}` measures it."


def _name_metric(entry: Entry) -> str:
    """Return a `measure` entry's metric name, or "" for speeds noted in training."""
    name, options = (entry, {}) if isinstance(entry, str) else (entry["name"], entry)
    return "" if name == "train_speed" and not options.get("paired") else str(name)


def list_tuning_limits(table: TableFrames) -> Iterator[str]:
    """Yield warnings about best values at a tuning grid's edge, and missing trials."""
    where = f" in '{table.plan.name}'" if table.plan.name else ""
    for row in tuning.trials(table.runs, table.plan.repeated, table.loss):
        if row.finished < row.trials:
            yield (
                f"{row.label}{where}: {row.finished} of {row.trials} trials have finished; a "
                "variant that is less tuned is not ranked."
            )
        elif row.edge:
            yield (
                f"{row.label}{where}: the best {row.edge} lies at the edge of the grid "
                f"({row.chosen}); the true best may lie beyond."
            )
