"""What is chosen and ranked where something was tuned, or there are several tables."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llama_ablate.findings import sizes, tuning
from llama_ablate.findings.compare import find_samples
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.hypotheses import judge_hypotheses
from llama_ablate.findings.stages import find_reported, find_runs
from llama_ablate.results import Results, Store
from tests.in_process import run_in_process
from tests.tables import changed, frames, run_rows
from tests.tables import sentences_of as warnings

REFERENCE = Path(__file__).parents[2] / "results/reference"


def read(store):
    return Frames.of(Results(store.root))


def runs(losses):
    """Return runs from the validation losses by seed of each variant and rate.

    In place of a loss stands how the run ended.
    """
    made = run_rows(
        {
            "id": f"{variant} {seed} {lr}",
            "variant": variant,
            "label": variant,
            "seed": seed,
            "tuned": json.dumps({"lr": lr}),
            "outcome": loss if isinstance(loss, str) else "ok",
            "validation_loss_nats": math.nan if isinstance(loss, str) else loss,
        }
        for (variant, lr), of in losses.items()
        for seed, loss in enumerate(of)
    )
    made = made.assign(test_loss_nats=made["validation_loss_nats"] + 0.5)
    return tuning.mark_trials(made, {})


def grid(*losses):
    """Return runs of one variant from the validation losses by seed of each rate."""
    return runs({("a", lr): of for lr, of in zip((1e-3, 3e-3, 1e-2), losses, strict=False)})


#: Stands for any table with these variants whose runs are given.
TABLE = frames({"": {"a": [2.0], "b": [2.0]}}).table


def describe(made):
    return tuning.describe_tuning(TABLE, made).set_index("label")


GRID = runs(
    {
        ("a", 1e-3): (2.0, 2.2),
        ("a", 3e-3): (1.9, 2.1),
        ("a", 1e-2): (1.0, "diverged"),
        ("b", 1e-3): (3.0, 3.0),
        ("b", 3e-3): (2.0, "pending"),
        ("b", 1e-2): (2.9, 2.9),
    }
)


def test_the_lowest_mean_validation_loss_is_chosen_and_neither_a_lost_nor_an_open_point():
    reported = GRID[GRID["use"].eq("reported")].groupby("variant")["point"].unique()
    assert reported["a"].tolist() == ["lr 0.003"]  # 0.01 diverged in one seed
    assert reported["b"].tolist() == ["lr 0.01"]
    assert tuning.unfinished(GRID) == {"b"}


def test_trials_are_counted_and_the_edge_of_the_grid_is_seen():
    rows = describe(GRID)
    assert list(rows["trials"]) == [6, 6]
    assert list(rows["finished"]) == [6, 5]
    assert list(rows["seeds"]) == [2, 2]
    assert rows["diverged"]["a"] == 1
    assert rows["edge"].to_dict() == {"a": "", "b": "lr"}
    assert rows["loss"]["a"] == pytest.approx(2.5)
    nothing = frames({"": {"a": [2.0, 2.1]}}).table
    assert tuning.describe_tuning(nothing, nothing.planned).empty


@pytest.mark.parametrize(
    ("losses", "rival"),
    [
        ([[2.00], [1.00], [3.00]], "lr 0.001"),  # one seed tells nothing apart
        ([[2.0, 2.1, 2.2], [1.0, 1.11, 1.2], [3.0, 3.0, 3.0]], ""),
        ([[2.0, 2.1, 2.2], [1.9, 2.2, 2.1], [3.0, 3.0, 3.0]], "lr 0.001"),
        ([[3.0, 3.0, 3.0], [1.9, 2.2, 2.1], [2.0, 2.1, 2.2]], "lr 0.01"),
    ],
)
def test_a_second_best_point_that_is_not_told_apart_from_the_best_is_named(losses, rival):
    """By Student's interval of the differences over the seeds that choose."""
    row = describe(grid(*losses)).loc["a"]
    assert (row["chosen"], row["rival"], row["seeds"]) == ("lr 0.003", rival, len(losses[0]))


