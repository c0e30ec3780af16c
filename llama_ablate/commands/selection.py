"""The table and the variant of an experiment's results that a command line names."""

from argparse import Namespace
from typing import Any

from llama_ablate.errors import ConfigError, nearest
from llama_ablate.results import Results, Still


def open_table(options: Namespace) -> Still:
    """Open the results, seen as the table of `--table`. Raises ConfigError for another name."""
    results = Results.open(options.folder)
    store = Still(results.root, plan=results.plan_name, results=results)
    if options.table is None:
        return store
    tables: dict[str, Still] = {table.plan.get("table", ""): table for table in store.tables}
    if options.table not in tables:
        raise ConfigError(
            f"--table {options.table}: there is none of that name{nearest(options.table, tables)}"
        )
    return tables[options.table]


def variant(store: Still, name: str, what: str = "variant") -> dict[str, Any]:
    """Return the variant of a label or an id. Raises ConfigError, saying `what` was looked for."""
    variants = store.plan["variants"]
    for planned in variants:
        if name in (planned["label"], planned["id"]):
            return dict(planned)
    hint = nearest(name, [planned["label"] for planned in variants])
    raise ConfigError(f"'{name}' is not a {what} of {store.root}{hint}")
