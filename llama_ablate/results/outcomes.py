"""How far an experiment is: every run with its outcome, read without its numbers."""

from typing import Any

from llama_ablate.results import leases
from llama_ablate.results.store import Store


def outcomes(store: Store) -> list[dict[str, Any]]:
    """Return every run of all tables, once: id, label, seed, outcome and reason.

    One without a record is `running` where somebody holds its lease, else `pending`.
    """
    folders, plan = store.runs.folders(), store.plan
    labels = {v.id: v.label for table in reversed(plan.tables) for v in table.variants}
    rows = []
    for run in plan.runs.values():
        outcome, reason = "pending", ""
        if run.id in folders:
            outcome, reason = store.runs.at(folders[run.id]).outcome()
        elif leases.taken(store.working(run.id)):
            outcome = "running"
        row = {"id": run.id, "label": labels[run.variant], "seed": run.seed}
        rows.append({**row, "outcome": outcome, "reason": reason})
    return rows
