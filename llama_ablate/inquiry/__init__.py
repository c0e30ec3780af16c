"""Questions that need no training: identities, exact counts and timings, held against a source."""

from llama_ablate.inquiry import counted, identities, norms  # registers
from llama_ablate.inquiry.asking import Inquiry, ask, load
from llama_ablate.inquiry.checks import CHECKS

__all__ = ["CHECKS", "Inquiry", "ask", "counted", "identities", "load", "norms"]
