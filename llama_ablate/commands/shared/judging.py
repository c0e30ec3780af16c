"""Ledger creation and the gates of a candidate, for the command `judge`."""

import hashlib
import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import pstdev
from typing import Any

import llama_ablate
from llama_ablate.commands import components
from llama_ablate.commands import plan as planning
from llama_ablate.commands import run as training
from llama_ablate.commands.run import LaunchOptions
from llama_ablate.commands.shared.answer import Answer
from llama_ablate.config import experiment, plugins
from llama_ablate.config.experiment import ExperimentFile
from llama_ablate.config.marked_yaml import Marked
from llama_ablate.config.marked_yaml import load as load_yaml
from llama_ablate.config.schema import Terms
from llama_ablate.data import tokens
from llama_ablate.data.overlap import find_overlaps
from llama_ablate.data.tokens import Tokens
from llama_ablate.design import checks, variants
from llama_ablate.design.plan import make
from llama_ablate.design.variants import check_label
from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.findings import controls
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.rows import cells
from llama_ablate.judge import gates, ledger_page
from llama_ablate.judge.ledger import (
    FILE,
    Begun,
    Decided,
    Gated,
    Ledger,
    Opened,
    TakenApart,
    Verdict,
    merged,
    sizes_of,
)
from llama_ablate.launch import measurement, processes
from llama_ablate.launch.processes import Task
from llama_ablate.measure import METRICS
from llama_ablate.results import FINAL, Results, Store
from llama_ablate.training.compute import pick_device
from llama_ablate.training.registries import REGISTRIES as TRAINING

_SIGNALLED = 128  # above it stands the number of the signal that ended a command
CODES = {"accepted": 0, "rejected": 3, "inconclusive": 4, "invalid": 5}
#: Keys that no candidate may change: sections that the ledger states once, and keys of `train`.
_STATED = (
    *("budget", "context", "controls", "data", "evaluation", "guard", "judge", "margin"),
    *("measure", "parallel", "seeds", "sizes", "texts", "tune", "variants"),
    *(f"train.{key}" for key in ("tokens", "steps", "evals", "branches", "precision", "kernel")),
)
#: What an experiment says of a variant that is wrong: its key, and the sentence.
_OF_ENTRY = re.compile(r"(?:experiment:\d+:\d+: )?variants\.entries(?:\[\d+\]\.?([^:]*))?: (.*)")
_OTHER_CODE: tuple[Verdict, str] = "invalid", "the code of the judge has changed since it began"
_ALIKE = 1e-5  # relative, between a result and the same from the weights


def opened(file: Path, root: Path, launch: LaunchOptions) -> Answer:
    """Open a ledger in a folder; with a positive control in its file, train the controls first."""
    if (root / FILE).exists():
        raise ConfigError(f"'{root}' holds a ledger already: it is opened once")
    source = experiment.load(file)
    base = source.experiment
    if (terms := base.judge) is None:
        raise ConfigError(f"{file}: needs a section 'judge', with a 'second' text")
    of_runs = [one for one in base.measure if METRICS.per(METRICS.resolve(one).name) == "run"]
    wrong = {
        "variants": base.variants.axes or base.variants.entries,
        "margin": base.margin is None,
        "guard": any(METRICS.per(METRICS.resolve(one.metric).name) != "run" for one in base.guard),
        "budget": "seconds" in base.budget,
        "measure": all(METRICS.resolve(one).name != "perplexity" for one in of_runs),
        **{key: getattr(base, key) for key in ("hypotheses", "sizes", "texts", "tune")},
    }
    for key in (key for key, is_wrong in wrong.items() if is_wrong):
        what = "a ledger states a baseline, no variants, a margin, perplexity, no guard of speeds"
        raise source.locate(ConfigError(what, (key,)))
    values = base.model_dump(mode="json", exclude={"texts", "judge"})
    values |= {"base": "llama2-tiny", "measure": of_runs}
    texts = _texts(source, terms, values)
    if base.controls.positive:
        again = [{"label": "best"}, {"label": "best, other draws", "draws": "both"}]
        best = {"design": "list", "entries": again}
        held = {"name": "controls", "variants": best, "seeds": terms.looks[-1]}
        frames = _trained({**values, **held}, root / "runs", launch, ())
        if failing := controls.failing(controls.check_controls(frames.table)):
            raise ConfigError(f"no ledger is opened, as controls of its best fail: {failing[0]}")
    event = Opened(experiment=values, terms=terms, texts=texts)
    return shown(Ledger.create(root, event))


