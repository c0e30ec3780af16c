"""Output of `plan` for a terminal: planned training, model sizes, and predicted time."""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import pandas as pd

from llama_ablate.design.forecast import Cost, Forecast, held_out_tokens
from llama_ablate.evidence import written
from llama_ablate.findings import warnings
from llama_ablate.results.plan_document import HELD_OUT, PlannedTable, PlannedText

_WEIGHT_CHOICES = {"none": "no weights kept", "best": "those of the best", "all": "all"}


def list_forecast(forecast: Forecast, margin: str) -> list[str | pd.DataFrame]:
    """Return a forecast for a terminal as a list of paragraphs and tables.

    `margin` is a text on the experiment's equivalence margin.
    """
    experiment, compute = forecast.plan.experiment, forecast.compute
    parts: list[str | pd.DataFrame] = [_opening(forecast, margin)]
    for table in forecast.plan.tables:
        parts += [f"{table.name}:"] * bool(table.name)
        lines = [
            f"{table.matching}; budget: {table.budget}; the baseline trains on "
            f"{table.tokens_per_run:,} tokens ({table.steps:,} steps)",
            *map(_text, table.texts),
            *warnings.warn_of_text(table, experiment),
            *map(str, warnings.planned(table, experiment)),
        ]
        parts += [_cells(table, experiment.state_contexts), "\n".join(lines)]
    sizes = (
        f"{written.size(n)} with {_WEIGHT_CHOICES[choice]}"
        for choice, n in forecast.disk_bytes.items()
    )
    where = "of the GPU " if compute.device == "cuda" else ""
    unknown = math.isnan(forecast.most.training_flops)
    by_size = "; where FLOPs are not provided, two for each parameter" * unknown
    lines = [
        "* baseline. FLOPs: forward, at the training context. Bytes: in 16-bit numbers, of the "
        "state of one sequence of so many tokens; bytes/token: what one further token adds.",
        f"runs: {_range(forecast, lambda cost: str(cost.runs))}; "
        f"{_range(forecast, lambda cost: written.number(cost.training_flops, '.3g'))} "
        "training FLOPs",
        f"predicted: about {_range(forecast, lambda cost: duration(cost.predicted_s))} with "
        f"{forecast.workers} "
        f"worker(s) on {compute.device}, {compute.precision}, {compute.kernel} kernel"
        f"{', compiled' * compute.compiled} "
        f"({compute.flops_per_s / 1e9:,.0f} GFLOP/s a worker, measured{by_size})",
        f"of it: {_range(forecast, _split)}",
        *_costly_evaluation(forecast),
        f"disk: up to {', '.join(sizes)}",
        f"memory: about {written.size(forecast.memory.bytes)} {where}a worker, most for "
        f"'{forecast.memory.variant}' (closed form, to a factor of 1.5)",
    ]
    return [*parts, "\n".join(lines)]


def _costly_evaluation(forecast: Forecast) -> list[str]:
    """Name the key that makes held-out text take longer than training, if it does."""
    if forecast.most.evaluation_s <= forecast.most.training_s:
        return []
    read = forecast.plan.tables[0].text
    keys = held_out_tokens(forecast.plan, read)
    key, tokens = max(keys.items(), key=lambda item: item[1])
    return [
        f"held-out text takes longer than training: {tokens / sum(keys.values()):.0%} of it by "
        f"{key}; less there costs less"
    ]


def _opening(forecast: Forecast, margin: str) -> str:
    """Summarize a plan in five lines: question, training, text, held-out text and margin."""
    experiment, planned = forecast.plan.experiment, forecast.plan.tables

    def over(values: Iterable[float], digits: int = 2) -> str:
        """Format the range of values over comparison tables, or the value that all share."""
        return written.ends(values, partial(written.plain, digits=digits))

    held_out = [table.text.size(HELD_OUT) for table in planned]
    per_parameter = over(table.tokens_per_run / table.baseline.parameters for table in planned)
    passes = over(table.passes(table.baseline) for table in planned)
    tokens, _, documents = (over(of, 9) for of in zip(*held_out, strict=True))
    lines = [
        f"{experiment.name}: {experiment.question}".rstrip(": "),
        f"tokens a parameter: {per_parameter}, with embeddings, of the baseline",
        f"passes over the text: {passes}",
        f"held out: {documents} documents, {tokens} tokens",
        f"margin: {margin}",
    ]
    return "\n".join(lines)


def _text(text: PlannedText) -> str:
    """Describe a text: fingerprint, vocabulary, tokens of its splits, and document options."""
    splits = ", ".join(f"{name} {count:,}" for name, count in text.tokens.items())
    parts = [f"data: {text.fingerprint}, vocabulary {text.vocab:,}", f"tokens: {splits}"]
    parts += ["documents are kept apart"] * (text.source.documents == "mask")
    parts += ["documents are read in random order"] * (text.source.order == "documents")
    return "; ".join(parts)


def _cells(table: PlannedTable, contexts: Sequence[int]) -> pd.DataFrame:
    variants = table.variants
    dense = all(v.active == v.parameters for v in variants)
    columns = {
        "variant": [f"{v.label} *" if v.baseline else v.label for v in variants],
        "parameters": [f"{v.parameters:,}" for v in variants],
        **({} if dense else {"active": [f"{v.active:,}" for v in variants]}),
        "non-embedding": [f"{v.non_embedding:,}" for v in variants],
        "FLOPs/token": [written.number(v.flops_per_token, ",") for v in variants],
        f"bytes/token at {contexts[0]:,}": [
            written.number(v.kv_bytes_per_token, ",") for v in variants
        ],
    }
    for context in contexts:
        sizes = [written.number(v.state_growth.get(context), ",") for v in variants]
        columns[f"state bytes at {context:,}"] = sizes
    if table.match != "none":
        columns["residual"] = [f"{v.residual:+.2%}" for v in variants]
        columns["solved"] = [v.solved or "own sizes" for v in variants]
    return pd.DataFrame(columns)


def _range(forecast: Forecast, write: Callable[[Cost], str]) -> str:
    """Format the range from the least to the greatest cost, or one value if equal."""
    return " to ".join(dict.fromkeys(map(write, (forecast.least, forecast.most))))


def _split(cost: Cost) -> str:
    """Format the parts of a predicted time."""
    return (
        f"training {duration(cost.training_s)}, held-out text {duration(cost.evaluation_s)}, "
        f"measuring speeds {duration(cost.measuring_s)}"
    )


def duration(seconds: float) -> str:
    """Format a predicted time in seconds, minutes or hours."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes, hours = seconds / 60, seconds / 3600
    return f"{minutes:.0f} min" if minutes < 90 else f"{hours:.1f} h"
