"""Judging of candidates: open a ledger, run a candidate's gates, leave accepted changes out.

A candidate is a proposed change of the best variant so far. A ledger records all candidates and the
error budget that their tests share.
"""

import hashlib
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import pstdev
from typing import Any

from llama_ablate.config import experiment, plugins
from llama_ablate.config.experiment import ExperimentFile
from llama_ablate.config.marked_yaml import Marked
from llama_ablate.config.marked_yaml import load as load_yaml
from llama_ablate.config.schema import Terms
from llama_ablate.data import tokens
from llama_ablate.data.overlap import find_overlaps
from llama_ablate.data.tokens import Tokens
from llama_ablate.design import checks
from llama_ablate.design.plan import make
from llama_ablate.design.variants import check_label
from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.findings import controls
from llama_ablate.judge import gates
from llama_ablate.judge.ledger import (
    FILE,
    Begun,
    Decided,
    Gated,
    Ledger,
    Opened,
    TakenApart,
    merged,
    sizes_of,
)
from llama_ablate.launch import processes
from llama_ablate.launch.processes import Task
from llama_ablate.measure import METRICS
from llama_ablate.model.components import REGISTRIES
from llama_ablate.training.registries import REGISTRIES as TRAINING

#: Keys that no candidate may change: sections that the ledger states once, and keys of `train`.
_SEALED_KEYS = (
    *("budget", "context", "controls", "data", "evaluation", "guard", "judge", "margin"),
    *("measure", "parallel", "seeds", "sizes", "texts", "tune", "variants"),
    *(f"train.{key}" for key in ("tokens", "steps", "evals", "branches", "precision", "kernel")),
)
#: Error message on an entry of `variants`; its groups are the key and the sentence.
_ENTRY_ERROR = re.compile(r"(?:experiment:\d+:\d+: )?variants\.entries(?:\[\d+\]\.?([^:]*))?: (.*)")


def open_ledger(file: Path, root: Path, flags: Sequence[str]) -> Ledger:
    """Open a ledger in a folder, after training the controls of the experiment file.

    Controls are trained if the file has a positive control. `flags` are options of `llama-ablate
    run`: workers and device. Raises ConfigError if the folder has a ledger, if the file does not
    fit a ledger, and if a control fails.
    """
    if (root / FILE).exists():
        raise ConfigError(f"'{root}' holds a ledger already: it is opened once")
    source = experiment.load(file)
    base = source.experiment
    if (terms := base.judge) is None:
        raise ConfigError(f"{file}: needs a section 'judge', with a 'second' text")
    run_metrics = [
        entry for entry in base.measure if METRICS.per(METRICS.resolve(entry).name) == "run"
    ]
    wrong = {
        "variants": base.variants.axes or base.variants.entries,
        "margin": base.margin is None,
        "guard": any(
            METRICS.per(METRICS.resolve(guard.metric).name) != "run" for guard in base.guard
        ),
        "budget": "seconds" in base.budget,
        "measure": all(METRICS.resolve(entry).name != "perplexity" for entry in run_metrics),
        **{key: getattr(base, key) for key in ("hypotheses", "sizes", "texts", "tune")},
    }
    for key in (key for key, is_wrong in wrong.items() if is_wrong):
        what = "a ledger states a baseline, no variants, a margin, perplexity, no guard of speeds"
        raise source.locate(ConfigError(what, (key,)))
    values = base.model_dump(mode="json", exclude={"texts", "judge"})
    values |= {"base": "llama2-tiny", "measure": run_metrics}
    texts = _check_texts(source, terms, values)
    if base.controls.positive:
        repeats = [{"label": "best"}, {"label": "best, other draws", "draws": "both"}]
        best = {"design": "list", "entries": repeats}
        settings = {"name": "controls", "variants": best, "seeds": terms.looks[-1]}
        frames = gates.train({**values, **settings}, root / "runs", flags, ())
        if failing := controls.failing(controls.check_controls(frames.table)):
            raise ConfigError(f"no ledger is opened, as controls of its best fail: {failing[0]}")
    return Ledger.create(root, Opened(experiment=values, terms=terms, texts=texts))