def _texts(source: ExperimentFile, terms: Terms, values: Mapping[str, Any]) -> tuple[str, str]:
    """Return the fingerprints of both gates' texts, after planning an experiment with each.

    Raises ConfigError for a text with which no experiment can be planned, for equal texts, and for
    a second text whose held-out part stands in the first one's training text.
    """
    found: list[Tokens] = []
    for data, where in ((source.experiment.data, ("data",)), (terms.second, ("judge", "second"))):
        more = sizes_of(terms, values) if found else {}
        text = {"data": data.model_dump(mode="json"), "controls": {"aa": []}} | more
        try:
            own = experiment.from_mapping({**values, **text})
            tokens.look(own)
            found.append(make(own).tables[0].text.tokens)
        except ConfigError as error:
            raise source.locate(ConfigError(str(error), where)) from None
    first, second = found
    if first.corpus == second.corpus:
        raise source.locate(ConfigError("the second text is the first", ("judge", "second")))
    known = find_overlaps(second, {"first": first}).get("first")
    if terms.second.overlap == "refuse" and known and known.share > checks.MAX_OVERLAP:
        raise source.locate(
            ConfigError(
                f"{known.share:.1%} of the held-out tokens of the second text, {known.documents:,} "
                f"of {known.all_documents:,} documents as a whole, stand in the training text of "
                "the first: give another text, or keep it with 'overlap: allow'",
                ("judge", "second"),
            )
        )
    return first.fingerprint, second.fingerprint


def judged(ledger: Ledger, file: Path, launch: LaunchOptions, *, dry_run: bool) -> Answer:
    """Judge a candidate by both gates, resuming earlier work."""
    marked = Marked({"plugin": file.name}) if file.suffix == ".py" else load_yaml(file)
    label, changes, plugin = _read(file, marked, ledger.terms)
    brought = {hashlib.sha256(code.encode()).hexdigest(): code for code in plugin.values()}
    of_best = (known for known in ledger.plugins(*ledger.path) if known.stem not in brought)
    files = [*of_best, *plugin]
    changes = changes or _brought(files)

    def begin(now: Ledger) -> Begun:
        # What is under way, was decided against this best, or is a part of it, is not begun again.
        for begun in now.of(Begun):
            is_current = begun.number not in now.ended or begun.best == len(now.path)
            is_part = begun in now.path and merged(now.best(), changes) == now.best()
            same = (begun.label, begun.changes, begun.plugins) == (label, changes, brought)
            if same and (is_current or is_part):
                return begun
        if len(now.path) != len(ledger.path):
            raise ConfigError("the best has moved meanwhile: the same command takes the new one")
        if not (level := now.level):
            raise ConfigError(f"the ledger's {now.terms.candidates} candidates are spent")
        own = {"label": label, "changes": changes, "plugins": brought, "code": _code()}
        number, best = len(now.of(Begun)) + 1, len(now.path)
        return Begun(number=number, best=best, level=level, first=now.fresh, **own)

    begun = begin(ledger)
    training.check_launcher(launch)
    pick_device(launch.device)
    if is_new := begun not in ledger.events:
        _lawful(ledger, begun, file, marked, files)
    if dry_run:
        if not is_new:
            what = "has begun, its level is spent: judge it without --dry-run"
            raise ConfigError(f"candidate {begun.number} {what}")
        forecast: Answer = _apart(_forecast, files, ledger, begun, launch)
        return forecast
    ledger, begun = ledger.add(begin)
    with ledger.working_on(begun) as place:
        ledger = Ledger.open(ledger.root)
        if begun.number not in ledger.ended:
            verdict, why = _decided(ledger, begun, place, launch)
            ended = Decided(number=begun.number, verdict=verdict, why=why)
            ledger, _ = ledger.add(ended)
    return shown(ledger, begun)


