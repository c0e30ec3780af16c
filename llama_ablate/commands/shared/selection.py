"""The table and the variant of an experiment's results that a command line names."""

from llama_ablate.config.baselines import UNCHANGED
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
    """Return the variant that a name stands for. Raises ConfigError, saying what was looked for."""
    table = frames.table.plan
    if found := frames.plan.variant(name, table):
        return found
    hint = nearest(name, [*(planned.label for planned in table.variants), UNCHANGED])
    raise ConfigError(f"'{name}' is not a {what} of {frames.root}{hint}")