@dataclass(frozen=True)
class Candidate:
    """Candidate (proposed change of the best variant) with its plug-in files.

    The experiments of its gates can be planned.
    """

    begun: Begun
    files: tuple[Path, ...]
    #: Whether the candidate is missing in the ledger.
    is_new: bool


def read_candidate(ledger: Ledger, file: Path, *, trust: bool = False) -> Candidate:
    """Read a candidate's file, and plan its gates, without using any error budget.

    Raises ConfigError, located in the file, if a gate cannot be planned. Raises ConfigError if the
    best contains plug-in code that this user has neither supplied nor trusts.
    """
    marked = Marked({"plugin": file.name}) if file.suffix == ".py" else load_yaml(file)
    label, changes, plugin = _read(file, marked, ledger.terms)
    brought = {_hash(code): code for code in plugin.values()}
    _remember(brought)
    accepted = _load_best_code(ledger, trust=trust)
    files = (*(known_file for known_file in accepted if known_file.stem not in brought), *plugin)
    changes = changes or _find_component(files)
    begun = _begin(ledger, label, changes, brought)
    if is_new := begun not in ledger.events:
        _check_plans(ledger, begun, file, marked, files)
    return Candidate(begun, files, is_new)


def _begin(ledger: Ledger, label: str, changes: dict[str, Any], brought: dict[str, str]) -> Begun:
    """Return the event that begins a candidate: the ledger's event or a new event.

    The ledger's event is returned if the same candidate has begun before, and is not decided yet,
    was decided against the present best, or is part of the best. Raises ConfigError if no
    candidates remain.
    """
    for begun in ledger.of(Begun):
        is_current = begun.number not in ledger.ended or begun.best == len(ledger.path)
        is_part = begun in ledger.path and merged(ledger.best(), changes) == ledger.best()
        same = (begun.label, begun.changes, begun.plugins) == (label, changes, brought)
        if same and (is_current or is_part):
            return begun
    if not (level := ledger.level):
        raise ConfigError(f"the ledger's {ledger.terms.candidates} candidates are spent")
    number = len(ledger.of(Begun)) + 1
    if (place := ledger.folder_of(number)).exists():
        what = f"'{place}' is there, and the ledger has no candidate {number}"
        raise ConfigError(f"{what}: bring ledger.jsonl back, or move the folder away")
    return Begun(
        number=number,
        label=label,
        changes=changes,
        plugins=brought,
        first=ledger.draw_seed(),
        best=len(ledger.path),
        level=level,
        code=gates.hash_code(),
    )


def judge_candidate(
    ledger: Ledger, candidate: Candidate, flags: Sequence[str]
) -> tuple[Ledger, Begun]:
    """Judge a candidate at both gates, resuming earlier work; return ledger and candidate."""
    begun = candidate.begun

    def begin(now: Ledger) -> Begun:
        if len(now.path) != len(ledger.path):
            raise ConfigError("the best has moved meanwhile: the same command takes the new one")
        return _begin(now, begun.label, begun.changes, begun.plugins)

    if candidate.is_new:
        ledger, begun = ledger.add(begin)
    with ledger.working_on(begun) as folder:
        ledger = Ledger.open(ledger.root)
        if begun.number not in ledger.ended:
            verdict, why = gates.run_gates(ledger, begun, folder, flags)
            ledger, _ = ledger.add(Decided(number=begun.number, verdict=verdict, why=why))
    return ledger, begun


def leave_one_out(ledger: Ledger, flags: Sequence[str], *, trust: bool = False) -> Ledger:
    """Measure the best without each of its accepted changes, and return the ledger.

    Each version of the best is measured only once. Raises ConfigError if the best is the baseline.
    """
    if not ledger.path:
        raise ConfigError("the best is the baseline: there is nothing to leave out")
    if len(ledger.path) in {event.best for event in ledger.of(TakenApart)}:
        return ledger  # no repetition until a change seems to help
    _check_ledger_texts(ledger)
    files, left_out = _load_best_code(ledger, trust=trust), list[Begun]()
    for begun in ledger.path:  # a change on which others depend stays in
        try:
            run_apart(_plan, files, first_text(ledger), ledger.leave_out([*left_out, begun]))
        except ConfigError as error:
            if not _ENTRY_ERROR.match(str(error)):
                raise
        else:
            left_out.append(begun)
    frames = gates.train(ledger.leave_out(left_out), ledger.root / "runs", flags, files)
    gates.find_failed(frames)
    differences = gates.list_differences(frames.table)
    return ledger.add(TakenApart(best=len(ledger.path), found=differences))[0]


