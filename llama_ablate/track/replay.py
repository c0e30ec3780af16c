"""Replay of finished runs, and of the comparison of their experiment, to trackers."""

from collections.abc import Sequence

from llama_ablate.files.slugs import slug
from llama_ablate.findings.frames import Frames
from llama_ablate.report import columns
from llama_ablate.results import Results
from llama_ablate.track.sinks import Sinks, TrackedRun

_NUMBERS = ("loss", "difference", "low", "high")


def replay(results: Results, names: Sequence[str]) -> tuple[int, dict[str, str]]:
    """Send finished runs to sinks; return their number and the reasons of failures by sink.

    Stops at the first run that a sink fails to send.
    """
    for sent, (run_id, finished) in enumerate(results.finished.items()):
        sinks = Sinks(names, results.track, TrackedRun.of(results.plan, run_id))
        sinks.send(finished.curve())
        sinks.finish(finished.record())
        if sinks.failures:
            return sent, sinks.failures
    return len(results.finished), {}


def send_comparison(results: Results, names: Sequence[str]) -> dict[str, str]:
    """Send mean losses, differences and intervals of variants as a run called `comparison`.

    Returns the reasons of failures by sink.
    """
    name = results.plan.experiment.name
    run = TrackedRun("comparison", name, "comparison", "comparison", {"experiment": name})
    sinks = Sinks(names, results.track, run)
    for row in columns.comparison(Frames.of(results)).to_dict("records"):
        place = "/".join(slug(name) for name in (row["table"], row["variant"]) if name)
        sinks.log(0, {f"{place}/{key}": float(row[key]) for key in _NUMBERS})
    sinks.close("ok")
    return sinks.failures
