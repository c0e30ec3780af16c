"""The Python API: frames with the columns that are documented, several experiments as one."""

import inspect
import json
import math
import re
import statistics
from dataclasses import fields
from pathlib import Path

import pandas as pd
import pytest
from scipy import stats

import llama_ablate as la
from llama_ablate.commands.cli import main
from llama_ablate.commands.run import LaunchOptions, RunOptions
from llama_ablate.report import columns
from llama_ablate.results import CURVE, Store
from tests import plans
from tests.in_process import draw_nothing
from tests.metrics import measured

ROOT = Path(__file__).parents[1]
FRAMES = {
    "tables": columns.TABLES,
    "runs": columns.RUNS,
    "curves": columns.CURVES,
    "metrics": columns.METRICS,
}
#: Losses of the baseline by seed, and what two variants change of them.
BASE = {0: 2.00, 1: 2.10, 2: 2.05}
WIDER = {0: -0.10, 1: -0.13, 2: -0.12}
OTHER = {0: 0.02, 1: -0.03, 2: 0.01}


@pytest.fixture
def store(tmp_path):
    """Make results of one experiment: a function of its name and of losses by label and seed."""

    def make(name, losses, *, text=None, looks=None, train=None, compute=None, **variants):
        ids = {
            label: {"id_": re.sub(r"\W", "", label)} | variants.get(label, {}) for label in losses
        }
        made = {label: plans.variant(label=label, **own) for label, own in ids.items()}
        runs = [
            plans.run(f"{made[label].id}{seed}", made[label].id, seed)
            for seed in sorted({seed for own in losses.values() for seed in own})
            for label, own in losses.items()
            if seed in own
        ]
        store = Store(tmp_path / name)
        seeds = {"looks": looks} if looks else sorted({run.seed for run in runs})
        table = plans.table([*made.values()], runs, text=text)
        common = {"steps": 2, "batch": 4, **(train or {})}
        store.create(plans.document(table, name=name, seeds=seeds, train=common), f"name: {name}\n")
        labels = {variant.id: label for label, variant in made.items()}
        for run in runs:
            label = labels[run.variant]
            loss = losses[label][run.seed]
            metrics = {"perplexity": measured(test_loss_nats=loss, test_perplexity=math.exp(loss))}
            point = dict.fromkeys(CURVE, 1.0)
            curve = [{**point, "step": step, "tokens": 32 * step} for step in (1, 2)]
            computed = {**plans.RECORD.compute, **(compute or {})}
            record = plans.record_of(run, label=label, compute=computed, metrics=metrics)
            store.commit(record, curve, None)
        return store.root

    return make


def shifted(by):
    return {seed: BASE[seed] + change for seed, change in by.items()}


@pytest.fixture
def root(store):
    return store("x", {"base": BASE, "<b>wider</b>": shifted(WIDER)})


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_begins_with_the_columns_that_are_documented(name, root):
    frame = getattr(la.open(root), name)
    assert list(frame)[: len(FRAMES[name])] == list(FRAMES[name])
    assert not frame.map(lambda cell: isinstance(cell, dict | list | tuple)).any(axis=None)


def test_the_comparison_has_the_columns_that_are_documented_and_no_other(root):
    """A new column of the comparison is described in `report/columns.py`."""
    assert list(la.open(root).comparison()) == list(columns.COMPARISON)


def test_runs_and_curves_have_a_row_for_each_run_and_point(root):
    results = la.open(root)
    assert results.runs["loss"].tolist() == pytest.approx([2.00, 1.90, 2.10, 1.97, 2.05, 1.93])
    assert not results.runs.duplicated(["table", "run"]).any()
    assert len(results.curves) == 2 * 6
    assert not results.curves.duplicated(["table", "run", "step"]).any()
    assert results.metrics.query("name == 'test_loss_nats'")["value"].mean() == pytest.approx(
        results.runs["loss"].mean()
    )
    (table,) = results.tables.to_dict("records")
    assert (table["finished"], table["variants"], table["baseline"]) == (6, 2, "base")


def test_a_notebook_shows_labels_as_text_and_loads_nothing(root):
    shown = la.open(root)._repr_html_()
    assert "&lt;b&gt;wider" in shown
    assert "<b>wider" not in shown
    assert not re.search(r"https?:|src=|<script", shown)


def wrong_names(results):
    return {
        "there is no variant 'wide'": lambda: results.model("wide"),
        "no run of seed 7 of 'base' has ended ok; seeds that did: 0, 1, 2": lambda: results.model(
            "base", seed=7
        ),
        "has no weights": lambda: results.model("base"),
        "the experiment has one table": lambda: results.comparison("text"),
        "holds no results": lambda: la.open(ROOT / "docs"),
        "name one experiment or more": lambda: la.concat([]),
        "train.lr": lambda: la.run({"name": "x", "train": {"steps": 1, "lr": -1}}),
        "numbers, text, lists": lambda: la.run({"name": "x", "train": object()}),
    }


def test_what_a_user_can_mend_is_one_line(root, capsys):
    for message, call in wrong_names(la.open(root)).items():
        with pytest.raises(la.ConfigError, match=re.escape(message)) as caught:
            call()
        assert "\n" not in str(caught.value)
    assert capsys.readouterr() == ("", "")


def test_run_takes_the_options_of_the_command_with_their_defaults():
    """`la.run` writes its keywords out, for editors; their one declaration is the command's."""
    defaults = {own.name: own.default for cls in (RunOptions, LaunchOptions) for own in fields(cls)}
    first, *keywords = inspect.signature(la.run).parameters.values()
    assert first.name == "experiment"
    assert len(keywords) == 8
    for keyword in keywords:
        default = defaults[keyword.name]
        given = str(default) if isinstance(default, Path) else default
        assert keyword.default == given, keyword.name