def find_pilot(ledger: Ledger) -> Path | None:
    """Return the folder of the runs whose noise a dry run assumes.

    These runs are gate one of the candidate with the median noise, or else the trained controls.
    Return None if the ledger has neither.
    """
    before = [event for event in ledger.of(Gated) if event.gate == 1 and event.found[0].losses]
    before.sort(key=lambda one: pstdev(a - b for a, b in one.found[0].losses.values()))
    places = [f"{event.number:04d}/gate-1" for event in before[len(before) // 2 :]]
    runs = (ledger.root / "runs" / place for place in (*places, "controls"))
    return next(filter(Path.is_dir, runs), None)


def first_text(ledger: Ledger) -> dict[str, Path]:
    """Return the token folders of gate one's text that this process has prepared."""
    fingerprint = ledger.opened.texts[0]
    return {
        key: folder for key, folder in tokens.prepared_folders.items() if folder.name == fingerprint
    }


def run_apart(task: Task, files: Sequence[Path], texts: Mapping[str, Path], *arguments: Any) -> Any:
    """Run a task in a separate process that has loaded plug-ins; return its result.

    The judging process never loads a candidate's code. The separate process can use the tokens of
    `texts` alone. Without plug-ins the task runs in this process. Raises ConfigError as the task
    does, and for a failing plug-in; raises ChildProcessError for a plug-in that ends the process.
    """
    if not files:
        return task(*arguments)
    names = [str(file.resolve()) for file in files]
    with tempfile.NamedTemporaryFile() as log:
        try:
            message = names, dict(texts), task, *arguments
            return processes.call(load_and_run, *message, log=Path(log.name))
        except ConfigError as error:
            raise ConfigError(str(error).removeprefix("--plugin ")) from None
        except ChildProcessError as error:
            raise ChildProcessError(f"{files[-1]}: {error}") from None


def load_and_run(
    _report: object, files: list[str], texts: dict[str, Path], task: Task, *arguments: Any
) -> Any:
    """Load plug-ins and run a task, as the main function of a process."""
    plugins.load([Path(file) for file in files])
    tokens.trusted_folders.update(texts)
    return task(*arguments)


def _read(file: Path, marked: Marked, terms: Terms) -> tuple[str, dict[str, Any], dict[Path, str]]:
    """Read a candidate's label, its changes, and the code of its plug-in by file.

    Raises ConfigError for a change of a key that the ledger fixes for all candidates, and for a
    candidate without changes.
    """
    changes = dict(marked.values)
    label, named = changes.pop("label", file.stem), changes.pop("plugin", None)
    sealed = {*_SEALED_KEYS, *(terms.size.changes if terms.size else ())}
    for key in (key for key in changes if not sealed.isdisjoint({key, key.split(".")[0]})):
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


def _find_component(files: Sequence[Path]) -> dict[str, Any]:
    """Return the single component that the last plug-in registers, as a candidate's changes.

    Raises ConfigError if the plug-in registers none or several.
    """
    before = run_apart(_list_components, files[:-1], {})
    components = [row for row in run_apart(_list_components, files, {}) if row not in before]
    if len(components) != 1:
        many = ", ".join(f"{slot} {name}" for slot, name in components) or "nothing"
        raise ConfigError(f"{files[-1]}: registers {many}; a YAML says which of it is used")
    slot, name = components[0]
    return {f"train.{slot}" if slot in TRAINING else slot: name}


def _list_components() -> list[tuple[str, str]]:
    """List the slot and name of every component that a candidate may register."""
    registries = {**REGISTRIES, **TRAINING}
    return [(slot, name) for slot, registry in registries.items() for name in registry]


def _check_plans(
    ledger: Ledger, begun: Begun, file: Path, marked: Marked, files: Sequence[Path]
) -> None:
    """Raise ConfigError, located in the candidate's file, if a gate cannot be planned.

    Gate two is planned on the first text, so that no process with a candidate's code reads the
    second text before gate one.
    """
    _check_ledger_texts(ledger)
    first = ledger.gate(begun, 1)["data"]
    for gate in gates.GATES:
        try:
            run_apart(_plan, files, first_text(ledger), ledger.gate(begun, gate) | {"data": first})
        except ConfigError as error:
            if not (match := _ENTRY_ERROR.match(str(error))):
                raise
            key = (match[1],) if (match[1],) in marked.marks else (match[1] or "").split(".")
            said = marked.locate(ConfigError(match[2], (*filter(None, key),)))
            raise said if marked.marks else ConfigError(f"{file}: {said}") from None


def _plan(values: Mapping[str, Any]) -> None:
    """Raise ConfigError if an experiment cannot be planned."""
    make(experiment.from_mapping(values))


def _check_ledger_texts(ledger: Ledger) -> None:
    """Raise ConfigError if a gate's text has changed since the ledger was opened.

    The texts are encoded if needed, since separate planning processes use the tokens as they are.
    """
    opened, source = ledger.opened, experiment.from_mapping(ledger.opened.experiment)
    try:
        texts = _check_texts(source, opened.terms, opened.experiment)
    except ConfigError as error:
        raise ConfigError(f"{ledger.root / FILE}: {error}") from None
    for now, then, name in zip(texts, opened.texts, ("data", "judge.second"), strict=True):
        if now != then:
            raise ConfigError(f"the text of '{name}' is not what the ledger was opened with")


def _check_texts(
    source: ExperimentFile, terms: Terms, values: Mapping[str, Any]
) -> tuple[str, str]:
    """Return the fingerprints of both gates' texts, after planning an experiment with each text.

    Raises ConfigError for a text with which no experiment can be planned, for two equal texts, and
    for a second text whose held-out part occurs in the training text of the first text.
    """
    prepared: list[Tokens] = []
    for data, where in ((source.experiment.data, ("data",)), (terms.second, ("judge", "second"))):
        more = sizes_of(terms, values) if prepared else {}
        text = {"data": data.model_dump(mode="json"), "controls": {"aa": []}} | more
        try:
            planned = experiment.from_mapping({**values, **text})
            tokens.check_corpora(planned)
            prepared.append(make(planned).tables[0].text.tokens)
        except ConfigError as error:
            raise source.locate(ConfigError(str(error), where)) from None
    first, second = prepared
    if first.corpus == second.corpus:
        raise source.locate(ConfigError("the second text is the first", ("judge", "second")))
    overlap = find_overlaps(second, {"first": first}).get("first")
    if terms.second.overlap == "refuse" and overlap and overlap.share > checks.MAX_OVERLAP:
        raise source.locate(
            ConfigError(
                f"{overlap.share:.1%} of the held-out tokens of the second text, "
                f"{overlap.documents:,} of {overlap.all_documents:,} documents as a whole, stand "
                "in the training text of the first: give another text, or keep it with 'overlap: "
                "allow'",
                ("judge", "second"),
            )
        )
    return first.fingerprint, second.fingerprint


def _load_best_code(ledger: Ledger, *, trust: bool) -> list[Path]:
    """Return the plug-in files of the best.

    Raises ConfigError for code that this user has not supplied before, unless `trust` is true.
    """
    code = {key: code for begun in ledger.path for key, code in begun.plugins.items()}
    files = ledger.plugins(*ledger.path)
    if trust:
        _remember(code)
    if unknown := [key for key in code if not (_known_code() / key).is_file()]:
        where = disk.below(ledger.root, "plugins", f"{unknown[0]}.py")
        what = f"the best has code that this user has not brought: read '{where}'"
        raise ConfigError(f"{what}, and run it with --trust")
    return files


def _remember(code: Mapping[str, str]) -> None:
    """Record code that this user supplies as known, by its SHA-256."""
    for key in code:
        disk.make(_known_code())
        disk.replace(_known_code() / key, b"")


def _known_code() -> Path:
    return tokens.cache_folder() / "judged_code"


def _hash(code: str) -> str:
    return hashlib.sha256(code.encode()).hexdigest()
