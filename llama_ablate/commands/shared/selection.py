"""Lookup of the comparison table, variant or run that a command line names."""

from collections.abc import Mapping

from llama_ablate.config.labels import UNCHANGED
from llama_ablate.errors import ConfigError, nearest
from llama_ablate.results.plan_document import (
    PlanDocument,
    PlannedTable,
    PlannedVariant,
    Table,
    find_table,
)


def table(tables: Mapping[str, Table], name: str | None) -> Table:
    """Return the comparison table that `--table` names, by default the first table.

    Raises ConfigError for an unknown name.
    """
    try:
        return find_table(tables, name)
    except ConfigError as error:
        raise ConfigError(f"--table {name}: {error}") from None


def run(plan: PlanDocument, name: str) -> str | None:
    """Return the id of the run that a name denotes, or None.

    `name` is a run id, the name of a run's folder, or `LABEL sSEED` as in progress bars. Raises
    ConfigError if several runs have the name, with different tuned values.
    """
    if (id_ := name.rpartition("--")[2]) in plan.runs:
        return id_
    label, _, seed = name.rpartition(" s")
    called = plan.called(label)
    named = [r.id for r in plan.runs.values() if r.variant in called and seed == str(r.seed)]
    if len(named) > 1:
        raise ConfigError(f"'{name}' is {len(named)} runs; allowed: {', '.join(named)}")
    return named[0] if named else None


def variant(
    plan: PlanDocument, table: PlannedTable, name: str, root: object, what: str = "variant"
) -> PlannedVariant:
    """Return the variant of a comparison table with a given label or id.

    Raises ConfigError for an unknown name.
    """
    if match := plan.variant(name, table):
        return match
    hint = nearest(name, {*(planned.label for planned in table.variants), UNCHANGED})
    raise ConfigError(f"'{name}' is not a {what} of {root}{hint}")