def taken_apart(ledger: Ledger, launch: LaunchOptions) -> Answer:
    """Leave each accepted change out of the best, and name what no longer helps."""
    if not ledger.path:
        raise ConfigError("the best is the baseline: there is nothing to leave out")
    if len(ledger.path) in {one.best for one in ledger.of(TakenApart)}:
        return shown(ledger)  # once for each best: nobody repeats it until it says "yes"
    _check_texts(ledger)
    files, out = ledger.plugins(*ledger.path), list[Begun]()
    for begun in ledger.path:  # of those that others rest on there is no best without them
        try:
            _apart(_planned, files, ledger.apart([*out, begun]))
        except ConfigError as error:
            if not _OF_ENTRY.match(str(error)):
                raise
        else:
            out.append(begun)
    frames = _trained(ledger.apart(out), ledger.root / "runs", launch, files)
    _failed(frames, of="")
    event = TakenApart(best=len(ledger.path), found=gates.differences(frames.table))
    return shown(ledger.add(event)[0])


def shown(ledger: Ledger, begun: Begun | None = None) -> Answer:
    """Write the ledger's page; return its state as text and values."""
    rows = gates.rows(ledger)
    state = gates.state(ledger, rows, begun, str(ledger_page.write(ledger, rows)))
    parts = [cells(rows)] if rows else []
    said = [f"candidate {state.number} is {state.verdict}: {state.why}"] if begun else []
    lines = "\n".join([*said, *ledger_page.told(ledger, rows), f"page: {state.page}"])
    return Answer([*parts, lines], asdict(state), code=CODES[state.verdict] if begun else 0)


def _read(file: Path, marked: Marked, terms: Terms) -> tuple[str, dict[str, Any], dict[Path, str]]:
    """Return a candidate's label, its differences, and its plug-in's code by file.

    Raises ConfigError for a key that the ledger has stated, and where nothing differs.
    """
    changes = dict(marked.values)
    label, named = changes.pop("label", file.stem), changes.pop("plugin", None)
    stated = {*_STATED, *(terms.size.changes if terms.size else ())}
    for key in (key for key in changes if not stated.isdisjoint({key, key.split(".")[0]})):
        what = f"'{key}' is sealed: the ledger states it once, for all candidates"
        raise marked.locate(ConfigError(what, (key,)))
    with marked.located():
        check_label(label, ("label",))
    if named is None:
        if not changes:
            raise ConfigError(f"{file}: changes nothing of the best")
        return str(label), changes, {}
    plugin = file.parent / str(named)
    if plugin.suffix != ".py":
        raise ConfigError(f"{file}: plugin: '{plugin.name}' is no Python file, which ends in .py")
    try:
        return str(label), changes, {plugin: disk.read(plugin).decode("utf-8")}
    except OSError as error:
        raise ConfigError(f"{plugin}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{plugin}: is no UTF-8 text") from None


def _apart(task: Task, files: Sequence[Path], *arguments: Any) -> Any:
    """Run a task in a separate process that has loaded these plug-ins.

    The judging process never loads a candidate's code. Without plug-ins the task runs in this
    process. Raises ConfigError as the task does, and for a failing plug-in; ChildProcessError for a
    plug-in that ends the process.
    """
    if not files:
        return task(*arguments)
    names = [str(file.resolve()) for file in files]
    with tempfile.NamedTemporaryFile() as log:
        try:
            asked = names, tokens.seen, task, *arguments
            return processes.call(load_and_run, *asked, log=Path(log.name))
        except ConfigError as error:
            raise ConfigError(str(error).removeprefix("--plugin ")) from None
        except ChildProcessError as error:
            raise ChildProcessError(f"{files[-1]}: {error}") from None


def load_and_run(
    _report: object, files: list[str], texts: dict[str, Path], task: Task, *arguments: Any
) -> Any:
    """Load plug-ins and run a task with them, as the task of a process."""
    plugins.load([Path(file) for file in files])
    tokens.trusted.update(texts)
    return task(*arguments)


def _brought(files: Sequence[Path]) -> dict[str, Any]:
    """Return the single component that the last plug-in registers, as differences.

    Raises ConfigError if it registers none or several.
    """
    before = _apart(components.listing, files[:-1])
    now = _apart(components.listing, files)
    found = [row for row in now if row not in before]
    if len(found) != 1:
        many = ", ".join(f"{row['slot']} {row['name']}" for row in found) or "nothing"
        raise ConfigError(f"{files[-1]}: registers {many}; a YAML says which of it is used")
    slot = found[0]["slot"]
    return {f"train.{slot}" if slot in TRAINING else slot: found[0]["name"]}


