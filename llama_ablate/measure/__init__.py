"""What is measured: metrics by name, each a function from a subject to flat, unit-named numbers."""

from llama_ablate.measure import length, memory, quality, speed, stability
from llama_ablate.measure.registry import METRICS, Metrics, Subject

__all__ = ["METRICS", "Metrics", "Subject", "length", "memory", "quality", "speed", "stability"]
