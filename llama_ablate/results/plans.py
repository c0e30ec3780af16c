"""Plan files: reading one, replacing one, and keeping those of earlier runs."""

import contextlib
import hashlib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from llama_ablate.errors import ConfigError
from llama_ablate.files.strict_json import parse, sealed
from llama_ablate.results.layout import EARLIER
from llama_ablate.results.leases import Lease
from llama_ablate.results.plan import FORMAT, PlanDocument


class FormatError(ConfigError):
    """Results of another format, which another version of this program wrote."""


def read(file: Path) -> PlanDocument:
    """Return a plan. Raises FormatError for another format, ConfigError for a damaged one."""
    raw = file.read_bytes()
    try:
        values = parse(raw, file, file.name)
    except ConfigError:
        _refuse_format_1(parse(raw, file), file)
        raise
    return validate(values, file)


def _refuse_format_1(values: Any, file: Path) -> None:
    """Raise FormatError for a plan of format 1, which had neither a seal nor a number."""
    plain = isinstance(values, dict) and not {"format", "sha256"} & values.keys()
    if plain and isinstance(values.get("runs"), list):
        validate({"format": 1}, file)


def validate(values: object, file: Path) -> PlanDocument:
    """Return the plan in a file as a typed document. Raises FormatError and ConfigError."""
    if isinstance(values, dict) and values.get("format") != FORMAT:
        number = values.get("format")
        who = "an earlier" if isinstance(number, int) and number < FORMAT else "a later"
        raise FormatError(
            f"'{file.parent}' is of format {number}: {who} version wrote it, and this one reads "
            f"format {FORMAT}"
        )
    try:
        return PlanDocument.model_validate(values)
    except (ValidationError, ConfigError) as error:
        why = str(error).splitlines()[0]
        raise ConfigError(f"'{file}' is damaged: it holds no plan ({why})") from None


def refuse_other_format(file: Path) -> PlanDocument | None:
    """Return the plan in a file; None for a damaged or missing one. Raises FormatError."""
    try:
        return read(file)
    except FormatError:
        raise
    except (ConfigError, FileNotFoundError):
        return None


def refuse_another_experiment(file: Path, plan: PlanDocument) -> None:
    """Raise ConfigError where a plan may not replace the one in a file.

    That is where the file is of an experiment of another name, which was cut to the same folder,
    and where it is of another format. A damaged one may be replaced.
    """
    current = refuse_other_format(file)
    if current and current.experiment.name != plan.experiment.name:
        raise ConfigError(
            f"'{file.parent}' holds the results of '{current.experiment.name}', not of "
            f"'{plan.experiment.name}': choose another name, or another --results"
        )


def same(file: Path, plan: PlanDocument) -> bool:
    """Return whether a file holds this plan, as this or an earlier version wrote it."""
    with contextlib.suppress(ConfigError):
        return read(file).identity() == plan.identity()
    return False


def keep(file: Path, now: PlanDocument, finished: set[str], lease: Lease) -> None:
    """Keep a copy of the plan in a file, where the plan that replaces it drops finished runs.

    A damaged one is not kept.
    """
    try:
        current = read(file)
    except ConfigError:
        return
    if finished & current.runs.keys() - now.runs.keys():
        name = f"plan-{hashlib.sha256(file.read_bytes()).hexdigest()[:8]}.json"
        lease.replace(file.parent / name, sealed(current.model_dump(mode="json"), name))


def earlier(root: Path, runs: set[str]) -> list[Path]:
    """Return the earlier plans that have some of these runs, without damaged ones."""
    plans = []
    for file in sorted(path for path in root.iterdir() if EARLIER.fullmatch(path.name)):
        with contextlib.suppress(ConfigError):
            plans += [file] * bool(runs & read(file).runs.keys())
    return plans
