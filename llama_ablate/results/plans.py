"""The plan in a results folder: how it is read, and what may take its place."""

import contextlib
import hashlib
import re
from pathlib import Path

from pydantic import ValidationError

from llama_ablate.errors import ConfigError
from llama_ablate.files.strict_json import has_seal, parse, sealed
from llama_ablate.results.leases import Lease
from llama_ablate.results.plan import FORMAT, PlanDocument

PLAN = "plan.json"
#: Earlier plans, by the beginning of their SHA-256.
EARLIER = re.compile(r"plan-[0-9a-f]{8}\.json")


class _OtherFormatError(ConfigError):
    """Another version wrote it."""


def read(file: Path) -> PlanDocument:
    """Return a plan. Raises ConfigError where it is damaged, or of another format."""
    raw = file.read_bytes()
    values = parse(raw, file, file.name)
    if not isinstance(values, dict) or "experiment" not in values:
        raise ConfigError(f"'{file}' is damaged: it holds no plan")
    if (format_ := values.get("format", 1)) != FORMAT:
        who = "a later" if isinstance(format_, int) and format_ > FORMAT else "an earlier"
        raise _OtherFormatError(
            f"'{file.parent}' is of format {format_}: {who} version wrote it, and this one reads "
            f"format {FORMAT}"
        )
    if not has_seal(raw):
        raise ConfigError(f"{file}: damaged, it bears no seal")
    try:
        return PlanDocument.model_validate(values)
    except (ValidationError, ConfigError) as error:
        why = str(error).splitlines()[0]
        raise ConfigError(f"'{file}' is damaged: it holds no plan ({why})") from None


def same(file: Path, plan: PlanDocument) -> bool:
    """Return whether a file holds this plan, as this or an earlier version wrote it."""
    with contextlib.suppress(ConfigError):
        return read(file).identity() == plan.identity()
    return False


def keep(file: Path, now: PlanDocument, finished: set[str], lease: Lease) -> None:
    """Keep the plan in a file beside it, if another leaves out finished runs of it.

    One that is damaged is not kept.
    """
    try:
        stands = read(file)
    except ConfigError:
        return
    if finished & stands.runs.keys() - now.runs.keys():
        name = f"plan-{hashlib.sha256(file.read_bytes()).hexdigest()[:8]}.json"
        lease.replace(file.parent / name, sealed(stands.model_dump(mode="json"), name))


def earlier(root: Path, runs: set[str]) -> list[Path]:
    """Return the earlier plans that have some of these runs, but for damaged ones."""
    plans = []
    for file in sorted(path for path in root.iterdir() if EARLIER.fullmatch(path.name)):
        with contextlib.suppress(ConfigError):
            plans += [file] * bool(runs & read(file).runs.keys())
    return plans


def refuse_another_experiment(file: Path, plan: PlanDocument) -> None:
    """Raise ConfigError where a plan may not take the place of the one in a file.

    It may not where that is of an experiment of another name, which is cut to the same folder, and
    where another version wrote it. One that is damaged is written anew.
    """
    try:
        theirs = read(file).experiment.name
    except _OtherFormatError:
        raise
    except ConfigError:
        return
    ours = plan.experiment.name
    if theirs != ours:
        raise ConfigError(
            f"'{file.parent}' holds the results of '{theirs}', not of '{ours}': "
            "choose another name, or another --results"
        )
