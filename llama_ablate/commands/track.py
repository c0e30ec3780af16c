"""The command `track`: send an experiment's finished runs to a tracker, such as TensorBoard."""

from dataclasses import dataclass

from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import ResultsOptions, option
from llama_ablate.errors import ConfigError

HELP = "send curves, metrics and recipes of finished runs to TensorBoard, W&B or MLflow"
EXAMPLE = "track results/first --to tensorboard"


@dataclass(frozen=True, kw_only=True)
class TrackOptions(ResultsOptions):
    """Options of `track`: results and trackers ("sinks")."""

    sinks: tuple[str, ...] = option(
        ..., "tensorboard, wandb, mlflow, or a plugin's; may be repeated", "SINK", flag="--to"
    )


def run(options: TrackOptions) -> Answer:
    """Send finished runs to trackers. Raises ConfigError for a tracker that fails."""
    from llama_ablate.results import Results
    from llama_ablate.track.sinks import Sinks, TrackedRun, checked

    def fail(name: str, reason: str) -> None:
        raise ConfigError(f"--to {name}: {reason}; {sent} runs were sent")

    names, results, sent = checked(options.sinks, "--to"), Results.open(options.folder), 0
    results.refuse_links()
    for run_id, finished in results.finished.items():
        sinks = Sinks(names, results.track, TrackedRun.of(results.plan, run_id), fail)
        sinks.send(finished.curve())
        sinks.finish(finished.record())
        sent += 1
    said = f"{options.folder}: {sent} runs sent to {', '.join(names)}"
    return Answer(said, {"sent": dict.fromkeys(names, sent)})
