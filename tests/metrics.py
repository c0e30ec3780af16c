"""Metrics made by hand."""

from llama_ablate.results.record import Measurement, row


def measured(**numbers):
    """Return what a metric measured, from numbers by name."""
    return Measurement(tuple(row(name, value) for name, value in numbers.items()))
