"""The command `trace`: list the tensors of one forward pass, in computation order."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from llama_ablate.commands.shared import model_input
from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.model_input import PromptOptions
from llama_ablate.commands.shared.options import option
from llama_ablate.errors import ConfigError

if TYPE_CHECKING:
    from llama_ablate.interop.trace import Traced

HELP = "list every tensor of one forward pass: shape, type, mean, rms, max"
EXAMPLE = 'trace llama2-demo --prompt "hello world!" --layer 0'
_CODE = 60  # most characters of a source line in the table


@dataclass(frozen=True, kw_only=True)
class TraceOptions(PromptOptions):
    """Options of `trace`: the model, the prompt, and the layer to show."""

    prompt: str = option(..., "the text to read; - reads standard input", "TEXT")
    layer: int | None = option(None, "of the layers (from 0) only this one (default: all)", "N")


def run(options: TraceOptions) -> Answer:
    """Trace one forward pass over a prompt, and list its tensors."""
    from llama_ablate.interop.trace import trace

    opened = model_input.open_model(options)
    layers = opened.model.spec.layers
    if options.layer is not None and not 0 <= options.layer < layers:
        raise ConfigError(f"--layer {options.layer}: {opened.title} has layers 0 to {layers - 1}")
    text = model_input.read_prompt(options.prompt)
    prompt = opened.prompt(text, special=options.parse_special)
    rows = [row for row in trace(opened.model, prompt) if _wanted(row.module, options.layer)]
    return Answer(table(rows), {"tokens": prompt, "tensors": [asdict(row) for row in rows]})


def _wanted(module: str, layer: int | None) -> bool:
    parts = module.split(".")
    return layer is None or parts[0] != "blocks" or parts[1] == str(layer)


def table(rows: Sequence["Traced"]) -> str:
    """Format a trace as a table for a terminal."""
    import pandas as pd

    from llama_ablate.report import tables

    def number(value: float | None) -> str:
        return "-" if value is None else f"{value:.3g}"

    cells = [
        {
            "module": row.module or "decoder",
            "operation": row.operation,
            "shape": " x ".join(map(str, row.shape)) or "number",
            "dtype": row.dtype,
            "mean": number(row.mean),
            "rms": number(row.rms),
            "max": number(row.max),
            "finite": f"{row.finite:.0%}",
            "code": row.code if len(row.code) <= _CODE else row.code[: _CODE - 3] + "...",
        }
        for row in rows
    ]
    note = "mean, root mean square and largest magnitude are of the finite numbers"
    return f"{tables.text(pd.DataFrame(cells))}\n\n{len(rows):,} tensors; {note}"
