"""Output of `plan` for a terminal: planned training, model sizes, and predicted time."""

from collections.abc import Callable, Sequence

import pandas as pd

from llama_ablate.design.forecast import Cost, Forecast
from llama_ablate.evidence import written
from llama_ablate.report import tables, warnings
from llama_ablate.results.plan_document import HELD_OUT, PlannedTable, PlannedText


def list_forecast(forecast: Forecast, margin: str) -> list[str | pd.DataFrame]:
    """Return a forecast for a terminal as a list of paragraphs and tables.

    `margin` is a text on the experiment's equivalence margin.
    """
    experiment, compute = forecast.plan.experiment, forecast.compute
    first = forecast.plan.tables[0]
    tokens, _, documents = first.text.size(HELD_OUT)
    per_parameter = written.plain(first.tokens_per_run / first.baseline.parameters, 2)
    opening = (
        f"{experiment.name}: {experiment.question}".rstrip(": "),
        f"tokens a parameter: {per_parameter}, with embeddings, of the baseline",
        f"passes over the text: {written.plain(first.passes(first.baseline), 2)}",
        f"held out: {documents:,} documents, {tokens:,} tokens",
        f"margin: {margin}",
    )
    parts: list[str | pd.DataFrame] = ["\n".join(opening)]
    for table in forecast.plan.tables:
        parts += [f"{table.name}:"] * bool(table.name)
        lines = [
            f"{table.matching}; budget: {table.budget}; the baseline trains on "
            f"{table.tokens_per_run:,} tokens ({table.steps:,} steps)",
            *map(_text, table.texts),
            *warnings.warn_of_text(table, experiment),
            *warnings.planned(table, experiment),
        ]
        parts += [_cells(table, experiment.state_contexts), "\n".join(lines)]
    disk = (f"{tables.size(n)} ({kept})" for kept, n in forecast.disk_bytes.items())
    where = "of the GPU " if compute.device == "cuda" else ""
    lines = [
        "* baseline. FLOPs: forward, at the training context. Bytes: in 16-bit numbers, of the "
        "state of one sequence of so many tokens; bytes/token: what one further token adds.",
        f"runs: {_range(forecast, lambda cost: str(cost.runs))}; "
        f"{_range(forecast, lambda cost: written.number(cost.training_flops, '.3g'))} "
        "training FLOPs",
        f"predicted: about {_range(forecast, lambda cost: _duration(cost.predicted_s))} with "
        f"{forecast.workers} worker(s) on {compute.device}, {compute.precision}, {compute.kernel} "
        f"kernel{', compiled' * compute.compiled} ({compute.flops_per_s / 1e9:,.0f} GFLOP/s a "
        "worker, measured; where FLOPs are not provided, two for each parameter)",
        f"disk: up to {', '.join(disk)}, by the weights to keep",
        f"memory: about {tables.size(forecast.memory.bytes)} {where}a worker, most for "
        f"'{forecast.memory.variant}' (closed form, to a factor of 1.5)",
    ]
    return [*parts, "\n".join(lines)]


def _text(text: PlannedText) -> str:
    """Describe a text: fingerprint, vocabulary, tokens of its splits, and document options."""
    splits = ", ".join(f"{name} {count:,}" for name, count in text.tokens.items())
    parts = [f"data: {text.fingerprint}, vocabulary {text.vocab:,}", f"tokens: {splits}"]
    parts += ["documents are kept apart"] * (text.source.documents == "mask")
    parts += ["documents are read in random order"] * (text.source.order == "documents")
    return "; ".join(parts)


def _cells(table: PlannedTable, contexts: Sequence[int]) -> pd.DataFrame:
    rows = []
    for v in table.variants:
        row = {
            "variant": f"{v.label} *" if v.baseline else v.label,
            "parameters": f"{v.parameters:,}",
            "active": f"{v.active:,}",
            "non-embedding": f"{v.non_embedding:,}",
            "FLOPs/token": written.number(v.flops_per_token, ","),
            f"bytes/token at {contexts[0]:,}": written.number(v.kv_bytes_per_token, ","),
        }
        for context in contexts:
            size = written.number(v.state_growth.get(context), ",")
            row[f"state bytes at {context:,}"] = size
        if table.match != "none":
            row |= {"residual": f"{v.residual:+.2%}", "solved": v.solved or "own sizes"}
        rows.append(row)
    cells = pd.DataFrame(rows)
    dense = all(v.active == v.parameters for v in table.variants)
    return cells.drop(columns="active") if dense else cells


def _range(forecast: Forecast, write: Callable[[Cost], str]) -> str:
    """Format the range from the least to the greatest cost, or one value if equal."""
    return " to ".join(dict.fromkeys(map(write, (forecast.least, forecast.most))))


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60:.1f} h"
