"""Every disputed part with what it may stand beside: shared heads, a window, a pattern, documents.

The variants are those of `experiments/parts.yaml`; the laws decode from a state, pad, rewind and
compute in bfloat16. Each option alone is held to them in the fast tier, by `test_contracts.py`.
"""

from pathlib import Path

import pytest

from llama_ablate.config.experiment import load
from llama_ablate.model import laws
from tests.conftest import LLAMA, make_spec
from tests.laws import covering

EXPERIMENT = load(Path(__file__).parents[2] / "experiments" / "parts.yaml").experiment
PARTS = {
    entry["label"]: {slot: value for slot, value in entry.items() if slot != "label"}
    for entry in EXPERIMENT.variants.entries
}
SETTINGS = {
    "heads": ["mha", "gqa"],
    "window": ["full", "window"],
    "layers": ["alike", "pattern"],
    "documents": ["continue", "mask"],
}


def spec_of(part, heads, window, layers, documents):
    """Return a small Llama that has a part, and of the settings what it can have beside it."""
    slots = LLAMA | {"attention": "mha"} | PARTS[part]
    attention = slots["attention"]
    attention = dict(attention) if isinstance(attention, dict) else {"name": attention}
    if attention["name"] in ("mha", "gqa"):
        attention["name"] = heads
    if window == "window" and attention["name"] != "gated_delta":
        attention["window"] = 5
    slots["attention"] = attention
    changed = [slot for slot in PARTS[part] if slot != "block"] or ["attention"]
    if layers == "pattern":
        for slot in changed:
            slots[slot] = {"pattern": [slots[slot], LLAMA[slot]]}
    return make_spec(**slots, separator=7 if documents == "mask" else None), changed[0]


ROWS = covering({"part": list(PARTS), **SETTINGS})


@pytest.mark.full
@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(row.values()))
def test_every_part_obeys_the_laws_in_every_setting_and_every_two_settings_meet(row):
    laws.check(*spec_of(**row))
