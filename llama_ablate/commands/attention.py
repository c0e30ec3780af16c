"""The command `attention`: figures of what each head attends to."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from llama_ablate.commands.shared import model_input
from llama_ablate.commands.shared.answer import Answer

HELP = "draw the attention maps of a prompt"
EXAMPLE = (
    'attention "results/quickstart/rmsnorm rope mha swiglu pre" --prompt "for x in xs:" --layer 0'
)


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the model, the prompt, and which layers and heads are drawn."""
    model_input.add_model(parser)
    model_input.add_prompt(parser, "the text to read")
    parser.add_argument("--layer", type=int, metavar="N", help="from 0 (default: all, a page each)")
    parser.add_argument(
        "--head",
        type=int,
        metavar="N",
        help="from 0: scores, masked scores and probabilities of one head",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("attention"),
        metavar="DIR",
        help="where figures and arrays go (default: attention)",
    )


def run(options: Namespace) -> Answer:
    """Write the attention maps of a prompt as arrays and as figures."""
    from llama_ablate.interop.attention_maps import attention_maps
    from llama_ablate.report.plots import save

    opened = model_input.open_model(options)
    text = model_input.read_prompt(options)
    prompt = opened.prompt(text, special=options.parse_special)
    maps = attention_maps(opened, prompt)
    layers = maps.layers if options.layer is None else [options.layer]
    if options.head is None:
        figures = {f"layer-{layer}": maps.layer(layer) for layer in layers}
    else:
        figures = {f"layer-{i}-head-{options.head}": maps.head(i, options.head) for i in layers}
    written = [maps.save(options.out / "attention.npz")]
    for name, figure in figures.items():
        written += save(figure, options.out / name)
    files = [str(path) for path in written]
    return Answer("\n".join(files), {"tokens": prompt, "labels": maps.labels, "files": files})
