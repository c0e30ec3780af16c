"""Peak FLOP/s of accelerators, for the share of it that training reaches (MFU)."""

import math
from collections.abc import Mapping

import pandas as pd

#: Peak FLOP/s of dense matrix products by precision, as NVIDIA's datasheets state them, by a part
#: of the device's name. Of names that begin alike the longer stands first.
PEAKS: Mapping[str, Mapping[str, float]] = {
    "H100 PCIe": {"bfloat16": 756e12, "float32": 51e12},
    "H100": {"bfloat16": 989e12, "float32": 67e12},
    "H200": {"bfloat16": 989e12, "float32": 67e12},
    "A100": {"bfloat16": 312e12, "float32": 19.5e12},
    "L40S": {"bfloat16": 362e12, "float32": 91.6e12},
    "L4": {"bfloat16": 121e12, "float32": 30.3e12},
}


def find_peak(machines: pd.DataFrame) -> float:
    """Return the peak FLOP/s of the one device that all runs used; NaN where it is not known."""
    if machines.empty or "processors" not in machines:
        return math.nan
    devices = {
        *zip(machines["devices"], machines["processors"], machines["precisions"], strict=True)
    }
    (device, name, precision), *others = devices
    if others or not device.startswith("cuda"):
        return math.nan
    gpu = name.partition(" with ")[2]
    of_gpu = next((peaks for known, peaks in PEAKS.items() if known in gpu), {})
    return of_gpu.get(precision, math.nan)
