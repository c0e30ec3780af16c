"""Best learning rates over a ladder: which is the best of each size, and how far it moves."""

import json
from types import SimpleNamespace

from llama_ablate.findings.rows import frame as framed
from llama_ablate.findings.sizes import optima
from llama_ablate.findings.values import RunRow
from llama_ablate.report import plots
from llama_ablate.report.sections import FIGURES, SECTIONS
from llama_ablate.results.plan_document import NATS

RATES = [1e-3, 2e-3, 4e-3, 8e-3]
#: The index of the best rate by variant and size.
BEST = {"standard": (3, 2, 0), "mup": (2, 2, 1)}


def frames(sizes=("dim 32", "dim 64", "dim 128"), tune=("lr",)):
    """Frames of two variants at three sizes: losses are parabolas around the best rate."""

    def table(rung, size):
        runs = [
            RunRow(
                id=f"{label} {seed} {rate}",
                variant=label,
                label=label,
                role="aa" if label == "A/A" else "",
                seed=seed,
                outcome="ok",
                steps_done=2,
                tuned=json.dumps({"lr": rate}),
                numbers=dict.fromkeys(
                    ("test_loss_nats", "validation_loss_nats"),
                    2 + (i - best[rung]) ** 2 + 0.1 * seed,
                ),
            )
            for label, best in (*BEST.items(), ("A/A", (1, 1, 1)))
            for seed in range(2)
            for i, rate in enumerate(RATES)
        ]
        arms = [SimpleNamespace(label=label, role="") for label in BEST]
        arms.append(SimpleNamespace(label="A/A", role="aa"))
        plan = SimpleNamespace(name=size, variants=arms, repeated={})
        told = {"loss": "test_loss_nats", "chance": 9.0, "split_name": "test", "unit": NATS}
        return SimpleNamespace(plan=plan, runs=runs, planned=runs, **told)

    rungs = [table(i, size) for i, size in enumerate(sizes)]
    experiment = SimpleNamespace(tune=dict.fromkeys(tune, RATES))
    plan = SimpleNamespace(experiment=experiment, tables=[])
    return SimpleNamespace(plan=plan, rungs=rungs, table=rungs[0] if rungs else None)


def test_the_best_rate_of_each_size_and_how_far_it_moves_from_the_first():
    frame = framed(optima(frames()))
    moved = frame.pivot_table(index="label", columns="rung", values="moved", sort=False)
    assert moved.loc["standard"].tolist() == [0, -1, -3]
    assert moved.loc["mup"].tolist() == [0, 0, -1]
    assert set(frame["label"]) == {"standard", "mup"}  # controls are left out
    assert frame["loss"].tolist() == [2.05] * 6  # the mean over seeds at the best rate
    at_an_end = frame[frame["edge"]]
    assert list(zip(at_an_end["label"], at_an_end["rung"], strict=True)) == [
        ("standard", "dim 32"),
        ("standard", "dim 128"),
    ]


def test_cells_say_the_rate_its_move_and_whether_it_lies_at_an_end():
    shown = SECTIONS["transfer"].make(frames()).cells
    assert list(shown.columns) == ["variant", "dim 32", "dim 64", "dim 128"]
    assert shown.iloc[0].tolist() == ["standard", "0.008* (+0)", "0.004 (-1)", "0.001* (-3)"]
    assert shown.iloc[1].tolist() == ["mup", "0.004 (+0)", "0.004 (+0)", "0.002 (-1)"]


def test_the_figure_has_a_panel_a_variant_a_line_a_size_and_a_ring_at_each_best_rate():
    figure = plots.draw(FIGURES["transfer"](frames())).figure
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["standard", "mup"]
    rings = [line for line in figure.axes[0].lines if line.get_markersize() == 11]
    assert [float(ring.get_xdata()[0]) for ring in rings] == [8e-3, 4e-3, 1e-3]


def test_without_sizes_or_without_tuned_rates_there_is_nothing_to_show():
    for nothing in (frames(sizes=()), frames(tune=("betas",))):
        assert optima(nothing) == []
        assert FIGURES["transfer"](nothing) is None
