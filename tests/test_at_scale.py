"""The page of what larger runs cost: its arithmetic, done once more by hand."""

from dataclasses import replace

import pytest

from docs import at_scale
from docs.at_scale import ASSUMED_MFU, PEAK_FLOPS_PER_S, Cost, Measured, costs
from llama_ablate.model.counts import count
from llama_ablate.results import Store
from tests import plans
from tests.conftest import make_spec


def test_parameters_tokens_and_flops_are_those_of_the_shapes():
    """A tied Llama: attention 4 d^2, SwiGLU 3 d f, gains, and 4 T d of scores and mixing."""
    for (_name, cost), sizes in zip(costs(1.0, 0.0), at_scale.MODELS.values(), strict=True):
        d, layers, context, vocab = (sizes[key] for key in ("dim", "layers", "context", "vocab"))
        inside = cost.parameters - vocab * d - d
        width = (inside / layers - 4 * d * d - 2 * d) / (3 * d)
        assert width == pytest.approx(8 * d / 3, rel=0.05)
        forward = 2 * (layers * (4 * d * d + 3 * d * width) + vocab * d) + layers * 4 * context * d
        assert cost.tokens == 20 * cost.parameters
        assert cost.flops == pytest.approx(3 * forward * cost.tokens, rel=1e-9)


def test_a_round_of_runs_that_is_not_full_takes_as_long_as_one_that_is():
    hour = Cost(parameters=1, tokens=20, flops=3590.0, flops_per_s=1.0, beside_s=10.0)
    assert hour.gpu_hours == 100
    assert [24 * hour.days(gpus) for gpus in (1, 8, 32, 100)] == pytest.approx([100, 13, 4, 1])


def test_the_measured_rate_is_that_of_the_records(tmp_path):
    """Eight runs of a minute, four at a time: two minutes of training, the rest is beside it."""
    spec = make_spec()
    store = Store(tmp_path / "x")
    store.prepare()
    store.create(plans.of_runs(*"abcdefgh"), "name: x\n")
    for seed, run in enumerate(store.plan.runs):
        done = {"model": spec.to_dict(), "tokens_done": 1000, "train_s": 60.0}
        store.commit(replace(plans.RECORD, id=run, seed=seed, **done), [], None)
    found = Measured.of(store.root)
    assert found.flops_per_s == pytest.approx(8 * 1000 * 3 * count(spec).flops_per_token / 120)
    assert found.beside_s == pytest.approx((345 - 120) * 4 / 8)


def test_the_page_says_which_rate_is_measured_and_which_is_assumed():
    parts = at_scale.parts(at_scale.Path(__file__).parents[1] / "results" / "reference")
    lines = parts["time"].splitlines()[2:]
    assert [("measured" in line, "assumed" in line) for line in lines] == [
        (True, False),
        (True, False),
        (False, True),
        (False, True),
    ]
    assert f"assumed, {ASSUMED_MFU * PEAK_FLOPS_PER_S / 1e12:.0f}" in lines[-1]
