"""Commands about experiments and their results."""

import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from llama_ablate.commands.answer import Answer
from llama_ablate.errors import ConfigError, nearest
from llama_ablate.results import Store


def components(options: Namespace) -> Answer:
    """List registered components with their options and sources."""
    from llama_ablate.catalogue import listing, text

    rows = listing(options.slot)
    return Answer(text(rows), rows)


def plan(options: Namespace) -> Answer:
    """Show what `run` would do."""
    from llama_ablate import experiment
    from llama_ablate.launch import local
    from llama_ablate.plan import make
    from llama_ablate.report import planned
    from llama_ablate.training.engine import choose, pick_device

    if experiment.is_inquiry(options.file):
        from llama_ablate.commands.inquiries import outline

        return outline(options)
    device = pick_device(options.device)
    made = make(experiment.load(options.file, tuple(options.sets)))
    engine = choose(made.baseline.spec, made.experiment.train, device, rounds=1)
    made = made.paced(lambda c: [c.counts[v.id].flops_per_token for v in c.variants])  # a forecast
    workers = local.default_workers(device)
    values = planned.forecast(made.to_dict(), engine.to_dict(), workers)
    text = planned.text(values)
    if options.power is not None:
        pilot = options.pilot or Path("results") / made.experiment.slug
        values["power"] = planned.powered(Store.open(pilot), options.power, values)
        shown = planned.power_text(values["power"], options.power, values["seeds"])
        text += f"\n\nfrom the noise of {pilot}, with a power of 0.8:\n\n{shown}"
    return Answer(text, values)


def run(options: Namespace) -> Answer:
    """Train, measure and report an experiment; continue one that was stopped."""
    from llama_ablate import experiment
    from llama_ablate.launch import processes

    if options.workers is not None and options.workers < 1:
        raise ConfigError(f"--workers {options.workers}: must be 1 or more")
    if experiment.is_inquiry(options.file):
        from llama_ablate.commands.inquiries import inquire

        return inquire(options)
    source = experiment.load(options.file, tuple(options.sets))
    processes.warm()  # before the imports below, which take as long as the server's own
    from llama_ablate.launch import local
    from llama_ablate.launch.progress import Bar, Progress
    from llama_ablate.plan import make
    from llama_ablate.training.engine import Engine, pick_device

    device = pick_device(options.device)
    made = make(source)
    workers = options.workers or local.default_workers(device)
    store = Store(options.results / made.experiment.slug)
    notes = "".join(f"# --set {text}\n" for text in options.sets)
    store.prepare()
    train = made.experiment.train
    engine = Engine.from_dict(
        store.kept(
            "engine",
            f"device {device}, precision {train.precision}, kernel {train.kernel}",
            lambda: local.choose_engine(made, device, store.log("engine")).to_dict(),
        )
    )
    made = made.paced(local.pace(store, engine))
    store.create({**made.to_dict(), "engine": engine.to_dict()}, notes + source.text)
    with Progress(made.experiment.name, min(workers, len(made.runs))) as progress:
        local.run_grid(store, made, engine, workers, progress)
    with Bar("measuring, variants in turn") as bar:
        local.measure_variants(store, made, engine, bar.update)
    return _report(store)


def status(options: Namespace) -> Answer:
    """Count runs by outcome, for each variant."""
    from llama_ablate.report import frames, tables

    store = Store.open(options.folder)
    runs = frames.every_run(store)
    outcomes = runs.groupby("label", sort=False)["outcome"].agg(frames.outcomes).reset_index()
    total = frames.outcomes(runs["outcome"])
    bad = runs[~runs["outcome"].isin(["ok", "pending"])]
    lines = [f"{store.root}: {len(runs)} runs: {total}", "", tables.text(outcomes)]
    lines += [f"{r.label} s{r.seed}: {r.outcome}: {r.reason}" for r in frames.rows(bad)]
    counts = runs["outcome"].value_counts().to_dict()
    columns = ["id", "label", "seed", "outcome", "reason"]
    values = {"runs": runs[columns].to_dict("records"), "outcomes": counts}
    return Answer("\n".join(lines), values, code=1 if len(bad) else 0)


def show(options: Namespace) -> Answer:
    """Show the grid's table, or all that is known of one variant or run."""
    from llama_ablate.report import frames, looking, tables

    store = _table(options)
    if options.what is None:
        comparison = frames.comparison(store)
        return Answer(
            tables.text(tables.comparison_cells(comparison)), comparison.to_dict("records")
        )
    run_ids = [run["id"] for run in store.plan["runs"]]
    if options.what in run_ids:
        return Answer(*looking.run(store, options.what))
    variant = _variant(store, options.what, run_ids)
    return Answer(*looking.variant(store, variant))


def compare(options: Namespace) -> Answer:
    """Compare two variants: recipes side by side, numbers paired by seed."""
    from llama_ablate.report import looking

    store = _table(options)
    a, b = _variant(store, options.a), _variant(store, options.b)
    return Answer(*looking.pair(store, a, b))


def measure(options: Namespace) -> Answer:
    """Take metrics of runs that have finished, from their weights."""
    from llama_ablate.launch import local
    from llama_ablate.launch.progress import Bar

    store = Store.open(options.folder)
    with Bar("measuring") as bar:
        local.measure_again(store, options.metrics, bar.update)
    return _report(store)


def report(options: Namespace) -> Answer:
    """Write the report of what has finished so far."""
    return _report(Store.open(options.folder))


def _report(store: Store) -> Answer:
    from llama_ablate.report import frames, page, tables, warned
    from llama_ablate.report.sections import sections

    found = sections(store)
    written = page.write(store, found)
    failed = not frames.every_run(store)["outcome"].isin(["ok", "pending"]).all()
    warnings = warned.warnings(store)
    for warning in warnings:
        sys.stderr.write(f"note: {warning}\n")
    first = found[0].table
    shown = [
        ("" if section.title == "Comparison" else f"{section.title}\n\n")
        + tables.text(section.cells)
        for section in found
        if section.key == "comparison" or section.table in ("", first)
        if section.key != "steadiness"
    ]
    lines = [*shown, f"{page.answer(frames.comparison(store))}\nreport: {written}"]
    values: dict[str, Any] = {"comparison": [], "factors": [], "hypotheses": []}
    for section in found:
        rows = section.frame.to_dict("records")
        of = {"table": section.table} if section.table else {}
        values.setdefault(section.key, []).extend([{**of, **row} for row in rows])
    values |= {"report": str(written), "warnings": warnings}
    return Answer("\n\n".join(lines), values, code=1 if failed else 0)


def _table(options: Namespace) -> Store:
    """Open the results, seen as the table that is asked for. Raises ConfigError for another."""
    store = Store.open(options.folder)
    if options.table is None:
        return store
    named = {table.plan.get("table", ""): table for table in store.tables}
    if options.table not in named:
        raise ConfigError(f"--table {options.table}: there is none of that name"
                          f"{nearest(options.table, named)}")  # fmt: skip
    return named[options.table]


def _variant(store: Store, name: str, also: list[str] | None = None) -> dict[str, Any]:
    variants = store.plan["variants"]
    for variant in variants:
        if name in (variant["label"], variant["id"]):
            return dict(variant)
    hint = nearest(name, [v["label"] for v in variants])
    what = "variant or run" if also else "variant"
    raise ConfigError(f"'{name}' is not a {what} of {store.root}{hint}")
