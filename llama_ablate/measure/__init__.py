"""Metrics by name: each a function from a subject (model, text, compute) to measured values."""

from llama_ablate.measure import cloze, length, memory, quality, speed, stability
from llama_ablate.measure.registry import METRICS, Metrics, Subject, Unmeasured
from llama_ablate.results.record import Value, row

__all__ = [
    "METRICS",
    "Metrics",
    "Subject",
    "Unmeasured",
    "Value",
    "cloze",
    "length",
    "memory",
    "quality",
    "row",
    "speed",
    "stability",
]
