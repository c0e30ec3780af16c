"""Commands about experiments and their results."""

from argparse import Namespace
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Any

from llama_ablate.commands import notes
from llama_ablate.commands.answer import Answer
from llama_ablate.commands.running import reported
from llama_ablate.errors import ConfigError, nearest
from llama_ablate.results import Results, Settings, Still, Store
from llama_ablate.results.still import legacy


def components(options: Namespace) -> Answer:
    """List registered components with their options and sources."""
    from llama_ablate.commands.catalogue import listing, text

    rows = listing(options.slot)
    return Answer(text(rows), rows)


def plan(options: Namespace) -> Answer:
    """Show what `run` would do."""
    from llama_ablate.config import experiment
    from llama_ablate.design.plan import make
    from llama_ablate.launch import local
    from llama_ablate.report import planned
    from llama_ablate.training.compute import choose, pick_device

    device = pick_device(options.device)
    source = experiment.load(options.file, tuple(options.sets))
    made = make(source)
    try:
        compute = choose(made.baseline.spec, made.experiment.train, device)
    except ConfigError as error:  # it does not fit this machine
        raise source.locate(error) from None
    made = made.paced(lambda c: [c.counts[v.id].flops_per_token for v in c.variants])  # a forecast
    workers = local.default_workers(device, made.experiment.parallel.data)
    values = planned.forecast(
        legacy(made.document(compute, Settings())), compute.to_dict(), workers
    )
    text = planned.text(values)
    if options.power is not None:
        pilot = options.pilot or Path("results") / made.experiment.slug
        try:
            store = Store.open(pilot)
        except ConfigError as error:
            said = f"--power takes the noise of a finished pilot: {error}; give one with --pilot"
            raise ConfigError(said) from None
        values["power"] = planned.powered(store, options.power, values)
        shown = planned.power_text(values["power"], options.power, values["seeds"])
        text += f"\n\nfrom the noise of {pilot}, with a power of 0.8:\n\n{shown}"
    return Answer(text, values)


def status(options: Namespace) -> Answer:
    """Count runs by outcome, for each variant."""
    results = Results.open(options.folder)
    runs = [asdict(run) for run in results.statuses]
    notes.tell(results)
    counts = Counter(run["outcome"] for run in runs)
    by_label: dict[str, Counter[str]] = {}
    for run in runs:
        by_label.setdefault(run["label"], Counter())[run["outcome"]] += 1
    width = max(map(len, by_label), default=0)
    lines = [f"{results.root}: {len(runs)} runs: {_counted(counts)}", ""]
    lines += [f"{label:{width}}  {_counted(of)}" for label, of in by_label.items()]
    bad = [run for run in runs if run["outcome"] not in ("ok", "running", "pending")]
    lines += [""] * bool(bad)
    lines += [f"{r['label']} s{r['seed']}: {r['outcome']}: {r['reason']}" for r in bad]
    return Answer("\n".join(lines), {"runs": runs, "outcomes": counts}, code=1 if bad else 0)


def _counted(counts: "Counter[str]") -> str:
    order = sorted(counts, key=lambda outcome: (outcome != "ok", outcome))
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in order)


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
    if a["id"] == b["id"]:
        raise ConfigError(f"'{options.a}' and '{options.b}' are the same variant: name two")
    return Answer(*looking.pair(store, a, b))


def measure(options: Namespace) -> Answer:
    """Take metrics of runs that have finished, from their weights."""
    from llama_ablate.launch import measurement
    from llama_ablate.launch.progress import Bar

    store = Store.open(options.folder)
    notes.mend(store)
    with Bar("measuring") as bar:
        measurement.measure_again(store, options.metrics, bar.update)
    return reported(Results(store))


def report(options: Namespace) -> Answer:
    """Write the report of what has finished so far."""
    return reported(Results.open(options.folder))


def _table(options: Namespace) -> Store:
    """Open the results, seen as the table that is asked for. Raises ConfigError for another."""
    results = Results.open(options.folder)
    store = Still(results.root, plan=results.plan_name, results=results)
    if options.table is None:
        return store
    named = {table.plan.get("table", ""): table for table in store.tables}
    if options.table not in named:
        raise ConfigError(
            f"--table {options.table}: there is none of that name{nearest(options.table, named)}"
        )
    return named[options.table]


def _variant(store: Store, name: str, also: list[str] | None = None) -> dict[str, Any]:
    variants = store.plan["variants"]
    for variant in variants:
        if name in (variant["label"], variant["id"]):
            return dict(variant)
    hint = nearest(name, [v["label"] for v in variants])
    what = "variant or run" if also else "variant"
    raise ConfigError(f"'{name}' is not a {what} of {store.root}{hint}")
