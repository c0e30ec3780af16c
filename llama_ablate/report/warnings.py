"""Warnings: what limits the comparison of an experiment's runs, in whole sentences."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import pandas as pd

from llama_ablate.config.experiment import Experiment
from llama_ablate.config.labels import entry_text
from llama_ablate.config.registry import Entry
from llama_ablate.evidence.power import Noise, expected_half_width
from llama_ablate.evidence.text_error import DOCUMENTS, StandardError
from llama_ablate.findings import controls, effects, heldout, secondary, tuning
from llama_ablate.findings.comparison import ComparisonRow, count_outcomes
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.findings.hypotheses import NOT_LEARNED, explain_undecidable
from llama_ablate.findings.speeds import Ratio
from llama_ablate.results import protocol
from llama_ablate.results.plan_document import PlannedTable, PlannedText
from llama_ablate.results.protocol import Replaced
from llama_ablate.results.record import TRAINING
from llama_ablate.terminal import listed, plural

_UNSTEADY = 0.1  # of the median, over which the middle half of the turns may not lie apart
#: Half of an interval of a speed, as a share, that a paired pass aims at.
WANTED_HALF_WIDTH = 0.05
DIFF_WORDS = {"-": "Dropped from", "+": "Added to"}
#: Seeds of which a row has one degree of freedom; and those that a single row needs, as no other
#: lends it any.
_FEWEST, _FEWEST_ALONE = 2, 4
_UNIT = Noise(StandardError(1.0, math.inf))
#: The share of tables with a false verdict after so many unplanned looks, each at twice the seeds
#: of the one before: seven variants that equal the baseline, from three seeds on, simulated.
UNPLANNED = (0.014, 0.036, 0.065, 0.094, 0.125, 0.151)


def warnings(frames: Frames) -> list[str]:
    """Return the warnings about an experiment; those that several tables share once."""
    of_tables = (sentence for table in frames.tables for sentence in _of_table(table))
    return list(dict.fromkeys([*_changed(frames), *machines(frames), *of_tables]))


def planned(table: PlannedTable, experiment: Experiment) -> list[str]:
    """Return what limits a table's comparison and is known before any run, in whole sentences."""
    text = (
        *_few_tokens(table),
        *_covered(table),
        *_lossy(table.text),
        *few_documents(table.text),
        *_overlaps(table.text),
    )
    seeds = (*_one_rate(table, experiment), *_two_seeds(table, experiment))
    return [*text, *_not_provided(table), *_balanced(table, experiment), *seeds]


def _few_tokens(table: PlannedTable) -> Iterator[str]:
    """Yield a warning where runs are so short that their losses say little of the architecture."""
    per_parameter = table.tokens_per_run / table.baseline.parameters
    if per_parameter < 1:
        yield (
            f"{per_parameter:.2g} tokens a parameter: so short a run shows that everything works, "
            "and hardly which variant learns better. Train on one token a parameter at least, "
            "better on twenty."
        )


def _overlaps(text: PlannedText) -> Iterator[str]:
    """Yield the share of held-out text that is also training text."""
    if text.left_out:
        yield (
            f"{text.left_out:,} held-out {plural(text.left_out, 'document')} also stood in "
            "training text, or test in validation text: left out (overlap: drop)."
        )
    for name, one in text.overlaps.items():
        there = "the training text" if name == "corpus" else f"the training text of '{name}'"
        there = "the validation text" if name == "test" else there
        if one.tokens:
            yield (
                f"{one.tokens / one.all_tokens:.2%} of the held-out tokens, {one.documents:,} of "
                f"{one.all_documents:,} documents as a whole, also stand in {there}: their loss "
                "says nothing of new text."
            )


def of_text(table: PlannedTable, experiment: Experiment) -> Iterator[str]:
    """Yield how rows are evaluated where they read unlike text, and which are not paired by it.

    Nothing where all variants read one text in one way, in the same order.
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


def _balanced(table: PlannedTable, experiment: Experiment) -> Iterator[str]:
    """Yield the cost of balancing experts where a step is cut into parts."""
    is_cut = experiment.train.accumulate > 1 or experiment.parallel.data > 1
    by_loss = [f"'{variant.label}'" for variant in table.variants if variant.balances_by_loss]
    if is_cut and by_loss:
        yield (
            f"Experts of {listed(by_loss)} are balanced by a loss of the whole step: its parts are "
            "computed forward once more, a third of the step's FLOPs; balance: bias needs none."
        )


def _not_provided(table: PlannedTable) -> Iterator[str]:
    """Yield which counts are missing, of a mixer of a user's that does not provide them."""
    lacking = (v for v in table.variants if None in (v.flops_per_token, v.kv_bytes_per_token))
    entries = (v.model.get("attention", "its attention") for v in lacking)
    named = dict.fromkeys(entry_text(entry, options=False) for entry in entries)
    for name in named:
        yield f"A dash in FLOPs or in bytes of a state: not provided by '{name}'."