def test_a_mapping_is_read_as_its_file(tmp_path):
    from llama_ablate.config import experiment

    values = {
        "name": "x",
        "train": {"steps": 3, "lr": 1e-5},
        "variants": {"axes": {"norm": ["none"]}},
    }
    (tmp_path / "x.yaml").write_text(json.dumps(values))
    of_file, of_mapping = (
        experiment.load(tmp_path / "x.yaml", ("seeds=5",)).experiment,
        experiment.from_mapping(values, ("seeds=5",)),
    )
    assert of_mapping.experiment == of_file
    assert values["train"] == {"steps": 3, "lr": 1e-5}
    (tmp_path / "y.yaml").write_text(of_mapping.text)
    assert experiment.load(tmp_path / "y.yaml", ("seeds=5",)).experiment == of_file


def interval(differences, *others):
    """The t interval of a mean that holds together with those of some other rows, by hand."""
    n, mean, own = len(differences), statistics.mean(differences), statistics.variance(differences)
    prior = statistics.mean(map(statistics.variance, others)) if others else 0.0
    weight = 3 * min(1, 2 * prior / own)
    df = weight + n - 1
    error = math.sqrt((weight * prior + (n - 1) * own) / df / n)
    half = stats.t.ppf(1 - 0.05 / (1 + len(others)) / 2, df) * error
    return pytest.approx([mean, mean - half, mean + half])


def ends(row):
    return [row[name] for name in ("difference", "low", "high")]


def test_rows_of_two_experiments_are_paired_each_with_its_own_baseline(store):
    """The second experiment's machine gives the baseline other losses: its pairs take that out."""
    first = store("first", {"base": BASE, "wider": shifted(WIDER)})
    elsewhere = {seed: loss + 0.004 * seed for seed, loss in BASE.items()}
    second = store(
        "second", {"base": elsewhere, "other": {s: elsewhere[s] + OTHER[s] for s in BASE}}
    )
    results = la.concat([first, second])
    rows = results.comparison().set_index("variant")
    assert rows["experiment"].to_dict() == {
        "base": "first + second",
        "wider": "first",
        "other": "second",
    }
    assert ends(rows.loc["wider"]) == interval(WIDER.values(), OTHER.values())
    assert ends(rows.loc["other"]) == interval(OTHER.values(), WIDER.values())
    alone = la.open(first).comparison().set_index("variant")
    assert ends(alone.loc["wider"]) == interval(WIDER.values())
    assert "paired by seed with the baseline of its own experiment" in results.warnings[0]
    assert len(results.runs) == 12
    assert results.runs["experiment"].unique().tolist() == ["first", "second"]


REFUSED = {
    "baselines": (
        {"base": {"id_": "b2", "model": {"dim": 16}}},
        "the baselines differ: dim is 8 in 'first'; 16 in 'second'",
    ),
    "texts": ({"text": {"fingerprint": "g"}}, "the texts differ: fingerprint is f in 'first'"),
    "looks": ({"looks": [2, 3]}, "the seeds of 'second' come in looks"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_experiments_that_answer_other_questions_are_refused_in_one_line(what, store, capsys):
    changes, message = REFUSED[what]
    losses = {"base": BASE, "wider": shifted(WIDER)}
    first, second = store("first", losses), store("second", losses, **changes)
    with pytest.raises(la.ConfigError, match=re.escape(message)) as caught:
        la.concat([first, second])
    assert main(["show", str(first), str(second)]) == 2
    _, shown = capsys.readouterr()
    assert shown == f"llama-ablate: {caught.value}\n"


def test_show_takes_other_results_or_two_variants(store, capsys):
    first = store("first", {"base": BASE, "wider": shifted(WIDER)})
    second = store("second", {"base": BASE, "other": shifted(OTHER)})
    assert main(["show", str(first), "base", "wider"]) == 0
    assert "base -> wider" in capsys.readouterr().out
    assert main(["show", str(first), str(second)]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^wider +first ", shown, re.MULTILINE)
    assert main(["show", str(first), str(second), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert [row["variant"] for row in values["comparison"]] == ["base", "wider", "other"]
    for words, message in {
        (str(second), "wider"): f"'{second}' is not a variant of {first}",
        (str(second), str(second), "wider"): "one argument too many: 'wider'",
        (str(first.parent),): "holds no results",
    }.items():
        assert main(["show", str(first), *words]) == 2
        assert message in capsys.readouterr().err


def test_the_report_has_runs_and_curves_as_files(root, monkeypatch):
    """`la.report` is a function, and `llama_ablate.report` is the package too."""
    import llama_ablate.report.page

    monkeypatch.setattr(llama_ablate.report.page, "_draw", draw_nothing)
    page = la.report(root)
    assert page == root / "report" / "report.html"
    assert llama_ablate.report.page.columns.FILES.keys() == {"runs", "curves"}
    results = la.open(root)
    for name in ("runs", "curves"):
        written = pd.read_csv(page.parent / "tables" / f"{name}.csv", keep_default_na=False)
        frame = getattr(results, name)
        assert list(written) == list(frame)
        assert len(written) == len(frame)
    losses = pd.read_csv(page.parent / "tables" / "runs.csv")["loss"]
    assert losses.tolist() == pytest.approx(results.runs["loss"].tolist())
