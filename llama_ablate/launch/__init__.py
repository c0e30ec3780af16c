"""Launching: what one process does with a run, and how many processes share a machine."""