def test_the_seeds_of_a_race_choose_alone():
    """Over all seeds, and over those that are reported, the first rate would be best."""
    made = runs({("a", 1e-3): (2.0, 1.0), ("a", 3e-3): (1.9, 3.0)})
    raced = made.assign(use=made["seed"].map({0: "race", 1: "reported"}))
    assert tuning.best_points(raced, {}) == {"a": '{"lr": 0.003}'}


def test_sensitivity_takes_the_cap_for_what_diverged():
    found = tuning.add_sensitivity(GRID, cap=4.0).set_index(["variant", "seed"])
    # Seed 1 of a: 2.7, 2.6 and the cap 4.0 over their minimum 2.6.
    expected = pytest.approx((0.1 + 0 + 1.4) / 3)
    assert found.loc[("a", 1), "lr_sensitivity_nats"].iloc[0] == expected
    assert found.loc["b", "lr_sensitivity_nats"].isna().all()  # not tried at every point


def test_the_interval_of_a_sensitivity_does_not_reach_below_zero():
    first = changed(GRID, lambda run: run.seed == 0, {"lr_sensitivity_nats": 0.1})
    measured = changed(first, lambda run: run.seed == 1, {"lr_sensitivity_nats": 0.9})
    row = describe(measured).loc["a"]
    assert row["sensitivity"] == pytest.approx(0.5)
    assert 0 <= row["low"] < 0.5 < row["high"]


# ---- a tuned grid over two texts with controls and hypotheses, trained once

BASE = "swiglu (baseline)"
LAGS = (1, 3)
TEXT = "{{name: lag {0}, corpus: {{name: lag-copy, vocab: 8, lag: {0}, tokens: 6_000}}, "
FILE = f"""name: rich
model: {{dim: 16, layers: 1, heads: 2, context: 16}}
variants: {{axes: {{feedforward: [relu]}}, match: parameters}}
texts: [{", ".join(TEXT.format(lag) + "tokenizer: chars}" for lag in LAGS)}]
train: {{steps: 24, batch: 8, lr: 1e-3, precision: float32, kernel: math, evals: 2}}
tune: {{lr: [5e-3, 3e-2]}}
controls: {{aa: [none, init], positive: {{train.warmup: 0.9}}}}
seeds: 2
margin: 0.5 nats
measure: [perplexity, excess_loss, calibration]
hypotheses:
  - {{variant: relu, direction: equivalent, margin: 0.5 nats}}
  - {{variant: A/A none, direction: equivalent, margin: 1e-9 nats}}
  - {{variant: relu, measure: test_perplexity, direction: lower}}
  - {{variant: relu, direction: better, table: lag 3}}
  - {{variant: relu, measure: not_measured, direction: lower}}
"""


