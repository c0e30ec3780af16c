"""The command `promote`: a second gate for one variant, on fresh seeds and a second text."""

from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from llama_ablate.commands import run as running
from llama_ablate.commands.run import LaunchOptions
from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import (
    TABLE,
    ResultsOptions,
    argument,
    count,
    difference,
    option,
)
from llama_ablate.errors import ConfigError

if TYPE_CHECKING:
    from llama_ablate.design.plan import Plan
    from llama_ablate.design.promotion import Gate
    from llama_ablate.findings.frames import TableFrames

HELP = "confirm one variant: fresh seeds, a second text, the margin stated before"
EXAMPLE = "promote results/one-at-a-time swiglu --text books/ --margin '0.02 nats'"
_STANDARD = "python-stdlib"  # the second text where the first was another


@dataclass(frozen=True, kw_only=True)
class PromoteOptions(ResultsOptions):
    """The first gate's results, the variant, and what the second gate asks."""

    variant: str = argument("VARIANT", "a label or an id")
    table: str | None = option(None, TABLE, "NAME")
    text: str | None = option(
        None,
        "the second text: a file, a folder, or a corpus as YAML has it, such as "
        f"'{{name: hub, dataset: NAME}}' (default: {_STANDARD}, where the first was another)",
        "TEXT",
    )
    margin: str | None = option(
        None, "differences below count as none (default: the experiment's)", '"X nats"', difference
    )
    direction: Literal["better", "equivalent"] | None = option(
        None, "what is to be confirmed (default: the verdict, or else better)"
    )
    seeds: int | None = option(
        None, "how many fresh seeds (default: as many as DIR has)", "N", count
    )
    results: Path | None = option(
        None, "folder of all results (default: the one that DIR lies in)", "DIR"
    )
    dry_run: bool = option(False, "print the experiment file, write and train nothing")
    launch: LaunchOptions


def run(options: PromoteOptions) -> Answer:
    """Write the experiment of the second gate, run it, and say which gates were passed."""
    from llama_ablate.commands.shared import notes, selection
    from llama_ablate.config import experiment
    from llama_ablate.design import promotion
    from llama_ablate.design.plan import make
    from llama_ablate.files import disk
    from llama_ablate.findings.frames import Frames
    from llama_ablate.results import Results

    results = Results.open(options.folder)
    frames = Frames.of(results)
    frames = frames.only(selection.table(frames, options.table))
    table, planned = frames.table, selection.variant(frames, options.variant)
    gate = _first_gate(table, planned.label, frames.root, options.direction)
    margin = options.margin or table.experiment.margin
    if margin is None:
        raise ConfigError(f"{frames.root} states no margin: give one with --margin '0.01 nats'")
    second = _second_text(options.text, table.plan.text.source.corpus, frames.root)
    labels = {run.id: run.label for run in table.reported}
    chosen = {labels[run.id]: run for run in reversed(table.plan.runs) if run.id in labels}
    values = promotion.experiment(
        table.experiment,
        table.plan,
        planned,
        chosen,
        gate,
        second=second,
        margin=margin,
        seeds=promotion.fresh_seeds(
            options.seeds or len(table.experiment.seed_list),
            {run.seed for run in results.plan.runs.values()},
        ),
        least=gate.direction == "better" and options.margin is not None,
    )
    at = results.root if results.root.name not in ("", "..") else results.root.resolve()
    root = options.results or at.parent
    slug = experiment.slug(values["name"])
    file = root / f"{slug}.yaml"
    text = promotion.written(values)
    plan = make(experiment.read(text, file))
    if len({made.tokens.fingerprint for made in plan.tables}) < len(plan.tables):
        raise ConfigError("--text is the text of the first gate: a second one is needed")
    chance = _chance(table, plan, gate)
    if options.dry_run:
        said = f"# {chance['sentence']}\n" if chance else ""
        shown = {"experiment": values, "file": str(file), "gate": vars(gate), "chance": chance}
        return Answer(said + text, shown)
    if chance:
        notes.note(chance["sentence"])
    if file.is_file() and file.read_text("utf-8") != text:
        raise ConfigError(
            f"'{file}' holds a promotion with another protocol: go on with llama-ablate run, or "
            "choose another --results"
        )
    disk.make(root)
    disk.replace(file, text.encode("utf-8"))
    own = running.RunOptions(file=file, results=root, launch=options.launch)
    return _with_gates(running.run(own), gate)


