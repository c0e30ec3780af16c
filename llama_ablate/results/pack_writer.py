"""Write results as a pack: one experiment as a few small files."""

import contextlib
import fcntl
import gzip
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from llama_ablate import __version__
from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.strict_json import read_json, sealed, to_line
from llama_ablate.results.layout import PACK, Layout
from llama_ablate.results.pack import RUNS, Pack, listed
from llama_ablate.results.plan import FORMAT
from llama_ablate.results.snapshot import Results

_EXPERIMENT = "experiment.yaml"


def pack(results: Results, target: Path, pages: Mapping[str, bytes]) -> None:
    """Write results as a pack, with some pages (the report's) beside its data.

    A pack that is there already is replaced: its files alone, as `pack.json` lists them, which is
    written last. Raises ConfigError where something else is there.
    """
    refuse_target(target)
    contents = {
        **pages,
        _EXPERIMENT: results.experiment_text.encode(),
        RUNS: gzip.compress("".join(_lines(results)).encode(), 9, mtime=0),
    }
    ours = {"format": FORMAT, "version": __version__}
    document = {
        "plan": results.plan.model_copy(update=ours).model_dump(mode="json"),
        "protocol": [version.model_dump(mode="json") for version in results.protocol],
        "variants": {id_: _metrics(results, id_) for id_ in _variants(results)},
        "ended": {run: finished.outcome() for run, finished in results.finished.items()},
        "files": {
            name: [len(content), hashlib.sha256(content).hexdigest()]
            for name, content in sorted(contents.items())
        },
    }
    disk.make(target)
    staged = Layout(target).packing
    with _alone(target):
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
    if (Layout(target).packing / PACK).exists():
        with _alone(target):
            _place(target)


def _place(target: Path) -> None:
    """Move the files of a whole pack to their places, those that it lacks away, its list last."""
    staged = Layout(target).packing
    new = listed(read_json(staged / PACK, PACK), staged / PACK)
    for name in new:
        if (file := disk.below(staged, name)).exists():
            disk.move(file, disk.below(target, name))
    for name in _own(target) - new.keys():
        disk.remove(disk.below(target, name))
    disk.move(staged / PACK, disk.below(target, PACK))
    disk.remove_tree(staged)


def _own(target: Path) -> set[str]:
    """Return the files of the pack that is there, by its own list; none where there is none."""
    if not Pack.is_at(target):
        return set()
    document = read_json(target / PACK, PACK)
    if "files" in document:
        return {*listed(document, target / PACK)}
    pages = {name for name in disk.names(target) if name.startswith("effects")}  # of format 3
    return {RUNS, _EXPERIMENT, "report.md", *pages}


def _refuse_others(target: Path, contents: Mapping[str, bytes]) -> None:
    """Raise ConfigError where a file of somebody else's has the name of one of the pack's."""
    for name in contents.keys() - _own(target):
        if (place := disk.below(target, name)).exists():
            raise ConfigError(f"'{place}' is no file of that pack: choose another --out")


@contextlib.contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Hold the folder of a pack; raises ConfigError where another command writes there."""
    handle = os.open(target, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise ConfigError(f"another command is packing into '{target}'") from None
    finally:
        os.close(handle)


def refuse_target(target: Path) -> None:
    """Raise ConfigError where something other than a pack is at the place of a new one."""
    if target.is_dir() and not {*disk.names(target)} - {Layout(target).packing.name}:
        return  # as a command leaves it that was killed before it had written all
    if os.path.lexists(target) and not Pack.is_at(target):
        raise ConfigError(f"'{target}' is there already, and is no pack: choose another --out")


def _variants(results: Results) -> list[str]:
    return [*dict.fromkeys(v.id for table in results.plan.tables for v in table.variants)]


def _metrics(results: Results, variant: str) -> dict[str, Any]:
    return {name: metric.to_dict() for name, metric in results.variant_metrics(variant).items()}


def _lines(results: Results) -> Iterator[str]:
    for id_ in results.finished:
        record, curve = results.record(id_), results.curve(id_)
        columns = {column: [row[column] for row in curve] for column in (curve[0] if curve else {})}
        yield to_line({**record.to_dict(), "curve": columns}) + "\n"