def _lawful(
    ledger: Ledger, begun: Begun, file: Path, marked: Marked, files: Sequence[Path]
) -> None:
    """Raise ConfigError, located in the candidate's file, if a gate cannot be planned."""
    _check_texts(ledger)
    for gate in gates.GATES:
        try:
            _apart(_planned, files, ledger.gate(begun, gate))
        except ConfigError as error:
            if not (found := _OF_ENTRY.match(str(error))):
                raise
            key = (found[1],) if (found[1],) in marked.marks else (found[1] or "").split(".")
            said = marked.locate(ConfigError(found[2], (*filter(None, key),)))
            raise said if marked.marks else ConfigError(f"{file}: {said}") from None


def _check_texts(ledger: Ledger) -> None:
    """Raise ConfigError if a gate's text has changed since the ledger was opened.

    It encodes the texts if needed, since separate planning processes use the tokens as they are.
    """
    opened, stated = ledger.opened, experiment.from_mapping(ledger.opened.experiment)
    try:
        texts = _texts(stated, opened.terms, opened.experiment)
    except ConfigError as error:
        raise ConfigError(f"{ledger.root / FILE}: {error}") from None
    for now, then, name in zip(texts, opened.texts, ("data", "judge.second"), strict=True):
        if now != then:
            raise ConfigError(f"the text of '{name}' is not what the ledger was opened with")


def _planned(values: Mapping[str, Any]) -> None:
    """Raise ConfigError if an experiment cannot be planned."""
    make(experiment.from_mapping(values))


def _decided(
    ledger: Ledger, begun: Begun, place: Path, launch: LaunchOptions
) -> tuple[Verdict, str]:
    """Return a candidate's verdict and why, from the gates that it has passed and those to come."""
    passed = {one.gate: one for one in ledger.of(Gated) if one.number == begun.number}
    files = ledger.plugins(*ledger.path[: begun.best], begun)
    for gate in gates.GATES:
        if begun.code != _code():
            return _OTHER_CODE
        if gate not in passed:
            own = place.resolve() / f"gate-{gate}"
            if ledger.terms.rule == "e-lond" and gate == 1:
                _reuse(ledger, begun, own)
            values = ledger.gate(begun, gate)
            frames = _trained(values, place, launch, files)
            if begun.code != _code():
                return _OTHER_CODE
            why = _other_plan(frames, values, ledger.opened.texts[gate - 1])
            why = why or _fault(frames, begun.label, own, brought=bool(begun.plugins))
            if why:
                return "invalid", f"{why}, at gate {gate}"
            found = [gates.differences(one)[begun.label] for one in frames.tables]
            passed[gate] = gated = Gated(number=begun.number, gate=gate, found=found)
            ledger, _ = ledger.add(gated)
        if decision := gates.decide(gate, passed[gate].found):
            return decision
    raise AssertionError("gate two decides")


def _reuse(ledger: Ledger, begun: Begun, own: Path) -> None:
    """Copy what earlier candidates ran of the same best with the same seeds and code."""
    into, alike = own / "runs", (begun.best, begun.code)
    disk.make(into)
    valid = [number for number, ended in ledger.ended.items() if ended.verdict != "invalid"]
    for other in (one for one in ledger.of(Begun) if one.number in valid):
        runs = ledger.root / "runs" / f"{other.number:04d}" / own.name / into.name
        for name in disk.names(runs) if (other.best, other.code) == alike else ():
            if not name.startswith("best--") or (into / name).exists():
                continue
            with disk.partial_folder(into) as partial:
                for file in filter(Path.is_file, (runs / name).rglob("*")):
                    copy = partial / file.relative_to(runs / name)
                    disk.make(copy.parent)
                    disk.write(copy, disk.read(file))
                disk.place(partial, disk.below(into, name))