def _two_seeds(table: PlannedTable, experiment: Experiment) -> Iterator[str]:
    """Yield a warning where two seeds are to decide rows that each rest on those alone."""
    ranked = [variant for variant in table.variants if not (variant.baseline or variant.role)]
    is_factorial = any(variant.levels for variant in table.variants)
    few = experiment.looks[-1] < (_FEWEST_ALONE if len(ranked) == 1 else _FEWEST + 1)
    if ranked and experiment.looks[-1] >= _FEWEST and few and not is_factorial:
        half = expected_half_width(experiment.looks[-1], len(ranked), _UNIT)
        yield (
            f"{experiment.looks[-1]} seeds decide little here: the interval of a row is expected "
            f"to be {half:.2g} times the deviation of a difference over seeds to either side. Take "
            "four seeds, or a design that pools them (fraction, product)."
        )


def _covered(table: PlannedTable) -> Iterator[str]:
    """Yield the levels of the file without a row, with the reason."""
    for variant in table.variants:
        for label in variant.covers:
            yield f"'{label}' changes nothing of '{variant.label}', so it has no row of its own."


def _lossy(text: PlannedText) -> Iterator[str]:
    """Yield a warning where a tokenizer loses text, with an example."""
    if text.lost:
        yield f"The tokenizer loses text ({text.lost}), so there are no bits per byte."


def few_documents(text: PlannedText) -> Iterator[str]:
    """Yield a warning where a held-out split has few of many documents."""
    held_out = {split: n for split, n in text.documents.items() if split != "train"}
    total = sum(text.documents.values())
    few = [f"the {split} split has {n}" for split, n in held_out.items() if n < DOCUMENTS]
    if few and total >= len(text.documents) * DOCUMENTS:
        yield (
            f"Of {total:,} documents {listed(few)}: fewer than {DOCUMENTS} say little of how a "
            "difference varies over texts; splits of [0.9, 0.05, 0.05] have more."
        )


def _one_rate(table: PlannedTable, experiment: Experiment) -> Iterator[str]:
    """Yield a warning where variants have the learning rate of another's optimizer."""
    base, variants = table.baseline, table.variants
    labels = [f"'{v.label}'" for v in variants if tuning.one_rate(table, experiment, v, base)]
    if labels:
        yield (
            f"The optimizers of {listed(labels)} and of '{base.label}' differ, with "
            f"{tuning.ONE_RATE}. `tune: {{lr: [...]}}` chooses a rate for each."
        )


def _other_items(table: TableFrames) -> Iterator[str]:
    """Yield a warning where a task's file was changed between runs."""
    named = [f"'{task}'" for task in secondary.other_items(table)]
    if named:
        yield (
            f"Runs have answered other items of {listed(named)}: its file was changed between them."
            " Only runs with the same items are compared; `measure DIR cloze --again` asks all."
        )


def _of_table(table: TableFrames) -> Iterator[str]:
    first = (
        *(_other_items, _ended_so, _by_the_last_loss, _not_learned, _unlike_baselines),
        *(_short_of_text, _no_text),
    )
    last = (_undecidable, _leaks, _failed_metrics, _lacking_metrics)
    for part in first:
        yield from part(table)
    yield from planned(table.plan, table.experiment)
    for part in last:
        yield from part(table)
    yield from _timed(table.comparison)
    yield from list_tuning_limits(table)
    if len(table.experiment.seed_list) == 1:
        yield "There is one seed: differences have no interval."


def _undecidable(table: TableFrames) -> Iterator[str]:
    """Yield why no difference of losses can be decided in a table."""
    if why := explain_undecidable(table):
        where = f" in '{table.plan.name}'" if table.plan.name else ""
        yield f"Differences of losses{where} cannot be decided: {why}."


def _ended_so(table: TableFrames) -> Iterator[str]:
    """Yield how many runs have not finished, and which have no loss to compare."""
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


def _unlike_baselines(table: TableFrames) -> Iterator[str]:
    """Yield a warning where a baseline with other draws differs from the baseline."""
    for row in controls.check_controls(table):
        if row.control == "redraw" and row.why.endswith("leaves out 0"):
            yield (
                f"'{row.label}', the baseline with other random draws, differs from it by "
                f"{row.why.partition(',')[0]}: 1 in 20 such intervals does by chance, and runs of "
                "two kinds do, of which seeds tell less than their intervals say."
            )


