"""What limits the speeds of a comparison: turns that differ, and measurements of few turns."""

import pandas as pd

from llama_ablate.report.tables import listed

_UNSTEADY = 0.1  # of the median, over which the middle half of the turns may not lie apart
_TURNS, _PROCESSES = 15, 5  # what a pass takes; results of earlier versions have fewer


def notes(comparison: pd.DataFrame) -> list[str]:
    """Say which speeds of a comparison were measured too seldom, or differ from turn to turn."""
    sentences = []
    for name, title in (("train", "training"), ("decode", "decode")):
        frame = comparison[comparison[f"{name}_tokens_per_s"].notna()]
        turns, processes = (frame[f"{name}_speed_{what}"].max() for what in ("turns", "processes"))
        spread = frame[f"{name}_speed_spread"]
        unsteady = [f"'{label}'" for label in frame.loc[spread > _UNSTEADY, "label"]]
        again = f"`llama-ablate measure DIR {name}_speed --again`"
        if turns < _TURNS or processes < _PROCESSES:
            sentences.append(
                f"The {title} speeds come from {turns:.0f} turn(s) in {processes:.0f} "
                f"process(es), fewer than the {_TURNS} in {_PROCESSES} that are taken now: one "
                f"process gives no interval, a few give a wide one. {again} takes them so."
            )
        if unsteady:
            sentences.append(
                f"The {title} speeds of {listed(unsteady)} spread by up to {spread.max():.0%} from "
                f"turn to turn (the middle half of them), more than {_UNSTEADY:.0%}: the machine "
                f"did other work, or a turn is too short. {again} takes them again."
            )
    return sentences
