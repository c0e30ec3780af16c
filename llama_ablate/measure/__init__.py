"""Metrics by name: each a function from a subject (model, text, compute) to measured values."""

from llama_ablate.measure import (
    activations,
    cache,
    cloze,
    length,
    quality,
    speed,
)
from llama_ablate.measure.metrics import METRICS, Metrics, Subject, Unmeasured
from llama_ablate.results.record import Value, row

__all__ = [
    "METRICS",
    "Metrics",
    "Subject",
    "Unmeasured",
    "Value",
    "activations",
    "cache",
    "cloze",
    "length",
    "quality",
    "row",
    "speed",
]
