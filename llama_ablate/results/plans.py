"""The plan in a results folder: how it is read, and what may take its place."""

import contextlib
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from llama_ablate.errors import ConfigError
from llama_ablate.files.strict_json import has_seal, parse, sealed
from llama_ablate.results.leases import Lease

#: The plan that stands.
PLAN = "plan.json"
#: Plans that stood before, by the beginning of their SHA-256.
EARLIER = re.compile(r"plan-[0-9a-f]{8}\.json")
#: Of the layout: raised when older code would misread what is written. Format 1 had no seals.
FORMAT = 2


class _LaterError(ConfigError):
    """A later version wrote it."""


def read(file: Path) -> dict[str, Any]:
    """Return a plan. Raises ConfigError where it is damaged, or of a later version."""
    raw = file.read_bytes()
    found = parse(raw, file, file.name)
    if not isinstance(found, dict) or not isinstance(found.get("runs"), list):
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


def runs(plan: Mapping[str, Any]) -> set[str]:
    """Return the ids of all runs of a plan."""
    return {run["id"] for table in (plan, *plan.get("others", [])) for run in table["runs"]}


def keep(file: Path, now: Mapping[str, Any], finished: set[str], lease: Lease) -> None:
    """Keep the plan in a file beside it, if another leaves out finished runs of it.

    One that is damaged is not kept.
    """
    try:
        stands = read(file)
    except ConfigError:
        return
    if finished & runs(stands) - runs(now):
        name = f"plan-{hashlib.sha256(file.read_bytes()).hexdigest()[:8]}.json"
        lease.replace(file.parent / name, sealed(stands, name))


def earlier(root: Path, of: set[str]) -> list[Path]:
    """Return the plans that stood before and have some of these runs, but for damaged ones."""
    found = []
    for file in sorted(path for path in root.iterdir() if EARLIER.fullmatch(path.name)):
        with contextlib.suppress(ConfigError):
            found += [file] * bool(of & runs(read(file)))
    return found


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
        raise ConfigError(
            f"'{file.parent}' holds the results of '{theirs}', not of '{ours}': "
            "choose another name, or another --results"
        )


def _name(plan: Mapping[str, Any]) -> Any:
    experiment = plan.get("experiment")
    return experiment.get("name") if isinstance(experiment, Mapping) else None
