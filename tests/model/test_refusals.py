"""Options that make no part are refused by name, at the slot whose component has them."""

import pytest

from llama_ablate.errors import ConfigError
from llama_ablate.model.decoder import build
from tests.conftest import LLAMA, make_spec


@pytest.mark.parametrize(
    ("slot", "entry", "named"),
    [
        ("attention", {"name": "mha", "window": 0}, "window 0"),
        ("attention", {"name": "mha", "softcap": 0.0}, "softcap 0.0"),
        ("attention", {"name": "gqa", "kv_heads": 3}, "4 query heads .* 3 kv_heads"),
        ("attention", {"name": "differential", "kv_heads": 8}, "kv_heads 8 .* 4 heads"),
        ("attention", {"name": "mla", "canon": "AB"}, "canon AB: 'mla'"),
        ("attention", {"name": "gated_delta", "value_dim": 5}, "value_dim 5: .* 32"),
        ("attention", {"name": "gated_delta", "conv": -1}, "conv -1"),
        ("feedforward", {"name": "swiglu", "width": 0}, "width 0"),
        ("feedforward", {"name": "swiglu", "multiplier": 1e308}, r"multiplier 1e\+308"),
        ("feedforward", {"name": "moe", "experts": 4, "top_k": 5}, "top_k 5: .* 4 experts"),
        ("feedforward", {"name": "moe", "experts": 1}, "experts 1: .* 2 to 4,096"),
        ("feedforward", {"name": "moe", "capacity": 0.0}, "capacity 0.0"),
        ("feedforward", {"name": "moe", "balance_rate": -1.0}, "balance_rate -1"),
        ("feedforward", {"name": "moe", "inner": "moe"}, "inner 'moe' .* allowed: bilinear"),
        ("position", {"name": "rope", "fraction": 0.2}, "fraction 0.2 of head_dim 8 is 1"),
        ("position", {"name": "rope", "factor": 4.0}, "factor 4 .* without a scaling"),
        ("position", {"name": "rope", "scaling": "linear"}, "scaling 'linear' .* factor"),
        ("position", {"name": "rope", "theta": 0.5}, "theta 0.5 .* from 1 "),
        ("position", {"name": "t5", "buckets": 8, "max_distance": 4}, "8 and 4"),
        (
            "position",
            {"pattern": ["rope", "sinusoidal"]},
            "'sinusoidal' is added",
        ),
        ("parametrization", {"name": "mup", "base_dim": 0}, "base_dim 0"),
    ],
    ids=str,
)
def test_options_that_make_no_part_are_refused_by_name_at_their_slot(slot, entry, named):
    with pytest.raises(ConfigError, match=named) as caught:
        build(make_spec(**LLAMA | {slot: entry}))
    assert caught.value.where[0] == slot
    assert "\n" not in caught.value.message


def test_attentions_refuse_to_rotate_values_that_they_do_not_have():
    with pytest.raises(ConfigError, match="'mla' has no values"):
        build(make_spec(attention="mla", position={"name": "rope", "values": True}))