def _trained(
    values: Mapping[str, Any],
    root: Path,
    launch: LaunchOptions,
    files: Sequence[Path],
) -> Frames:
    """Run an experiment by `llama-ablate run`, and return its results."""
    source = experiment.from_mapping(values)
    name = source.experiment.slug
    file = disk.below(root, f"{name}.yaml")
    disk.make(root)
    disk.replace(file, source.text.encode())
    words = [file, "--results", root, "--device", launch.device]
    words += ["--workers", launch.workers] if launch.workers else []
    words += [word for plugin in files for word in ("--plugin", plugin)]
    code = processes.command(["run", *map(str, words)])
    if code > _SIGNALLED:
        raise KeyboardInterrupt
    if code not in (0, 1):
        raise ConfigError(f"{file}: `run` ended with exit code {code}: the same command goes on")
    return Frames.of(Results.open(root / name))


def _other_plan(frames: Frames, values: Mapping[str, Any], text: str) -> str:
    """Say that an experiment was planned other than stated, as its code planned too, or nothing."""
    stated = experiment.from_mapping(values).experiment
    stated = checks.guarded(stated, tuple(map(METRICS.resolve, stated.measure)))
    train = variants.resolve_train(stated.train)
    planned = frames.plan.experiment.model_copy(update={"measure": stated.measure})
    texts = {table.text.fingerprint for table in frames.plan.tables}
    same = planned == stated.model_copy(update={"train": train}) and texts == {text}
    return "" if same else "the plan is not what the ledger states"


def _fault(frames: Frames, label: str, root: Path, *, brought: bool) -> str:
    """Explain why a gate's runs are invalid; "" if they are valid.

    A run has failed, or its weights give another result than its record.
    """
    if why := _failed(frames, of=label):
        return why
    store = Store(root)
    for record in store.records():
        if not record.ok or (record.label == "best" and not brought):
            continue  # of a candidate without code the best's runs are ours alone
        known = {row.name: row.value for row in record.metrics["perplexity"].rows}
        asked = (str(root), record.id, ["perplexity"])
        try:
            log = store.log("again")
            again = processes.call(measurement.measure_run, *asked, log=log)
        except (ConfigError, ChildProcessError) as error:
            return str(error)
        for row in again["perplexity"].rows:
            if not math.isclose(row.value, known.get(row.name, math.nan), rel_tol=_ALIKE):
                return f"its {row.name} is {known.get(row.name)}, by its weights {row.value}"
    return ""


def _failed(frames: Frames, of: str) -> str:
    """Describe a candidate's failed run; "" if none failed.

    Raises ConfigError for any other run without a final outcome.
    """
    for run in (run for run in frames.runs if run.outcome not in FINAL):
        if run.label == of and run.outcome not in ("pending", "running"):
            return f"a run ended in {run.outcome}: {run.reason}"
        what = f"a run of '{run.label}' ended in {run.outcome}: {run.reason}"
        raise ConfigError(f"{what}; the same command tries it again")
    return ""


def _forecast(ledger: Ledger, begun: Begun, launch: LaunchOptions) -> Answer:
    """Forecast the cost of gate one, its level, and its power to show the margin.

    The noise comes from the earlier candidate with the median noise, else from the controls; the
    forecast does not affect the verdict.
    """
    source = experiment.from_mapping(ledger.gate(begun, 1))
    before = [one for one in ledger.of(Gated) if one.gate == 1 and one.found[0].losses]
    before.sort(key=lambda one: pstdev(a - b for a, b in one.found[0].losses.values()))
    places = [f"{one.number:04d}/gate-1" for one in before[len(before) // 2 :]]
    runs = (ledger.root / "runs" / place for place in (*places, "controls"))
    pilot = next(filter(Path.is_dir, runs), None)
    power, file = source.experiment.margin if pilot else None, Path(begun.label)
    asked = planning.PlanOptions(file=file, launch=launch, power=power, pilot=pilot)
    planned = planning.of_source(source, asked)
    said = f"candidate {begun.number} '{begun.label}': level {begun.level:.2g} (one-sided) at gate "
    said += f"one, as below; {ledger.terms.confirm} more seeds at gate two"
    return Answer([said, *planned.shown], {**planned.values, "level": begun.level})


def _code() -> str:
    """Return the SHA-256 of this package's code."""
    root, sums = Path(llama_ablate.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        sums.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return sums.hexdigest()
