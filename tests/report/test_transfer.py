"""Best learning rates over a ladder: which is the best of each size, and how far it moves."""

import itertools
import json
from dataclasses import replace

from llama_ablate.findings.columns import list_rows
from llama_ablate.findings.sizes import find_optima
from llama_ablate.report.figures import make
from llama_ablate.report.sections import SECTIONS
from tests import tables

RATES = [1e-3, 2e-3, 4e-3, 8e-3]
#: The index of the best rate by variant and size.
BEST = {"standard": (3, 2, 0), "mup": (2, 2, 1)}


def frames():
    """Frames of two variants at three sizes: losses are parabolas around the best rate."""

    def loss(label, rung, rate, seed):
        best = BEST.get(label, (1, 1, 1))[rung]
        return 2 + (RATES.index(rate) - best) ** 2 + 0.1 * seed

    losses = {"standard": [2.0] * 2, "mup": [2.0] * 2, "A/A": [2.0] * 2}
    sizes = {f"dim {n}": {"size": {"dim": n, "layers": 1, "heads": 1}} for n in (32, 64, 128)}
    made = tables.frames(
        dict.fromkeys(sizes, losses),
        roles={"A/A": "aa"},
        planned=sizes,
        tune={"lr": RATES},
        sizes={"models": [{"dim": n} for n in (32, 64, 128)]},
    )
    tuned = []
    for rung, table in enumerate(made.tables):
        runs = []
        for run, rate in itertools.product(list_rows(table.planned), RATES):
            own = loss(run["label"], rung, rate, run["seed"])
            numbers = {"test_loss_nats": own, "validation_loss_nats": own}
            tried = {"id": f"{run['id']}{rate}", "tuned": json.dumps({"lr": rate})}
            runs.append({**run, **tried, **numbers})
        tuned.append(replace(table, planned=tables.run_rows(runs)))
    return replace(made, tables=tuple(tuned))


def test_the_best_rate_of_each_size_and_how_far_it_moves_from_the_first():
    frame = find_optima(frames())
    moved = frame.pivot_table(index="label", columns="rung", values="moved", sort=False)
    assert moved.loc["standard"].tolist() == [0, -1, -3]
    assert moved.loc["mup"].tolist() == [0, 0, -1]
    assert set(frame["label"]) == {"standard", "mup"}  # controls are left out
    assert frame["loss"].tolist() == [2.05] * 6  # the mean over seeds at the best rate
    shown = SECTIONS["transfer"].make(frames(), "transfer").cells
    assert list(shown.columns) == ["variant", "dim 32", "dim 64", "dim 128"]
    assert shown.iloc[0].tolist() == ["standard", "0.008* (+0)", "0.004 (-1)", "0.001* (-3)"]
    assert shown.iloc[1].tolist() == ["mup", "0.004 (+0)", "0.004 (+0)", "0.002 (-1)"]


def test_each_variant_has_a_figure_with_a_line_a_size_and_a_ring_at_each_best_rate():
    drawn = [part.figure.axes[0] for part in make("transfer", frames())]
    assert [axes.get_title(loc="left") for axes in drawn] == ["standard", "mup"]
    rings = [line for line in drawn[0].lines if line.get_markerfacecolor() == "none"]
    assert [line.get_xdata()[0] for line in rings] == [0.008, 0.004, 0.001]
    assert {text.get_text() for text in drawn[0].texts} == {"dim 32", "dim 64", "dim 128"}
