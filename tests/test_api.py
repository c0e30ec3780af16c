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
from llama_ablate.commands.run import LaunchOptions, RunOptions
from llama_ablate.report import columns
from llama_ablate.results import CURVE, Store
from tests import plans
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

    def make(name, losses, *, text=None, looks=None, **of_base):
        variants = {label: plans.variant(re.sub(r"\W", "", label), label) for label in losses}
        variants["base"] = plans.variant(label="base", **{"id_": "base"} | of_base)
        labels = {variant.id: label for label, variant in variants.items()}
        runs = [plans.run(f"{id_}{seed}", id_, seed) for seed in BASE for id_ in labels]
        table = plans.table([*variants.values()], runs, text=text)
        seeds = {"looks": looks} if looks else len(BASE)
        store = Store(tmp_path / name)
        store.create(plans.document(table, name=name, seeds=seeds), f"name: {name}\n")
        for run in runs:
            label = labels[run.variant]
            loss = losses[label][run.seed]
            metrics = {"perplexity": measured(test_loss_nats=loss, test_perplexity=math.exp(loss))}
            curve = [dict.fromkeys(CURVE, 1.0) | {"step": step} for step in (1, 2)]
            store.commit(plans.record_of(run, label=label, metrics=metrics), curve, None)
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
        "has ended ok; seeds that did: 0, 1, 2": lambda: results.model("base", seed=7),
        "has no weights": lambda: results.model("base"),
        "the experiment has one table": lambda: results.comparison("text"),
        "holds no results": lambda: la.open(ROOT / "docs"),
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
    of_mapping = experiment.from_mapping(values, ("seeds=5",))
    for text in (json.dumps(values), of_mapping.text):
        (tmp_path / "x.yaml").write_text(text)
        read = experiment.load(tmp_path / "x.yaml", ("seeds=5",)).experiment
        assert read == of_mapping.experiment
    assert values["train"] == {"steps": 3, "lr": 1e-5}


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
        {"id_": "b2", "model": {"dim": 16}},
        "the baselines differ: dim is 8 in 'first'; 16 in 'second'",
    ),
    "texts": ({"text": {"fingerprint": "g"}}, "the texts differ: fingerprint is f in 'first'"),
    "looks": ({"looks": [2, 3]}, "the seeds of 'second' come in looks"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_experiments_that_answer_other_questions_are_refused_in_one_line(what, store, answer):
    changes, message = REFUSED[what]
    losses = {"base": BASE, "wider": shifted(WIDER)}
    first, second = store("first", losses), store("second", losses, **changes)
    with pytest.raises(la.ConfigError, match=re.escape(message)) as caught:
        la.concat([first, second])
    assert answer("show", first, second, code=2) == f"llama-ablate: {caught.value}"


def test_show_takes_other_results_or_two_variants(store, answer):
    first = store("first", {"base": BASE, "wider": shifted(WIDER)})
    second = store("second", {"base": BASE, "other": shifted(OTHER)})
    assert "base -> wider" in answer("show", first, "base", "wider")
    assert re.search(r"^wider +first ", answer("show", first, second), re.MULTILINE)
    rows = answer("show", first, second, "--json")["comparison"]
    assert [row["variant"] for row in rows] == ["base", "wider", "other"]
    wrong = answer("show", first, second, "wider", code=2)
    assert f"'{second}' is not a variant of {first}" in wrong


@pytest.mark.usefixtures("without_pictures")
def test_the_report_has_runs_and_curves_as_files(root):
    page, results = la.report(root), la.open(root)
    assert page == root / "report" / "report.html"
    for name in ("runs", "curves"):
        written = pd.read_csv(page.parent / "tables" / f"{name}.csv", keep_default_na=False)
        frame = getattr(results, name)
        assert list(written) == list(frame)
        assert len(written) == len(frame)
    losses = pd.read_csv(page.parent / "tables" / "runs.csv")["loss"]
    assert losses.tolist() == pytest.approx(results.runs["loss"].tolist())
