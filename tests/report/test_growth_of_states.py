"""The figure of states against the context: what is flat is drawn flat."""

from types import SimpleNamespace

from llama_ablate.report.sections import FIGURES
from llama_ablate.results.plan_document import CONTEXTS
from tests import plans


def drawn(*variants):
    """Return the values of the figure's lines by their names."""
    plan = plans.table(list(variants), [])
    frames = SimpleNamespace(table=SimpleNamespace(plan=plan), plan=SimpleNamespace(tables=[plan]))
    (panel,) = FIGURES["cache_growth"](frames).panels
    found = {}
    for point in panel.points:
        found.setdefault(point.name, []).append(point.at.value)
    return found


def test_a_recurrence_is_flat_a_window_bends_and_keys_and_values_grow():
    full = {n: 64 * n for n in CONTEXTS}
    window = {n: 64 * min(n, 1024) for n in CONTEXTS}
    lines = drawn(
        plans.variant("a", "mha", state_growth=full),
        plans.variant("b", "window", state_growth=window),
        plans.variant("c", "recurrent", kv_bytes_per_token=0, state_growth=dict.fromkeys(full, 9)),
        plans.variant("d", "also mha", state_growth=full),
    )
    assert lines == {
        "9 bytes at 131,072: recurrent": [9] * len(CONTEXTS),
        "64 KiB at 131,072: window": list(window.values()),
        "8 MiB at 131,072: mha, also mha": list(full.values()),
    }