@pytest.fixture(scope="module")
def rich(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rich")
    (folder / "rich.yaml").write_text(FILE, "utf-8")
    assert run_in_process(folder / "rich.yaml", folder / "out") == 0
    return Store(folder / "out" / "rich")


@pytest.fixture(scope="module")
def tables(rich):
    return read(rich).tables


def test_every_table_compares_its_own_runs_at_the_chosen_points(tables):
    near, far = (compare_variants(table).set_index("label") for table in tables)
    assert near["n"].to_dict() == {**dict.fromkeys(near.index, 2), "A/A none": 1}
    assert not near["loss"].equals(far["loss"])
    for table, frame in zip(tables, (near, far), strict=True):
        everything = find_runs(table)
        assert len(everything) == (4 * 2 + 1) * 2
        of = everything[(everything["label"] == "relu")]
        means = of.groupby("point")["validation_loss_nats"].mean()
        assert frame.loc["relu", "point"] == means.idxmin()


def test_hypotheses_reach_any_number_and_any_table(rich):
    made = read(rich)
    frame = judge_hypotheses(made)
    assert frame["result"][1] == "supported"
    far = compare_variants(made.tables[1]).set_index("label")["difference"]
    assert frame["difference"][3] == far["relu"]
    ids = {variant.label: variant.id for variant in made.table.plan.variants}
    relu, base = (find_samples(made.table, "test_perplexity")[ids[of]] for of in ("relu", BASE))
    assert frame["difference"][2] == pytest.approx(sum(relu[s] - base[s] for s in (0, 1)) / 2)
    assert math.isnan(frame["difference"][4])
    assert frame["result"][4] == "undecided"


def test_a_variant_that_was_tried_less_is_not_ranked(rich, tmp_path):
    shutil.copytree(rich.root, tmp_path / "rich")
    fewer = Store(tmp_path / "rich")
    tried = find_runs(read(rich).table).query("label == 'relu' and point == 'lr 0.005'")
    shutil.rmtree(fewer.folder(tried["id"].iloc[0]))
    made = read(fewer)
    row = compare_variants(made.table).set_index("label").loc["relu"]
    assert row["verdict"] == "pending"
    assert math.isnan(row["difference"])
    assert any("not ranked" in warning for warning in warnings(made))


def test_every_measured_value_of_every_run_is_a_row_of_the_measured_values(rich, tables):
    values = {}
    for table in tables:
        of_runs = table.measured[table.measured["run"].ne("")]
        values |= {(row.run, row.name): row.value for row in of_runs.itertuples()}
    expected = {}
    for record in rich.records():
        expected |= {(record.id, name): value for name, value in record.numbers.items()}
        expected[record.id, "train_s"] = record.train_s
        expected[record.id, "peak_memory_bytes"] = record.peak_memory_bytes
    assert values == pytest.approx(expected, nan_ok=True)


# ---- ladders and paths


def test_a_ladder_is_fitted_with_the_budgets_on_the_way(experiment_file, tmp_path):
    file = experiment_file(
        "{axes: {feedforward: [relu]}}",
        sizes="{models: [{dim: 8}, {dim: 16}, {dim: 24}], tokens_per_parameter: 0.5}",
        train="{steps: 6, batch: 4, lr: 6e-2, precision: float32, kernel: math, evals: 2, "
        "schedule: wsd, warmup: 0, branches: [0.25, 0.5]}",
        margin="0.5 nats",
    )
    assert run_in_process(file, tmp_path / "out") == 0
    made = read(Store(tmp_path / "out" / "tiny"))
    rows = sizes.compare_sizes(made)
    assert rows["label"].tolist() == ["relu"] * 3
    compared = [compare_variants(table).set_index("label") for table in made.tables]
    assert rows["difference"].tolist() == [of.loc["relu", "difference"] for of in compared]
    # By hand: the slope of a line through each seed's three differences, and their mean.
    points = sizes.list_ladder(made)
    ends = points[~points["branch"]]
    relu, base = (
        ends[ends["baseline"] == is_base].pivot_table("loss", "rung", "seed", sort=False)
        for is_base in (False, True)
    )
    slopes = np.polyfit(np.log10(rows["parameters"]), (relu - base).to_numpy(), 1)[0]
    assert rows["slope"].tolist() == pytest.approx([slopes.mean()] * 3)
    assert len(ends) == 3 * 2 * 2
    assert len(points) == 3 * len(ends)  # every run supplies two budgets on the way
    assert {*ends["tokens"]} == {table.plan.tokens_per_run for table in made.tables}
    (first, *others) = made.tables  # of which a run is too short: it is no point of a ladder
    run_id = find_reported(first)["id"].iloc[0]
    planned = changed(first.planned, lambda run: run.id == run_id, too_short=True)
    short = replace(made, tables=(replace(first, planned=planned), *others))
    assert len(sizes.list_ladder(short)) == len(points) - 3
