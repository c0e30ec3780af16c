"""The command `attention`: figures of attention maps."""

from dataclasses import dataclass
from pathlib import Path

from llama_ablate.commands.shared import model_input
from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.model_input import PromptOptions
from llama_ablate.commands.shared.options import option

HELP = "draw the attention maps of a prompt"
EXAMPLE = 'attention results/first/rope --prompt "for x in xs:" --layer 0'


@dataclass(frozen=True, kw_only=True)
class AttentionOptions(PromptOptions):
    """Options of `attention`: the model, the prompt, and the layers and heads to draw."""

    prompt: str = option(..., "the text to read", "TEXT")
    layer: int | None = option(None, "from 0 (default: all, a page each)", "N")
    head: int | None = option(
        None, "from 0: scores, masked scores and probabilities of one head", "N"
    )
    out: Path = option(Path("attention"), "where figures and arrays go (default: attention)", "DIR")


def run(options: AttentionOptions) -> Answer:
    """Write the attention maps of a prompt as arrays and as figures."""
    from llama_ablate.interop.attention_maps import attention_maps
    from llama_ablate.report.pictures import save

    opened = model_input.open_model(options)
    text = model_input.read_prompt(options.prompt)
    prompt = opened.prompt(text, special=options.parse_special)
    maps = attention_maps(opened, prompt)
    layers = maps.layers if options.layer is None else [options.layer]
    if options.head is None:
        figures = {f"layer-{layer}": maps.layer(layer) for layer in layers}
    else:
        figures = {f"layer-{i}-head-{options.head}": maps.head(i, options.head) for i in layers}
    paths = [maps.save(options.out / "attention.npz")]
    for name, figure in figures.items():
        paths += save(figure, options.out / name)
    files = [str(path) for path in paths]
    return Answer("\n".join(files), {"tokens": prompt, "labels": maps.labels, "files": files})
