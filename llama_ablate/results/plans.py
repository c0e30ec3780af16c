"""Plan files: reading one, replacing one, and keeping those of earlier runs."""

import contextlib
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from llama_ablate import __version__
from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.strict_json import parse, sealed
from llama_ablate.results.layout import EARLIER
from llama_ablate.results.leases import Lease
from llama_ablate.results.plan import FORMAT, READ, PlanDocument


class FormatError(ConfigError):
    """Results of another format, which another version of this program wrote."""


def read(file: Path) -> PlanDocument:
    """Return a plan. Raises FormatError for another format, ConfigError for a damaged one."""
    raw = disk.read(file)
    try:
        values = parse(raw, file, file.name)
    except ConfigError:
        _refuse_unsealed(parse(raw, file), file)
        raise
    return validate(values, file)


def _refuse_unsealed(values: Mapping[str, Any], file: Path) -> None:
    """Raise FormatError for a plan of format 1, without seal and number, or sealed otherwise."""
    is_first = not {"format", "sha256"} & values.keys() and isinstance(values.get("runs"), list)
    number = 1 if is_first else values.get("format")
    if number == 1 or (isinstance(number, int) and number > FORMAT):
        validate({**values, "format": number}, file)


def validate(values: Mapping[str, Any], file: Path) -> PlanDocument:
    """Return the plan that a file holds, whose seal is intact, as a typed document.

    Raises FormatError for one of another version: of another format, or that lacks or adds a key.
    """
    number, version = values.get("format"), values.get("version")
    which = f" ({version!s:.40})" if version else ""  # whatever stands there
    ours = f"this is version {__version__}, which reads formats {' and '.join(map(str, READ))}"
    if number not in READ:
        who = "an earlier" if isinstance(number, int) and number < FORMAT else "a later"
        what = f"'{file.parent}' is of format {number!s:.40}: {who} version{which} wrote it"
        raise FormatError(f"{what}; {ours}")
    try:
        return _typed(values)
    except (ValidationError, ConfigError) as error:
        who = "no version" if version == __version__ else f"another version{which}"
        what = f"'{file}': {who} wrote it"
        raise FormatError(f"{what}; {ours} ({_first(error)})") from None


def _typed(values: Mapping[str, Any]) -> PlanDocument:
    plan = PlanDocument.model_validate(values)
    if not all(table.runs for table in plan.tables):
        raise ConfigError("a table has no runs")
    return plan


def _first(error: ValidationError | ConfigError) -> str:
    """Return in a line where a document is not what it should be, and why."""
    if isinstance(error, ConfigError):
        return str(error)
    wrong = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(map(str, wrong['loc']))}: {wrong['msg']}"


def if_sound(file: Path) -> PlanDocument | None:
    """Return the plan in a file; None for a damaged or missing one.

    Raises FormatError for one of another version, which no command may replace.
    """
    try:
        return read(file)
    except FormatError:
        raise
    except (ConfigError, FileNotFoundError):
        return None


def refuse_another_experiment(file: Path, current: PlanDocument, plan: PlanDocument) -> None:
    """Raise ConfigError where the current plan in a file is of an experiment of another name."""
    if current.experiment.name != plan.experiment.name:
        raise ConfigError(
            f"'{file.parent}' holds the results of '{current.experiment.name}', not of "
            f"'{plan.experiment.name}': choose another name, or another --results"
        )


def keep(
    file: Path, current: PlanDocument, now: PlanDocument, finished: set[str], lease: Lease
) -> None:
    """Keep a copy of the current plan, where the plan that replaces it drops finished runs."""
    if finished & current.runs.keys() - now.runs.keys():
        name = f"plan-{hashlib.sha256(disk.read(file)).hexdigest()[:8]}.json"
        lease.replace(file.parent / name, sealed(current.model_dump(mode="json"), name))


def earlier(root: Path, runs: set[str]) -> list[Path]:
    """Return the earlier plans that have some of these runs, without damaged ones."""
    plans = []
    for file in sorted(path for path in root.iterdir() if EARLIER.fullmatch(path.name)):
        with contextlib.suppress(ConfigError):
            plans += [file] * bool(runs & read(file).runs.keys())
    return plans
