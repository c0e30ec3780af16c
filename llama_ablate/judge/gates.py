"""Gates of a candidate: two experiments, repeated measurement of their runs, and a decision.

A candidate is a proposed change of the best variant so far. Gate one compares the variant with this
change to the best; gate two repeats the comparison with fresh seeds on another text.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import llama_ablate
from llama_ablate.config import experiment
from llama_ablate.design import checks, variants
from llama_ablate.errors import ConfigError
from llama_ablate.evidence import written
from llama_ablate.files import disk
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.judge.ledger import Begun, Gated, GateDifference, Ledger, Verdict
from llama_ablate.judge.remeasuring import find_difference
from llama_ablate.launch import processes
from llama_ablate.measure import METRICS
from llama_ablate.results import FINAL, Results, Store

GATES: tuple[Literal[1, 2], ...] = (1, 2)
#: Verdicts by which a variant loses against the best.
LOSING = ("worse", "diverged", "collapsed")
_MAX_EXIT_CODE = 128  # added to the number of a signal that ended the command
_OTHER_CODE: tuple[Verdict, str] = "invalid", "the code of the judge has changed since it began"


def run_gates(
    ledger: Ledger, begun: Begun, folder: Path, flags: Sequence[str]
) -> tuple[Verdict, str]:
    """Run a candidate's remaining gates; return its verdict with the reason.

    `folder` holds the candidate's experiments. `flags` are options of `llama-ablate run`: workers
    and device.
    """
    passed = {event.gate: event for event in ledger.of(Gated) if event.number == begun.number}
    files = ledger.plugins(*ledger.path[: begun.best], begun)
    for gate in GATES:
        if begun.code != hash_code():
            return _OTHER_CODE
        if gate not in passed:
            values = ledger.gate(begun, gate)
            frames = train(values, folder, flags, files)
            if begun.code != hash_code():
                return _OTHER_CODE
            fault = _find_other_plan(frames, values, ledger.opened.texts[gate - 1])
            if not fault:
                place = folder.resolve() / f"gate-{gate}"
                fault = _find_fault(frames, begun.label, place, has_code=bool(begun.plugins))
            if fault:
                return "invalid", f"{fault}, at gate {gate}"
            alpha = ledger.alpha(begun, 2) if gate == 2 else None
            # Tables of other document modes, budgets and matchings do not affect the decision.
            tables = frames.rungs or [frames.table]
            differences = [list_differences(table, alpha)[begun.label] for table in tables]
            passed[gate] = event = Gated(number=begun.number, gate=gate, found=differences)
            ledger, _ = ledger.add(event)
        if decision := decide(gate, passed[gate].found):
            return decision
    raise AssertionError("gate two decides")


def decide(gate: int, found: Sequence[GateDifference]) -> tuple[Verdict, str] | None:
    """Return a gate's decision with its reason; None to continue to gate two.

    `found` holds the candidate's differences from the best: the first at the ledger's own model
    size, the others at further sizes.
    """
    main, sizes = found[0], found[1:]
    said = f"gate {gate}: {describe(main)}"
    undecided = [f"{name} {result}" for name, result in main.guards.items() if result != "holds"]
    broken = [guard for guard in undecided if guard.endswith(" worse")]
    measured = [size for size in sizes if size.n]
    contrary = [f"{size.table}, {describe(size)}" for size in measured if not size.difference < 0]
    contrary += [f"{size.table}, {size.verdict}" for size in sizes if size.verdict in LOSING]
    contrary += [f"{size.table}, guard" for size in sizes if "worse" in size.guards.values()]
    needed = written.seeds(main.seeds_low)
    needed = f"; {needed} would decide" if needed else ""
    word = "" if main.verdict == "inconclusive" else f", {main.verdict}"
    cases: tuple[tuple[bool, Verdict, str], ...] = (
        (main.verdict == "equivalent", "rejected", f"{said}, no gain larger than the margin"),
        (main.verdict in LOSING or main.low > 0, "rejected", f"{said}{word}"),
        (bool(broken), "rejected", f"{said}, but breaks a guard: {''.join(broken[:1])}"),
        (main.verdict != "better", "inconclusive", f"{said}{word}{needed}"),
        (gate == 2 and bool(undecided), "inconclusive", f"{said}; guard {''.join(undecided[:1])}"),
        (bool(contrary), "rejected", f"{said}, but no gain at {''.join(contrary[:1])}"),
        (len(measured) < len(sizes), "inconclusive", f"{said}, and nothing at a second size"),
        (gate == 2, "accepted", said),
    )
    return next(((verdict, why) for holds, verdict, why in cases if holds), None)


def describe(found: GateDifference) -> str:
    """Format a difference with its interval, confidence level and number of seeds."""
    if not found.n:
        return "no pair of runs to compare"
    level = written.number(100 * (1 - found.alpha), ".4g", "%")
    by = written.interval(found.difference, found.low, found.high)
    return f"{by} {found.unit} ({level}, {found.n} seeds)"


def list_differences(table: TableFrames, alpha: float | None = None) -> dict[str, GateDifference]:
    """Return the difference of each variant from the baseline, by label.

    The intervals have the table's own error level, or `alpha` if it is given.
    """
    plan, by_label = table.plan, {}
    base = table.losses[plan.baseline.id]
    for variant, row in zip(plan.variants, table.comparison, strict=True):
        losses = table.losses[variant.id]
        also: dict[str, Any] = {
            "table": plan.name,
            "guards": {
                guard.measure: guard.result for guard in table.guards if guard.label == row.label
            },
            "losses": {str(seed): (losses[seed], base[seed]) for seed in losses if seed in base},
        }
        if alpha and variant.id in table.standings:
            difference = table.standings[variant.id].row
            interval = difference.interval.at(alpha)
            also |= {"low": interval.low, "high": interval.high, "alpha": alpha}
            also["verdict"] = replace(difference, interval=interval).judged(table.equivalence)
        stored = GateDifference.model_validate(row, from_attributes=True)
        by_label[row.label] = stored.model_copy(update=also)
    del by_label[plan.baseline.label]
    return by_label


def train(
    values: Mapping[str, Any], root: Path, flags: Sequence[str], files: Sequence[Path]
) -> Frames:
    """Train an experiment with `llama-ablate run` in a separate process; return its results.

    `values` is the content of the experiment file, `root` the folder of results, `flags` are
    options of `llama-ablate run`, and `files` are plug-ins. Raises ConfigError if the command
    fails, and KeyboardInterrupt if a signal ended it.
    """
    source = experiment.from_mapping(values)
    name = source.experiment.slug
    file = disk.below(root, f"{name}.yaml")
    disk.make(root)
    disk.replace(file, source.text.encode())
    plugins = [word for plugin in files for word in ("--plugin", str(plugin))]
    code = processes.command(["run", str(file), "--results", str(root), *flags, *plugins])
    if code > _MAX_EXIT_CODE:
        raise KeyboardInterrupt
    if code not in (0, 1):
        raise ConfigError(f"{file}: `run` ended with exit code {code}: the same command goes on")
    return Frames.of(Results.open(root / name))


def _find_other_plan(frames: Frames, values: Mapping[str, Any], text: str) -> str:
    """Return an error message if the plan differs from the ledger; "" otherwise.

    The candidate's code was loaded while the plan was made, and may have changed the plan.
    """
    expected = experiment.from_mapping(values).experiment
    expected = checks.guarded(expected, tuple(map(METRICS.resolve, expected.measure)))
    config = variants.resolve_train(expected.train)
    planned = frames.plan.experiment.model_copy(update={"measure": expected.measure})
    texts = {table.text.fingerprint for table in frames.plan.tables}
    same = planned == expected.model_copy(update={"train": config}) and texts == {text}
    return "" if same else "the plan is not what the ledger states"


def _find_fault(frames: Frames, label: str, root: Path, *, has_code: bool) -> str:
    """Explain why a gate's runs are invalid; return "" if all runs are valid.

    Runs are invalid if a run failed, or if a repeated measurement differs from its record. Runs of
    the best are measured again only if the candidate has plug-in code.
    """
    if failed := find_failed(frames, label):
        return failed
    store = Store(root)
    names = {"perplexity", *(METRICS.resolve(g.metric).name for g in store.plan.experiment.guard)}
    for record in store.records():
        if record.ok and (record.label != "best" or has_code):
            try:
                difference = find_difference(store, record, names)
            except (ConfigError, ChildProcessError) as error:
                return str(error)
            if difference:
                return difference
    return ""


def find_failed(frames: Frames, label: str = "") -> str:
    """Describe a failed run of the candidate with the label `label`; return "" for none.

    Raises ConfigError for any other run without a final outcome.
    """
    for run in (run for run in frames.runs if run.outcome not in FINAL):
        if run.label == label and run.outcome not in ("pending", "running"):
            return f"a run ended in {run.outcome}: {run.reason}"
        what = f"a run of '{run.label}' ended in {run.outcome}: {run.reason}"
        raise ConfigError(f"{what}; the same command tries it again")
    return ""


def hash_code() -> str:
    """Compute the SHA-256 of this package's code."""
    root, sums = Path(llama_ablate.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        sums.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return sums.hexdigest()
