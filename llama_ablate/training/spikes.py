"""Training stability: spikes of loss and gradient norm over all steps of a run."""

import math
from collections.abc import Sequence

import numpy as np

from llama_ablate.results.record import Value, row

_WINDOW = 100  # preceding steps that a step is compared with
_FAR = 7.0  # standard deviations


def stability_values(losses: Sequence[float], norms: Sequence[float]) -> list[Value]:
    """Return the spike shares of losses and gradient norms, and the norms' median and maximum."""
    finite = [norm for norm in norms if math.isfinite(norm)]
    return [
        row("loss_spike_share", spikes(losses), quantity="spike_share", series="loss"),
        row("grad_norm_spike_share", spikes(norms), quantity="spike_share", series="grad_norm"),
        row("grad_norm_median", float(np.median(finite)) if finite else math.nan),
        row("grad_norm_max", max(finite, default=math.nan)),
    ]


def spikes(values: Sequence[float]) -> float:
    """Return the share of values over seven standard deviations above the mean of values before.

    Mean and standard deviation are over the preceding 100 values. The share is the spike score of
    OLMo 2 (arXiv:2501.00656), with a shorter window and only upwards. Return NaN if no value has
    100 values before it; a value that is not finite is a spike.
    """
    series = np.asarray(values, float)
    if len(series) <= _WINDOW:
        return math.nan
    before = np.lib.stride_tricks.sliding_window_view(series, _WINDOW)[:-1]
    now = series[_WINDOW:]
    with np.errstate(invalid="ignore"):
        calm = now <= before.mean(1) + _FAR * before.std(1)
    return float(1 - calm.mean())
