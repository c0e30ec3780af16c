"""Evidence: pure functions on arrays that turn measured numbers into intervals and verdicts."""

from llama_ablate.evidence.factorial import Contrast, contrasts
from llama_ablate.evidence.hypotheses import Claim, Tested, examine
from llama_ablate.evidence.pairing import Effect, Summary, Verdict, paired_effect, summary
from llama_ablate.evidence.verdicts import Ruling, rule

__all__ = [
    "Claim",
    "Contrast",
    "Effect",
    "Ruling",
    "Summary",
    "Tested",
    "Verdict",
    "contrasts",
    "examine",
    "paired_effect",
    "rule",
    "summary",
]
