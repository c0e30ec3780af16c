"""The table and the variant of an experiment's results that a command line names."""

from llama_ablate.errors import ConfigError, nearest
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.results.plan_document import PlannedVariant


def table(frames: Frames, name: str | None) -> TableFrames:
    """Return the table of `--table`, the first without it. Raises ConfigError for another name."""
    try:
        return frames.named(name)
    except ConfigError as error:
        raise ConfigError(f"--table {name}: {error}") from None


def variant(frames: Frames, name: str, what: str = "variant") -> PlannedVariant:
    """Return the variant of a label or an id. Raises ConfigError, saying `what` was looked for."""
    variants = frames.table.plan.variants
    for planned in variants:
        if name in (planned.label, planned.id):
            return planned
    hint = nearest(name, [planned.label for planned in variants])
    raise ConfigError(f"'{name}' is not a {what} of {frames.root}{hint}")
