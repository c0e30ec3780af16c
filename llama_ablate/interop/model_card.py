"""The model card of an exported model: what was measured of it, and what was not."""

import math
from typing import Any

from huggingface_hub import ModelCardData

from llama_ablate.config.registry import entry_text
from llama_ablate.files.strict_json import to_json
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.report.headline import headline
from llama_ablate.results import Record, Results

_NOT_TESTED = """\
- **Not tested**: other sizes, longer training, other texts and tokenizers, tasks of any kind, what
  the model writes, bias and safety. It was trained
  for an experiment, not to be built on."""


def model_card(title: str, run: tuple[Results, str] | None, license_: str | None = None) -> str:
    """Return a card as Markdown with the metadata of a Hugging Face repository.

    Numbers are those of the run's record, so a model that is no run of ours has a card without any.
    """
    data = ModelCardData(
        license=license_,
        library_name="transformers",
        pipeline_tag="text-generation",
        tags=["llama-ablate"],
    )
    parts = _of_run(*run) if run else [f"# {_plain(title)}", "Nothing was measured of this model."]
    parts += ["## How to load", _LOAD]
    if license_ is None:
        parts += ["No licence was stated when this was exported."]
    return f"---\n{data.to_yaml()}\n---\n\n" + "\n\n".join(parts) + "\n"


def _of_run(results: Results, id_: str) -> list[str]:
    frames, record = Frames.of(results), results.record(id_)
    table = next(t for t in frames.tables if id_ in {run.id for run in t.plan.runs})
    experiment = results.plan.experiment
    asked = f" It asks: {_plain(experiment.question)}" if experiment.question else ""
    return [
        f"# {_plain(experiment.name)}: {_plain(table.plan.variant(record.variant).label)}, "
        f"seed {record.seed}",
        f"One run of the experiment `{_plain(experiment.name)}` of llama-ablate.{asked}",
        "## What was measured",
        _numbers(record),
        _against_baseline(table, record),
        f"The experiment's answer: {_plain(headline(frames))}",
        "## What that says, and what it does not",
        _limits(table, record),
        "## Recipe",
        f"Run `{record.id}`, variant `{record.variant}`, text `{record.data}`.",
        f"```json\n{to_json({'model': record.model, 'train': record.train})}\n```",
    ]


def _numbers(record: Record) -> str:
    values = [row for metric in record.read().values() for row in metric.rows]
    held_out = [row for row in values if row.quantity in ("loss", "perplexity", "bits_per_byte")]
    lines = [
        f"| {_plain(row.name.replace('_', ' '))} | {row.value:.4f} |"
        for row in held_out or values
        if math.isfinite(row.value) and row.coordinates.keys() <= {"split"}
    ]
    return "\n".join(["| of this run | value |", "|---|---|", *lines])


def _against_baseline(table: TableFrames, record: Record) -> str:
    label = table.plan.variant(record.variant).label
    row = next(row for row in table.comparison if row.label == label)
    if row.baseline:
        return "It is a run of the baseline, with which the others are compared."
    if not math.isfinite(row.difference):
        return f"Against the baseline: {row.verdict}."
    interval = f"[{row.low:+.4f}, {row.high:+.4f}]"
    if not math.isfinite(row.low):
        interval = "none, from one pair"
    return (
        f"Its variant against `{_plain(table.plan.baseline.label)}`, over {row.n} seeds: "
        f"{row.difference:+.4f} {table.unit.full}, interval {interval}: "
        f"**{row.verdict}**."
    )


def _limits(table: TableFrames, record: Record) -> str:
    variant = table.plan.variant(record.variant)
    text: Any = table.plan.text_of(variant)
    seeds = len({run.seed for run in table.plan.runs if run.variant == variant.id})
    return "\n".join(
        [
            f"- **Scale**: {variant.parameters:,} parameters ({variant.non_embedding:,} without "
            f"embeddings and head), context {record.model.get('context', '?')}, "
            f"{record.tokens_done:,} tokens of training.",
            f"- **Text**: `{_plain(entry_text(text.source.corpus))}`, vocabulary {text.vocab:,}.",
            f"- **Seeds**: {seeds} of this variant; this is the model of one.",
            _NOT_TESTED,
        ]
    )


def _plain(text: str) -> str:
    """Return text of users in one line that holds no tag, and ends no code span."""
    return " ".join(text.split()).replace("<", "&lt;").replace("`", "'").replace("|", "\\|")


_LOAD = """\
```python
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

model = AutoModelForCausalLM.from_pretrained("PATH OR REPOSITORY")
tokenizer = PreTrainedTokenizerFast.from_pretrained("PATH OR REPOSITORY")
```"""
