"""What limits the speeds of a comparison: turns that differ, and measurements of few turns."""

from collections.abc import Iterable

import pandas as pd

from llama_ablate.terminal import listed, plural

_UNSTEADY = 0.1  # of the median, over which the middle half of the turns may not lie apart
_TURNS, _PROCESSES = 15, 5  # what a pass takes; results of earlier versions have fewer


def notes(comparison: pd.DataFrame) -> list[str]:
    """Say which speeds of a comparison were measured too seldom, or differ from turn to turn."""
    few, unsteady = {}, {}
    for name, title in (("train", "training"), ("decode", "decode")):
        frame = comparison[comparison[f"{name}_tokens_per_s"].notna()]
        turns, processes = (frame[f"{name}_speed_{what}"].max() for what in ("turns", "processes"))
        spread = frame[f"{name}_speed_spread"]
        if turns < _TURNS or processes < _PROCESSES:
            taken = f"{turns:.0f} {plural(turns, 'turn')}"
            few[name] = f"{title}: {taken} in {processes:.0f} {plural(processes, 'process')}"
        labels = [f"'{label}'" for label in frame.loc[spread > _UNSTEADY, "label"]]
        if labels:
            unsteady[name] = f"{title}: by up to {spread.max():.0%} ({listed(labels)})"
    sentences = []
    if few:
        sentences.append(
            f"Speeds were measured in fewer than {_TURNS} turns in {_PROCESSES} processes "
            f"({'; '.join(few.values())}), so their intervals are wide or missing. {_again(few)}"
        )
    if unsteady:
        sentences.append(
            f"Speeds differ from turn to turn by more than {_UNSTEADY:.0%}, in the middle half of "
            f"the turns ({'; '.join(unsteady.values())}): the machine was busy, or a turn is too "
            f"short. {_again(unsteady)}"
        )
    return sentences


def _again(names: Iterable[str]) -> str:
    """Say how speeds are measured again."""
    metrics = " ".join(f"{name}_speed" for name in names)
    return f"`llama-ablate measure DIR {metrics} --again` measures them again."
