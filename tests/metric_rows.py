"""Numbers of runs as metrics give them, made by hand."""

from dataclasses import replace

from llama_ablate.findings.values import MeasuredValues, MetricRow


def of_run(run, metric, quantity, samples=(), value=1.0, name="", **coordinates):
    """Return one number of a run, with the samples behind it."""
    return MetricRow(
        variant=run.variant,
        label=run.label,
        run=run.id,
        seed=run.seed,
        metric=metric,
        name=name or quantity,
        quantity=quantity,
        value=value,
        samples=tuple(samples),
        coordinates=coordinates,
    )


def with_documents(table, nats, tokens):
    """Add to runs of a table their losses by document, from the nats and tokens of each.

    `nats` are by label and seed, `tokens` by label; those of validation text are others.
    """
    by_run = [
        (run, nats[run.label][run.seed], tokens[run.label])
        for run in table.planned
        if (run.label in nats) and run.seed in nats[run.label]
    ]
    rows = [
        of_run(run, "perplexity", quantity, samples, name=f"{split} {quantity}", split=split)
        for run, loss, count in by_run
        for split, times in (("validation", 7.0), ("test", 1.0))
        for quantity, samples in (
            ("loss_by_document", loss * times),
            ("tokens_by_document", count),
        )
    ]
    return replace(table, metrics=MeasuredValues(rows))
