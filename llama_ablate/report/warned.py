"""What a reader of a report must know before the numbers, in whole sentences."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pandas as pd

from llama_ablate.report import frames, tables, tuned
from llama_ablate.results import Record, Store, once


@once
def warnings(store: Store) -> list[str]:
    """Say what stands in the way of comparing these records, in whole sentences.

    Of an experiment with several tables, all are looked at and nothing is said twice.
    """
    said = [warning for table in store.tables for warning in _of_table(table)]
    return list(dict.fromkeys(said))


def _of_table(store: Store) -> list[str]:
    found = []
    records = store.records()
    for what, values in {
        "devices, threads, precisions, kernels or precisions of evaluation": [
            tuple(
                r.compute.get(k) for k in ("device", "threads", "precision", "kernel", "evaluation")
            )
            for r in records
        ],
        "versions of torch": [r.environment["packages"]["torch"] for r in records],
        "states of the code": [r.environment["code"] for r in records],
        "plugins": [r.environment.get("plugins", {}) for r in records],
        "processors": [(r.environment["processor"], r.environment["gpu"]) for r in records],
    }.items():
        if len(told := {str(value) for value in values}) > 1:
            kinds = "; ".join(sorted(told))
            found.append(f"The runs were made with different {what} ({kinds}).")
    frame = frames.runs(store)
    pending = int((frame["outcome"] == "pending").sum())
    if pending:
        found.append(f"{pending} of {len(frame)} planned runs have not finished.")
    failed = frame[~frame["outcome"].isin(["ok", "pending"])]
    found += [
        f"{row.label}, seed {row.seed}: {row.outcome} ({row.reason})."
        for row in frames.rows(failed)
    ]
    found += covered(store.plan)
    found += losses_of_text(store.plan["data"])
    asked = store.plan["experiment"].get("hypotheses", [])
    if records and [_tested(h) for h in store.stated] != [_tested(h) for h in asked]:
        found.append(
            "The hypotheses were changed after runs had finished: what the table tests is "
            "not what was stated before them (hypotheses.json)."
        )
    for split in (s for s in frames.SPLITS if f"{s}_excess_nats" in frame):
        below = frame[frame[f"{split}_excess_nats"] < -3 * frame[f"{split}_excess_se_nats"]]
        found += [
            f"{row.label}, seed {row.seed}: the {split} loss is below the best possible by more "
            "than three standard errors: something leaks."
            for row in frames.rows(below)
        ]
    found += _of_metrics(store, records)
    found += _of_tuning(frame)
    if len(set(frame["seed"])) == 1:
        found.append("There is one seed: differences have no interval.")
    return found


def covered(table: Mapping[str, Any]) -> list[str]:
    """Say which levels of the file have no row of their own in a table of the plan, and why."""
    return [
        f"'{label}' changes nothing of '{variant['label']}', so it has no row of its own."
        for variant in table["variants"]
        for label in variant.get("covers", [])
    ]


def losses_of_text(data: Mapping[str, Any]) -> list[str]:
    """Say where a tokenizer loses text, with an example; `data` is what a plan says of its text."""
    if not data.get("lost"):
        return []
    return [f"The tokenizer loses text ({data['lost']}), so there are no bits per byte."]


def _tested(stated: dict[str, Any]) -> dict[str, Any]:
    """Leave out of a hypothesis what it says of its source: that is not what is tested."""
    about = ("source", "said")
    return {k: v for k, v in stated.items() if k not in about and v is not None}


def _of_metrics(store: Store, records: list[Record]) -> list[str]:
    """Say which metrics failed, and which were not taken of every run that could be measured."""
    speeds = frames.speeds(store)
    found = [
        f"{row.metric} was not measured of '{row.label}': {row.error}."
        for row in frames.rows(speeds[speeds["error"] != ""])
    ]
    ok = [record for record in records if record.ok]
    runs = Counter(record.label for record in ok)
    failed = Counter((name, r.label, why) for r in ok for name, why in r.unmeasured.items())
    found += [
        f"{name} was not measured of {n} of {runs[label]} finished runs of '{label}': {why}."
        for (name, label, why), n in failed.items()
    ]
    taken = Counter((name, record.label) for record in ok for name in record.metrics)
    taken_at_all = {name for name, _label in taken} - {"training"}  # notes of the loop, no metric
    lacking: dict[tuple[str, int, int], list[str]] = {}
    for name in sorted(taken_at_all):
        for label, finished in runs.items():
            if taken[name, label] < finished:
                lacking.setdefault((name, taken[name, label], finished), []).append(f"'{label}'")
    found += [
        f"{name} was measured on {n} of {finished} finished runs of {tables.listed(labels)}; "
        f"`llama-ablate measure DIR {name}` measures the rest."
        for (name, n, finished), labels in lacking.items()
    ]
    if len(records) == len(store.plan["runs"]) and ok:  # else `run` is not done with measuring
        entries = store.plan["experiment"].get("measure", [])
        asked = {entry if isinstance(entry, str) else entry["name"] for entry in entries}
        found += [
            f"{name} was not measured; `llama-ablate measure DIR {name}` measures it."
            for name in sorted(asked - taken_at_all - set(speeds["metric"]))
        ]
    return found


def _of_tuning(frame: pd.DataFrame) -> list[str]:
    """Say where a grid was too narrow, and who was not tried at all of it."""
    if not tuned.several(frame):
        return []
    found = []
    ledger = tuned.ledger(frame, frames.reported_split(frame))
    for row in frames.rows(ledger):
        if row.finished < row.trials:
            found.append(
                f"{row.label}: {row.finished} of {row.trials} trials have finished; a "
                "variant that is less tuned is not ranked."
            )
        elif row.edge:
            found.append(
                f"{row.label}: the best {row.edge} lies at the edge of the grid "
                f"({row.chosen}); the true best may lie beyond."
            )
    return found
