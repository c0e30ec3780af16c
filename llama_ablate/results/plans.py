"""The plan in a results folder: how it is read, and what may take its place."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llama_ablate.errors import ConfigError
from llama_ablate.strict_json import has_seal, parse

#: Of the layout: raised when older code would misread what is written. Format 1 had no seals.
FORMAT = 2


class _LaterError(ConfigError):
    """A later version wrote it."""


def read(file: Path) -> dict[str, Any]:
    """Return a plan. Raises ConfigError where it is damaged, or of a later version."""
    raw = file.read_bytes()
    found = parse(raw, file, file.name)
    if not isinstance(found, dict) or "runs" not in found:
        raise ConfigError(f"'{file}' is damaged: it holds no plan")
    if found.get("format", 1) not in range(1, FORMAT + 1):
        raise _LaterError(
            f"'{file.parent}' is of format {found['format']}: a later version wrote it, and this "
            f"one reads formats 1 to {FORMAT}"
        )
    if found.get("format", 1) > 1 and not has_seal(raw):
        raise ConfigError(f"{file}: damaged, it bears no seal")
    return found


def unsealed(file: Path) -> bool:
    """Return whether the documents beside a plan may lack seals: it is of format 1."""
    try:
        return file.is_file() and read(file).get("format", 1) == 1
    except _LaterError:
        raise
    except ConfigError:
        return False


def refuse_another_experiment(file: Path, plan: Mapping[str, Any]) -> None:
    """Raise ConfigError where a plan may not take the place of the one that stands in a file.

    It may not where that is of an experiment of another name, which is cut to the same folder, and
    where a later version wrote it. One that is damaged is written anew.
    """
    stands: Mapping[str, Any] = {}
    try:
        stands = read(file)
    except _LaterError:
        raise
    except ConfigError:
        pass
    theirs, ours = _name(stands), _name(plan)
    if None not in (theirs, ours) and theirs != ours:
        raise ConfigError(f"'{file.parent}' holds the results of '{theirs}', not of '{ours}': "
                          "choose another name, or another --results")  # fmt: skip


def _name(plan: Mapping[str, Any]) -> Any:
    experiment = plan.get("experiment")
    return experiment.get("name") if isinstance(experiment, Mapping) else None
