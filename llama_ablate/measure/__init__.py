"""Metrics by name: each a function from a subject (model, text, compute) to measured values."""

from llama_ablate.measure import length, memory, quality, speed, stability
from llama_ablate.measure.registry import METRICS, Metrics, Subject
from llama_ablate.results.metrics import Value, row

__all__ = [
    "METRICS",
    "Metrics",
    "Subject",
    "Value",
    "length",
    "memory",
    "quality",
    "row",
    "speed",
    "stability",
]
