"""Results on disk: a crash-safe store for writing, and a reader of folders and packs.

A pack is an archive of results without weights.
"""

from llama_ablate.results.record import CURVE, FINAL, Outcome, Record, Settings
from llama_ablate.results.snapshot import Results
from llama_ablate.results.store import Store

__all__ = ["CURVE", "FINAL", "Outcome", "Record", "Results", "Settings", "Store"]
