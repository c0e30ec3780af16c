"""Write results as a pack: one experiment as a few small files."""

import contextlib
import gzip
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from llama_ablate import __version__
from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.strict_json import read_json, sealed, to_line
from llama_ablate.results.layout import PACK, Layout
from llama_ablate.results.pack import RUNS, Pack, listed
from llama_ablate.results.plan_document import FORMAT, PlanDocument, validated
from llama_ablate.results.snapshot import Results

_EXPERIMENT = "experiment.yaml"


def pack(results: Results, target: Path, pages: Mapping[str, bytes]) -> None:
    """Write results as a pack, with some pages (the report's) beside its data.

    An earlier pack of the same experiment is replaced: its files alone, as its `pack.json` lists
    them and as they were written. Raises ConfigError where anything else is there.
    """
    refuse_target(target, results.plan)
    contents = {
        **pages,
        _EXPERIMENT: results.experiment_text.encode(),
        RUNS: gzip.compress("".join(_lines(results)).encode(), 9, mtime=0),
    }
    ours = {"format": FORMAT, "version": __version__}
    variants = dict.fromkeys(v.id for table in results.plan.tables for v in table.variants)
    document = {
        "plan": results.plan.model_copy(update=ours).model_dump(mode="json"),
        "protocol": [version.model_dump(mode="json") for version in results.protocol],
        "variants": {
            id_: {name: own.to_dict() for name, own in results.variant_metrics(id_).items()}
            for id_ in variants
        },
        "ended": {run: finished.outcome() for run, finished in results.finished.items()},
        "files": {
            name: [len(content), hashlib.sha256(content).hexdigest()]
            for name, content in sorted(contents.items())
        },
    }
    disk.make(target)
    with _alone(target):
        staged = _staged(target)
        _refuse_others(target, contents)
        disk.remove_tree(staged)  # of a command that was killed before it had written all
        disk.make(staged)
        try:
            for name, content in contents.items():
                disk.write(disk.below(staged, name), content)
            disk.sync(staged)
            disk.replace(staged / PACK, sealed(document, PACK))
        except BaseException:
            disk.remove_tree(staged)
            disk.remove_empty(target)
            raise
        _place(target)


def finish(target: Path) -> None:
    """Finish the packing of a command that was killed while its files took their places."""
    if os.path.lexists(Layout(target).packing) and (_staged(target) / PACK).exists():
        with _alone(target):
            _place(target)


def _staged(target: Path) -> Path:
    """Return where a pack's files are written first. Raises ConfigError for a link."""
    return disk.below(target, Layout(target).packing.name)


def _place(target: Path) -> None:
    """Move the files of a whole pack to their places, those that it lacks away, its list last."""
    staged = _staged(target)
    document = read_json(staged / PACK, PACK)
    validated(document.get("plan", {}), staged / PACK)  # of another version it may differ
    new = listed(document, staged / PACK)
    left = [name for name in new if disk.below(staged, name).exists()]
    own = _refuse_others(target, left)
    for name in left:
        disk.move(disk.below(staged, name), disk.below(target, name))
    for name in own - new.keys():
        disk.remove(disk.below(target, name))
    disk.move(staged / PACK, disk.below(target, PACK))
    disk.remove_tree(staged)


def _refuse_others(target: Path, names: Iterable[str]) -> set[str]:
    """Raise ConfigError where a file has the name of one of the pack's, and is not the pack's.

    Returns the files that are: those of the pack that is there, as its own list says.
    """
    own = Pack(target).unchanged if Pack.is_at(target) else set()
    for name in {*names} - own:
        if os.path.lexists(place := disk.below(target, name)):
            what = "is no file of that pack, or was changed: move it, or choose another --out"
            raise ConfigError(f"'{place}' {what}")
    return own


@contextlib.contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Hold the folder of a pack; raises ConfigError where another command writes there."""
    try:
        with disk.locked(target, wait=False):
            yield
    except BlockingIOError:
        raise ConfigError(f"another command is writing in '{target}'") from None


def refuse_target(target: Path, plan: PlanDocument) -> None:
    """Raise ConfigError where something other than an earlier pack is at the place of a new one.

    A pack of another experiment or of a later format is something else.
    """
    if target.is_dir() and not {*disk.names(target)} - {Layout(target).packing.name}:
        return  # as a command leaves it that was killed before it had written all
    if Pack.is_at(target):
        there = Pack(target).plan.experiment.name
        if there != plan.experiment.name:
            what = f"holds a pack of '{there}', not of '{plan.experiment.name}'"
            raise ConfigError(f"'{target}' {what}: choose another --out")
    elif os.path.lexists(target):
        raise ConfigError(f"'{target}' is there already, and is no pack: choose another --out")


def _lines(results: Results) -> Iterator[str]:
    for id_ in results.finished:
        record, curve = results.record(id_), results.curve(id_)
        columns = {column: [row[column] for row in curve] for column in (curve[0] if curve else {})}
        yield to_line({**record.to_dict(), "curve": columns}) + "\n"