def _not_learned(table: TableFrames) -> Iterator[str]:
    """Yield a warning where no arm is far enough below the loss of token frequencies."""
    if not table.has_learned:
        yield f"Too short to call any row equivalent: {NOT_LEARNED}."


def _short_of_text(table: TableFrames) -> Iterator[str]:
    """Yield a warning of rows, or of effects, that more seeds would leave undecided."""
    names = effects.level_names(table.plan, table.experiment)
    contrasts = effects.find_contrasts(table)
    tested = {effects.name_effect(one.effect, names): one.interval for one in contrasts} or {
        variant.label: table.intervals[variant.id]
        for variant in table.plan.variants
        if not variant.baseline and not variant.role
    }
    half = {name: heldout.by_text_alone(row, table.margin) for name, row in tested.items()}
    named = [f"'{label}' (±{own:.3f})" for label, own in half.items() if not math.isnan(own)]
    if named:
        yield (
            f"More documents, not more seeds, would decide {listed(named)}: in brackets, in "
            f"{table.unit.name}, the error from the held-out text alone."
        )


def _no_text(table: TableFrames) -> Iterator[str]:
    """Yield that intervals have no part of the held-out text's error, where they have none."""
    has_pairs = any(len(own) > 1 for own in table.differences().values())
    if has_pairs and not table.documents(table.split):
        yield (
            "The losses were not stored by document: the intervals cover seeds, and not what "
            "another held-out text would show."
        )


def _by_the_last_loss(table: TableFrames) -> Iterator[str]:
    """Yield a note where runs collapsed by a rule of older versions."""
    collapsed = [run for run in table.runs if run.outcome == "collapsed"]
    if old := sum(math.isnan(run.number("unigram_loss_nats")) for run in collapsed):
        yield (
            f"{old} of {len(table.runs)} runs collapsed by the rule of an older version, which "
            "looked at the last loss alone: the unigram loss was not kept, and these outcomes "
            "stand."
        )


def machines(frames: Frames) -> list[str]:
    """List differences of machine and software between runs."""
    every = pd.concat([table.machines for table in frames.tables])
    kinds = {what: sorted(set(values)) for what, values in every.items()}
    return [
        f"The runs were made with different {what} ({'; '.join(values)})."
        for what, values in kinds.items()
        if len(values) > 1
    ]