def _first_gate(table: "TableFrames", label: str, root: str, stated: str | None) -> "Gate":
    """Return the first gate's result. Raises ConfigError where there is nothing to confirm."""
    from llama_ablate.design.promotion import Gate
    from llama_ablate.findings import controls

    row = next(row for row in table.comparison if row.label == label)
    if row.baseline:
        raise ConfigError(f"'{label}' is the baseline of {root}: name what is compared with it")
    if row.role:
        raise ConfigError(f"'{label}' is a control of {root}: name a variant")
    verdict = row.verdict
    if verdict not in ("better", "equivalent", "inconclusive"):
        raise ConfigError(f"'{label}' is {verdict} in {root}: there is nothing to confirm")
    failing = controls.failing(table.controls, seen_to_differ=verdict == "better")
    failing = "; ".join(filter(None, (failing, row.guard)))
    direction = stated or ("better" if verdict == "inconclusive" else verdict)
    return Gate(
        root,
        direction,
        verdict,
        difference=row.difference,
        low=row.low,
        high=row.high,
        seeds=row.n,
        passed=verdict == direction and not failing,
        controls=failing,
    )


def _second_text(text: str | None, first: Any, root: str) -> Any:
    """Return the corpus that `--text` names. Raises ConfigError where it must be given."""
    from llama_ablate.config.marked_yaml import parse
    from llama_ablate.design.promotion import absolute

    if text is None:
        name = first if isinstance(first, str) else first["name"]
        if name == _STANDARD:
            raise ConfigError(f"{root} was run on '{name}': give a second text with --text")
        return _STANDARD
    if not text.startswith("{") and (Path(text).exists() or any(c in text for c in "/*.")):
        kept = {} if isinstance(first, str) else first
        read = {key: deepcopy(kept[key]) for key in ("splits", "longest") if key in kept}
        return absolute({"name": "files", "path": text, **read})
    return absolute(parse(f"value: {text}", "--text").values["value"])


def _chance(table: "TableFrames", plan: "Plan", gate: "Gate") -> dict[str, Any] | None:
    """Return the chance to confirm half of the first gate's difference, and the seeds for 0.8.

    On both texts, whose noise is taken to be that of the first gate and independent. The best of
    many is partly lucky: half is left of it. None where nothing is to be seen to differ.
    """
    from llama_ablate.evidence.power import SEEDS
    from llama_ablate.findings import power
    from llama_ablate.results import Settings

    if gate.direction != "better" or not gate.difference < 0:
        return None
    try:
        known = power.Known.of_pilot(table, None, gate.results)
    except ConfigError:
        return None  # one seed: nothing is known of the noise
    document, count = plan.document(None, Settings()), len(plan.experiment.seed_list)
    own, need = power.confirmation(document, known, gate.difference / 2)
    more = f"0.8 takes {need} (--seeds {need})" if need else f"{SEEDS[-1]} are too few for 0.8"
    sentence = (
        f"chance to confirm half of {gate.difference:+.4f} nats on both texts with {count} seeds: "
        f"{own:.2f}; {more}"
    )
    return {"power": own, "seeds_needed": need, "sentence": sentence}


def _with_gates(answer: Answer, gate: "Gate") -> Answer:
    """Return the answer of `run` with which gates the variant passed."""
    second = [
        {key: row[key] for key in ("table", "difference", "low", "high", "unit", "result", "why")}
        for row in answer.values["hypotheses"]
    ]
    words = {row["result"] for row in second}
    result = "undecided"
    if words == {"supported"}:
        result = "confirmed"
    elif "refuted" in words:
        result = "not confirmed"
    lines = [f"first gate: {gate.sentence}"]
    for row in second:
        ends = f"{row['difference']:+.4f} [{row['low']:+.4f}, {row['high']:+.4f}] {row['unit']}"
        why = f" ({row['why']})" if row["why"] else ""
        lines.append(f"second gate, {row['table']}: {row['result']}, {ends}{why}")
    lines.append(f"{result}: {gate.direction}")
    passed = {"first": gate.passed, "second": result == "confirmed"}
    promotion = {"result": result, "passed": passed, "first": vars(gate), "second": second}
    text = "\n".join([answer.text, "", *lines])
    return Answer(text, {**answer.values, "promotion": promotion}, code=answer.code)
