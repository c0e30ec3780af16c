"""Draw the change of activations over a few training steps against the model's width.

    python analysis/coordcheck.py experiments/width_transfer.yaml --set train.lr=1e-3

This is the coordinate check of Yang et al. 2022 (arXiv:2203.03466, appendix D.1), for the variants
of an experiment with `sizes`. New models are trained for a few steps at the peak learning rate of
the schedule, in batches of at most 2,048 tokens. After each step, the outputs of attention,
feed-forward network, residual stream and head are compared with their values before training, on a
batch that no step trains on. The script prints the exponent of width that the mean absolute change
follows after the last step: 0 if the change does not depend on the width, 1 if it is proportional
to it. The exit code is 1 if any variant except the first grows faster than width^0.5.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import seaborn as sns
import torch
from torch import Tensor

import llama_ablate as la
from llama_ablate.config import experiment as files
from llama_ablate.config.experiment import Train
from llama_ablate.config.spec import ModelSpec
from llama_ablate.data.tokens import Tokens
from llama_ablate.design import plan
from llama_ablate.model.decoder import Decoder, new_model
from llama_ablate.report.pictures import blank, save
from llama_ablate.training.compute import Compute, update
from llama_ablate.training.losses import Objective
from llama_ablate.training.optimizers import make_optimizer

MAX_BATCH_TOKENS = 2_048
#: Exponent above which a change counts as growing with the width: halfway between 0 and 1.
GROWS = 0.5


def outputs_of(model: Decoder, tokens_bt: Tensor) -> dict[str, Tensor]:
    """Return the outputs of a model's parts for a batch (rows, tokens), by part.

    The parts are attention, feed-forward network and residual stream of the last block, and the
    logits.
    """
    outputs: dict[str, Tensor] = {}
    last = len(model.blocks) - 1
    block = model.blocks[last]
    parts = {
        f"attention {last}": block.attn,
        f"feed-forward {last}": block.ffn,
        f"stream {last}": block,
    }
    hooks = [
        part.register_forward_hook(lambda _m, _in, out, at=place: outputs.update({at: out}))
        for place, part in parts.items()
    ]
    with torch.no_grad():
        logits = model(tokens_bt)
    for hook in hooks:
        hook.remove()
    return {**outputs, "logits": logits}


def changes(
    spec: ModelSpec, text: Tokens, train: Train, steps: int, seed: int
) -> Iterator[tuple[int, str, float]]:
    """Train a new model; yield step, part, and mean absolute change of its output."""
    compute = Compute()
    model = compute.prepare(new_model(spec, seed))
    objective = Objective(model)
    optimizer = make_optimizer(objective, train)
    rows = max(1, min(train.batch, MAX_BATCH_TOKENS // spec.context))

    def batch(step: int) -> Tensor:
        return torch.from_numpy(text.batch(seed, step, rows, spec.context))

    probe = batch(steps)[:, :-1]
    first = outputs_of(model, probe)
    for step in range(steps):
        update(objective, optimizer, [batch(step)], train, compute)
        for place, output in outputs_of(model, probe).items():
            yield step + 1, place, float((output - first[place]).abs().mean())


def measure(file: Path, sets: tuple[str, ...], steps: int, seeds: int) -> pd.DataFrame:
    """Return mean changes over seeds by variant, part, step and width.

    Raises ConfigError for an experiment with only one width.
    """
    stated = files.load(file, sets)
    made = plan.make(stated)
    rows = [
        (variant.label, variant.spec.dim, *change)
        for table in made.tables
        for variant in table.variants
        if not variant.role
        for seed in range(seeds)
        for change in changes(
            variant.spec, table.text_of(variant).tokens, stated.experiment.train, steps, seed
        )
    ]
    found = pd.DataFrame(rows, columns=["variant", "width", "step", "place", "change"])
    if found["width"].nunique() < 2:
        raise la.ConfigError(f"'{file}' has one width; the check takes an experiment with `sizes`")
    keys = ["variant", "place", "step", "width"]
    return found.groupby(keys, sort=False)["change"].mean().reset_index()


def exponents(found: pd.DataFrame) -> pd.DataFrame:
    """Fit exponents of width after the last step, by part (rows) and variant (columns)."""
    last = found[found["step"] == found["step"].max()]
    slopes = {
        key: np.polyfit(np.log(own["width"]), np.log(own["change"]), 1)[0]
        for key, own in last.groupby(["place", "variant"], sort=False)
    }
    return pd.Series(slopes).unstack(sort=False)  # noqa: PD010  a table to read


def draw(found: pd.DataFrame, out: Path) -> list[Path]:
    """Draw the changes against the width, in a panel per variant and part.

    Returns the paths of the files.
    """
    variants, places = (list(dict.fromkeys(found[key])) for key in ("variant", "place"))
    with sns.axes_style("whitegrid"):
        page = blank(3.2 * len(places) + 1, 2.9 * len(variants))
        panels = page.subplots(len(variants), len(places), squeeze=False, sharex=True, sharey="col")
    for row, variant in zip(panels, variants, strict=True):
        for axes, place in zip(row, places, strict=True):
            own = found[(found["variant"] == variant) & (found["place"] == place)]
            steps = own.groupby("step")
            for (step, at), colour in zip(
                steps, sns.color_palette("viridis", len(steps)), strict=True
            ):
                label = f"after {step} step{'s' * (step > 1)}"
                axes.loglog(at["width"], at["change"], "o-", ms=3, color=colour, label=label)
            axes.set_xscale("log", base=2)
            axes.set_title(f"{variant}: {place}", fontsize=9)
        row[0].set_ylabel("mean |x - x before training|", fontsize=8)
    for axes in panels[-1]:
        axes.set_xlabel("width (dim)")
    panels[0][-1].legend(loc="upper left", bbox_to_anchor=(1.01, 1), frameon=False, fontsize=8)
    return save(page, out)


def main() -> None:
    """Print the exponents, draw the changes, and exit with the code of the check."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="an experiment file with `sizes`")
    parser.add_argument("--set", action="append", default=[], help="as of `run`: train.lr=3e-4")
    parser.add_argument("--steps", type=int, default=5, help="to train")
    parser.add_argument("--seeds", type=int, default=2, help="to average over")
    parser.add_argument("--out", type=Path, default=Path("coordcheck"))
    options = parser.parse_args()
    if options.steps < 1 or options.seeds < 1:
        parser.error("--steps and --seeds must be 1 or more")
    try:
        found = measure(options.file, tuple(options.set), options.steps, options.seeds)
    except (la.ConfigError, OSError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    fitted = exponents(found)
    print(fitted.round(2).to_string())
    for path in draw(found, options.out):
        print(path)
    parser.exit(int((fitted.iloc[:, 1:] > GROWS).any(axis=None)))


if __name__ == "__main__":
    main()
