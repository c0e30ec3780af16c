"""How far an experiment is: every run with its outcome, read without its numbers."""

from typing import Any

from llama_ablate.results import leases
from llama_ablate.results.store import Store


def outcomes(store: Store) -> list[dict[str, Any]]:
    """Return every run of all tables, once: id, label, seed, outcome and reason.

    One without a record is `running` where somebody is at it, else `pending`.
    """
    folders, found = store.runs.folders(), {}
    for table in (table.plan for table in store.tables):
        labels = {variant["id"]: variant["label"] for variant in table["variants"]}
        for run in table["runs"]:
            key = run["id"]
            if key in found:
                continue
            outcome, reason = "pending", ""
            if key in folders:
                outcome, reason = store.runs.at(folders[key]).outcome()
            elif leases.taken(store.working(key)):
                outcome = "running"
            found[key] = {
                "id": key,
                "label": labels[run["variant"]],
                "seed": run["seed"],
                "outcome": outcome,
                "reason": reason,
            }
    return list(found.values())
