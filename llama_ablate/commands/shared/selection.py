"""The table and the variant of an experiment's results that a command line names."""

from collections.abc import Mapping

from llama_ablate.errors import ConfigError, nearest
from llama_ablate.results.plan_document import PlannedTable, PlannedVariant, Table, named


def table(tables: Mapping[str, Table], name: str | None) -> Table:
    """Return the table of `--table`, the first without it. Raises ConfigError for another name."""
    try:
        return named(tables, name)
    except ConfigError as error:
        raise ConfigError(f"--table {name}: {error}") from None


def variant(table: PlannedTable, name: str, root: object, what: str = "variant") -> PlannedVariant:
    """Return the variant of a label or an id. Raises ConfigError, saying `what` was looked for."""
    for planned in table.variants:
        if name in (planned.label, planned.id):
            return planned
    hint = nearest(name, [planned.label for planned in table.variants])
    raise ConfigError(f"'{name}' is not a {what} of {root}{hint}")