def _changed(frames: Frames) -> Iterator[str]:
    """Yield changes of the file since the first run had finished."""
    if not any(len(table.machines) for table in frames.tables):
        return
    versions, experiment = frames.protocol, frames.plan.experiment
    if not versions:
        yield "What was stated before the first run is not known: protocol.json is missing."
        return
    if first := versions[0].after_runs:
        yield f"What was stated before the first {first} runs is not known."
    changes = protocol.changes(versions, experiment)
    for change in changes:
        for line in change.lines:
            yield f"{DIFF_WORDS[line[0]]} the file {change.when}: `{line[2:]}`."
    for gone in (gone for change in changes for gone in change.version.replaced):
        yield f"A control was replaced, '{gone.label}', whose runs had ended: {_ended(gone)}."
    for one in versions:
        for again in one.redone:
            yield (
                f"'{again.label}' was trained again on request, after {one.after_runs} runs had "
                f"finished; the earlier records lie in redone/: {', '.join(again.outcomes)}."
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


def _ended(gone: Replaced) -> str:
    ended = count_outcomes(gone.outcomes) or "none had finished"
    if gone.difference_nats is None:
        return ended
    return f"{ended}, {gone.difference_nats:+.4f} nats from the baseline on average"


def _timed(rows: Sequence[ComparisonRow]) -> list[str]:
    """Say which speeds have wide intervals, or differ from turn to turn or for the same code."""
    wide, unsteady, sentences = {}, {}, []
    for name, title in (("train", "training"), ("decode", "decode")):
        of: dict[str, Ratio] = {row.label: getattr(row, f"{name}_speed") for row in rows}
        halves = {label: one.high / one.ratio - 1 for label, one in of.items() if one.processes > 1}
        if (most := max(halves.values(), default=0.0)) > WANTED_HALF_WIDTH:
            processes = max(one.processes for one in of.values())
            wide[name] = f"{title}: up to {most:.0%} in {processes} processes"
        differing = {f"'{k}'": of[k].spread for k in halves if of[k].spread > _UNSTEADY}
        if differing:
            most = max(differing.values())
            unsteady[name] = f"{title}: by up to {most:.0%} ({listed([*differing])})"
        sentences += [
            f"The same code differs in its {title} speed: '{row.label}' {of[row.label]}. Where "
            "that is more than a few percent, something other than the code decides speeds. "
            f"{_again([name])}"
            for row in rows
            if row.role == "aa" and _differs(of[row.label])
        ]
    if wide:
        sentences.append(
            f"Half an interval of a speed is wider than {WANTED_HALF_WIDTH:.0%} "
            f"({'; '.join(wide.values())}). {_again(wide)}"
        )
    if unsteady:
        sentences.append(
            f"Speeds differ from turn to turn by more than {_UNSTEADY:.0%}, in the middle half of "
            f"the turns ({'; '.join(unsteady.values())}): the machine was busy, or a turn is too "
            f"short. {_again(unsteady)}"
        )
    return sentences


def _differs(ratio: Ratio) -> bool:
    """Return whether the interval of a ratio leaves out 1."""
    return ratio.low > 1 or ratio.high < 1


def _again(names: Iterable[str]) -> str:
    """Say how speeds are measured again."""
    metrics = " ".join(f"{name}_speed" for name in names)
    return f"`llama-ablate measure DIR {metrics} --again` measures them again."


def _leaks(table: TableFrames) -> Iterator[str]:
    """Yield the runs whose loss is below the entropy of the text."""
    for split in tuning.SPLITS:
        for run in table.runs:
            if run.number(f"{split}_excess_nats") < -3 * run.number(f"{split}_excess_se_nats"):
                yield (
                    f"{run.label}, seed {run.seed}: the {split} loss is below the best possible by "
                    "more than three standard errors: something leaks."
                )


def _failed_metrics(table: TableFrames) -> Iterator[str]:
    """Yield which metrics failed, and why."""
    finished = _finished(table)
    failed, ok = [row for row in table.attempts if row.error], _ok(table)
    for row in failed:
        if not row.run:
            yield f"{row.metric} was not measured of '{row.label}': {row.error}."
    counts = Counter((row.metric, row.label, row.error) for row in failed if row.run in ok)
    for (metric, label, error), n in counts.items():
        runs = f"{n} of {finished[label]} finished runs of '{label}'"
        yield f"{metric} was not measured of {runs}: {error}."


def _lacking_metrics(table: TableFrames) -> Iterator[str]:
    """Yield the metrics that were not tried on every finished run, and how to measure them."""
    finished = _finished(table)
    ok = _ok(table)
    tried = Counter((row.metric, row.label) for row in table.attempts if row.run in ok)
    lacking: dict[tuple[str, int, int], list[str]] = {}
    for metric in sorted({metric for metric, _ in tried} - {TRAINING}):  # of the loop: no metric
        for label, runs in finished.items():
            if tried[metric, label] < runs:
                lacking.setdefault((metric, tried[metric, label], runs), []).append(f"'{label}'")
    for (metric, n, runs), labels in lacking.items():
        measured = f"{metric} was measured on {n} of {runs} finished runs of {listed(labels)}"
        yield f"{measured}; `llama-ablate measure DIR {metric}` measures the rest."
    if len(table.machines) == len(table.runs) and finished:  # else `run` is still to measure
        stated = {
            entry if isinstance(entry, str) else entry["name"]: entry
            for entry in table.experiment.measure
        }
        wanted = {*stated}
        if not _asks_for_pairs(stated.get("train_speed")):
            wanted.discard("train_speed")  # which is that of the runs
        for metric in sorted(wanted - {row.metric for row in table.attempts}):
            yield f"{metric} was not measured; `llama-ablate measure DIR {metric}` measures it."


def _asks_for_pairs(entry: Entry | None) -> bool:
    """Return whether an entry of `measure` asks for timings in pairs."""
    return isinstance(entry, dict) and bool(entry.get("paired"))


def _ok(table: TableFrames) -> set[str]:
    """Return the ids of the runs that ended ok."""
    return {run.id for run in table.runs if run.outcome == "ok"}


def _finished(table: TableFrames) -> "Counter[str]":
    """Count the runs that ended ok by their variant's label."""
    return Counter(run.label for run in table.runs if run.outcome == "ok")


def list_tuning_limits(table: TableFrames) -> Iterator[str]:
    """Yield where a grid was too narrow, and which variants were not tried at all of it."""
    for row in tuning.trials(table.runs, table.plan.repeated, table.loss):
        if row.finished < row.trials:
            yield (
                f"{row.label}: {row.finished} of {row.trials} trials have finished; a "
                "variant that is less tuned is not ranked."
            )
        elif row.edge:
            yield (
                f"{row.label}: the best {row.edge} lies at the edge of the grid "
                f"({row.chosen}); the true best may lie beyond."
            )
