import pytest
import yaml

from llama_ablate.config.experiment import Data, Experiment
from llama_ablate.config.labels import name_baseline
from llama_ablate.design import matching
from llama_ablate.design.variants import variants_of
from llama_ablate.errors import ConfigError
from llama_ablate.model.counts import count

SIZES = {"dim": 32, "layers": 2, "heads": 4, "context": 16}
PLAIN = {
    "norm": "layernorm",
    "position": "sinusoidal",
    "attention": "mha",
    "feedforward": "relu",
    "block": "post",
}


def of(design, model=None, cost=None, **variants):
    experiment = Experiment.check(
        {
            "name": "x",
            "model": {**SIZES, **PLAIN, **(model or {})},
            "train": {"steps": 1},
            "controls": {"aa": []},
            "variants": {"design": design, **variants},
        }
    )
    return variants_of(experiment, 64, cost)


def labels(variants):
    return [variant.label for variant in variants]


BOTH = {"norm": ["rmsnorm", "layernorm"], "block": ["pre", "post"]}
NEW = {"norm": ["rmsnorm"], "block": ["pre"]}


@pytest.mark.parametrize(
    ("design", "axes", "expected"),
    [
        ("one-at-a-time", BOTH, {"baseline": "", "rmsnorm": "rmsnorm", "pre": "pre"}),
        ("path", NEW, {"baseline": "", "+rmsnorm": "rmsnorm", "+pre": "rmsnorm pre"}),
        (
            *("product", BOTH),
            {
                "layernorm post": "",
                "rmsnorm pre": "rmsnorm pre",
                "rmsnorm post": "rmsnorm",
                "layernorm pre": "pre",
            },
        ),
    ],
)
def test_a_design_names_its_variants_by_what_they_change(design, axes, expected):
    found = of(design, axes=axes)
    changed = {
        variant.label: {getattr(variant.spec, slot).name for slot in PLAIN} - {*PLAIN.values()}
        for variant in found
    }
    assert changed == {label: {*names.split()} for label, names in expected.items()}
    assert [variant.baseline for variant in found] == [True] + [False] * (len(found) - 1)


def test_a_matched_width_is_the_roundest_that_stays_within_the_tolerance():
    spec = of("one-at-a-time", axes={})[0].spec

    def cost(one):
        return 10 * (one.feedforward["width"] or 5)

    solved = matching.solve(spec, 10_030, cost, [matching.WIDTH])  # 1003 exactly
    assert solved.spec.feedforward["width"] == 1000
    assert solved.residual == pytest.approx(-0.003, abs=1e-4)


def test_a_baseline_can_be_named():
    found = of("one-at-a-time", axes={"norm": ["rmsnorm"]}, baseline="rmsnorm")
    assert labels(found) == ["rmsnorm", "baseline"]
    with pytest.raises(ConfigError, match=r"no variant is called 'rmsnrm'.*did you mean 'rmsnorm'"):
        of("one-at-a-time", axes={"norm": ["rmsnorm"]}, baseline="rmsnrm")
    for name in ("baseline", "layernorm"):  # what the unchanged model has on the axis
        found = of("one-at-a-time", axes={"norm": ["rmsnorm"]}, baseline=name)
        assert labels(found) == ["baseline", "rmsnorm"]
    assert of("one-at-a-time", axes=BOTH)[0].covers == ["layernorm", "post"]


def test_a_baseline_is_called_by_what_it_has_on_the_axes():
    def named(axes, **more):
        train = {"steps": 1, "lr": 0.01}
        read = Experiment.check({"name": "x", "train": train, "variants": {"axes": axes}})
        return name_baseline(read, model, Data(tokenizer="bytes"), **more)

    rope = {"name": "rope", "theta": 10000.0, "fraction": 1.0}
    model = {"feedforward": {"name": "gelu"}, "position": rope, "norm": "none", "context": 64}
    model["attention"] = {"name": "gqa", "kv_heads": 2}
    for axes, label in {
        "position: [none, {name: rope, theta: 500000.0}]": "rope",
        "attention.kv_heads: [1]": "kv_heads=2",
        "train.lr: [0.1]": "lr=0.01",
        "data.tokenizer: [{name: bpe, vocab: 300}]": "bytes",
        "feedforward: [swiglu], norm: [rmsnorm]": "gelu no-norm",
    }.items():
        assert named(yaml.safe_load(f"{{{axes}}}")) == f"{label} (baseline)"
    # Where the file names another baseline, the unchanged model is not called so.
    assert named({"norm": ["layernorm"]}, compared=False) == "no-norm"


@pytest.mark.parametrize("budget", ["non_embedding", "flops_per_token"])
def test_matched_variants_cost_what_the_baseline_costs_within_half_a_percent(budget):
    def cost(spec):
        return getattr(count(spec), budget)

    axes = {"norm": ["rmsnorm"], "position": ["rope", "learned"], "attention": ["gqa", "mqa"]}
    axes |= {"feedforward": ["gelu", "silu", "swiglu"], "block": ["pre"], "bias": [False]}
    found = of("one-at-a-time", cost=cost, axes=axes)
    target = cost(found[0].spec)
    for variant in found:
        assert variant.residual == pytest.approx(cost(variant.spec) / target - 1)
        assert abs(variant.residual) <= 0.005
    changed = {v.label for v in found if v.spec.feedforward["width"] is not None}
    assert {"mqa", "gqa"} <= changed
    assert "gelu" not in changed  # what matches already keeps its own width


def test_a_label_names_a_level_of_any_axis_and_changes_no_id():
    plain, labelled = {}, {}
    for key, label, level in (
        ("attention", "local", {"name": "mha", "window": 8}),
        ("dim", "wider", 64),
        ("dropout", "drops", {"attention": 0.1}),
        ("train.lr", "fast", 0.5),
        ("train.optimizer", "plain", {"name": "lion", "beta1": 0.5}),
    ):
        is_component = isinstance(level, dict) and {"name", "pattern"} & {*level}
        own = level if is_component else {"value": level}
        plain[key], labelled[key] = [level], [{"label": label, **own}]
    found, named = (of("one-at-a-time", axes=levels) for levels in (plain, labelled))
    names = ["baseline", "local", "wider", "drops", "fast", "plain"]
    assert labels(named) == names
    assert [variant.id for variant in named] == [variant.id for variant in found]
    assert len({variant.id for variant in found}) == len(found)


def test_combinations_may_be_left_out_of_a_product_by_value_name_or_label():
    wide = {"label": "wide eps", "name": "rmsnorm", "eps": 0.1}
    axes = {"norm": ["layernorm", "none", wide], "block": ["pre", "post"]}
    exclude = [{"norm": "wide eps", "block": "pre"}, {"norm": "none", "block": "post"}]
    exclude += [{"norm": "rmsnorm", "block": "post"}]
    found = of("product", axes=axes, exclude=exclude)
    assert {*labels(found)} == {"layernorm pre", "layernorm post", "no-norm pre"}
    assert all(variant.levels for variant in found)  # least squares needs no whole grid
