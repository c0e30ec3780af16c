"""Results on disk: what finished is kept whole and once, whoever works on it."""

from llama_ablate.results.record import CURVE, FINAL, Outcome, Record, Settings
from llama_ablate.results.still import Still, once
from llama_ablate.results.store import Store

__all__ = ["CURVE", "FINAL", "Outcome", "Record", "Settings", "Still", "Store", "once"]
