"""Metrics by name: functions of a subject (a model with text and compute) to measured values."""

from llama_ablate.measure import cloze, length, live_bytes, quality, speed, trained_layers
from llama_ablate.measure.metrics import METRICS, Metrics, Subject, Unmeasured
from llama_ablate.results.record import Value, row

__all__ = [
    "METRICS",
    "Metrics",
    "Subject",
    "Unmeasured",
    "Value",
    "cloze",
    "length",
    "live_bytes",
    "quality",
    "row",
    "speed",
    "trained_layers",
]
