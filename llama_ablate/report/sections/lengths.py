"""Rows by length of training."""

import math
from collections.abc import Sequence

import pandas as pd

from llama_ablate.evidence.written import interval, plain
from llama_ablate.findings import sizes
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.sizes import LengthRow
from llama_ablate.report.section import SECTIONS, Section, section
from llama_ablate.terminal import listed


@SECTIONS.register("lengths", every_table=True)
def _lengths_section(frames: Frames) -> Section | None:
    rows = sizes.by_length(frames.table)
    contrary = listed([*sizes.contrary(rows)])
    return section(
        "By length of training",
        rows,
        """The same rows after fewer tokens: a branch is the run cooled down early. The intervals of
        the branches hold at once over all rows and lengths (Bonferroni), without the error between
        held-out texts; those of the last length are the table's. Beside them stands whether half
        the length gave the same verdict (`turned` is better for worse), and which rows were surely
        the contrary at some length: they reverse.""",
        cells=_by_length(rows),
        answer=f"Reversed with length: {contrary or 'none'}.",
    )


def _by_length(rows: Sequence[LengthRow]) -> pd.DataFrame:
    """Return differences by length, a column a length, and what half of it says."""
    order = list(dict.fromkeys(row.name for row in rows))
    shown = {"row": order}
    for tokens in sorted({row.tokens for row in rows}):
        own = {
            row.name: f"{interval(row.difference, row.low, row.high)} {row.verdict}"
            for row in rows
            if row.tokens == tokens and not math.isnan(row.difference)
        }
        shown[f"{plain(tokens / 1e6, 3)}M tokens"] = [own.get(name, "") for name in order]
    if half := sizes.at_half(rows):
        shown["at half the length"] = [half.get(name, "") for name in order]
    if contrary := sizes.contrary(rows):
        shown["with length"] = ["reverses" if name in contrary else "" for name in order]
    return pd.DataFrame(shown)
