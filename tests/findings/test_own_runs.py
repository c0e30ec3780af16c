"""Runs of another trainer are compared as an experiment's are."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import llama_ablate as la
from llama_ablate.commands.cli import main
from llama_ablate.evidence.text_error import text_error
from llama_ablate.findings.own_runs import read_rows
from tests.evidence.rows import row_of

#: Losses of three seeds in issue 36 of deepearth: a control and a candidate.
PUBLISHED = {"control": (1.9202, 1.9059, 2.0013), "candidate": (1.8811, 1.8867, 1.8833)}
#: Validation losses of twenty seeds at steps 2745, 2750 and 2755 of Track 3, by seed: the first
#: table of pull request 321 of modded-nanogpt, whose target is a loss of 3.28.
STEPS = (2745, 2750, 2755)
TRACK = """
3.27930 3.27891 3.27847 3.28004 3.27961 3.27924 3.27972 3.27934 3.27890 3.27911 3.27866 3.27831
3.27991 3.27952 3.27912 3.27715 3.27679 3.27637 3.28010 3.27971 3.27932 3.27908 3.27867 3.27826
3.27883 3.27842 3.27799 3.28055 3.28014 3.27972 3.27934 3.27892 3.27850 3.27929 3.27891 3.27850
3.28025 3.27988 3.27946 3.27985 3.27946 3.27908 3.27824 3.27783 3.27741 3.28042 3.28001 3.27961
3.27797 3.27760 3.27720 3.27887 3.27848 3.27806 3.27877 3.27839 3.27795 3.27830 3.27788 3.27751"""


def table_of(losses, **columns):
    rows = [
        {"variant": name, "seed": seed, "loss": loss}
        for name, of_variant in losses.items()
        for seed, loss in enumerate(of_variant)
    ]
    return pd.DataFrame(rows).assign(**columns)


def track(shift=0):
    losses = np.array(TRACK.split(), float).reshape(20, 3)
    rows = [
        (seed, step + shift, loss)
        for seed in range(20)
        for step, loss in zip(STEPS, losses[seed], strict=True)
    ]
    return pd.DataFrame(rows, columns=["seed", "step", "loss"])


def compare(table, baseline="control", **asked):
    return la.compare(table, baseline, **asked).comparison().set_index("variant")


def test_published_numbers_have_the_interval_of_students_t_over_their_three_pairs():
    row = compare(table_of(PUBLISHED)).loc["candidate"]
    assert row["difference"] == pytest.approx(-0.0588, abs=5e-5)
    assert (row["low"], row["high"]) == pytest.approx((-0.189, 0.071), abs=5e-4)
    assert row["verdict"] == "inconclusive"


def test_twenty_published_seeds_reach_their_target_as_interpolation_by_hand_says():
    points = pd.concat([track().assign(variant="record"), track(55).assign(variant="later")])
    rows = la.compare(points, "record", target=3.28).targets().set_index("variant")
    assert rows["reached"].tolist() == rows["runs"].tolist() == [20, 20]
    at = track().pivot_table("loss", "seed", "step")
    above = at[at[2745] > 3.28]
    assert len(above) == 5
    assert math.isnan(rows["ratio"]["later"])  # fifteen are below it at their first point
    runs = points[points["seed"].isin(above.index)]
    times = la.compare(runs, "record", target=3.28).targets().set_index("variant")
    crossing = 2745 + 5 * (above[2745] - 3.28) / (above[2745] - above[2750])
    crossing[above[2750] > 3.28] = 2750 + 5 * (above[2750] - 3.28) / (above[2750] - above[2755])
    assert times["median"]["record"] == pytest.approx(crossing.median())
    logs = np.log((crossing + 55) / crossing)
    assert math.log(times["ratio"]["later"]) == pytest.approx(logs.mean())
    assert times["verdict"]["later"] == "worse"
    assert math.log(times["high"]["later"]) == pytest.approx(row_of(logs)["high"])


def test_of_runs_that_never_reach_the_target_no_mean_is_formed():
    runs = track().assign(variant="base")
    slow = track().assign(variant="slow", loss=track()["loss"] + 0.02)
    rows = la.compare(pd.concat([runs, slow]), "base", target=3.28).targets().set_index("variant")
    slow = rows.loc["slow"]
    assert (slow["reached"], slow["share"], slow["verdict"]) == (0, -1, "worse")
    assert np.isnan([slow["ratio"], slow["low"], slow["median"]]).all()


def test_unpaired_arms_have_welchs_interval_with_moderated_variances():
    rng = np.random.default_rng(0)
    arms = {
        "control": rng.normal(2, 0.1, 9),
        "one": rng.normal(1.9, 0.3, 6),
        "two": rng.normal(2, 0.2, 5),
    }
    row = compare(table_of(arms), unpaired=True).loc["one"]
    n, own = np.array([9, 6, 5]), np.array([of.var(ddof=1) for of in arms.values()])
    prior = (own.sum() - own) / 2
    weight = 3 * np.minimum(1, 2 * prior / own)
    parts, df = (weight * prior + (n - 1) * own) / (weight + n - 1) / n, weight + n - 1
    error = parts[0] + parts[1]
    half = stats.t.ppf(1 - 0.025 / 2, error**2 / (parts[:2] ** 2 / df[:2]).sum()) * math.sqrt(error)
    mean = arms["one"].mean() - arms["control"].mean()
    assert (row["low"], row["high"]) == pytest.approx((mean - half, mean + half))


def test_losses_by_document_add_the_error_of_the_text():
    rng = np.random.default_rng(1)
    tokens, rows = rng.integers(50, 400, 30), []
    for name in PUBLISHED:
        of_documents = rng.normal(0, 0.2, 30)
        for seed in range(3):
            losses = 2 + of_documents + rng.normal(0, 0.05, 30)
            rows += [(name, seed, d, tokens[d], losses[d]) for d in range(30)]
    documents = pd.DataFrame(rows, columns=["variant", "seed", "document", "tokens", "loss"])
    nats = documents.assign(nats=documents["loss"] * documents["tokens"]).pivot_table(
        "nats", ["variant", "seed"], "document"
    )
    losses = {name: nats.loc[name].sum(axis=1) / tokens.sum() for name in PUBLISHED}
    found = compare(table_of(losses), documents=documents).loc["candidate"]
    own = text_error((nats.loc["candidate"] - nats.loc["control"]).to_numpy(), tokens)
    differences = [*(losses["candidate"] - losses["control"])]
    expected = row_of(differences, (own.se, own.df))
    assert (found["low"], found["high"]) == pytest.approx((expected["low"], expected["high"]))
    assert expected["high"] > row_of(differences)["high"]
    other = documents.assign(loss=documents["loss"] + 1)
    for wrong, said in ((other, "their mean loss is"), (documents.head(40), "has none")):
        with pytest.raises(la.ConfigError) as caught:
            compare(table_of(losses), documents=wrong)
        assert said in caught.value.message


def test_the_last_step_counts_and_a_run_without_an_end_is_lost():
    early = table_of({name: [9.0] * 3 for name in PUBLISHED}, step=1)
    steps = pd.concat([table_of(PUBLISHED, step=2), early])
    pd.testing.assert_frame_equal(compare(steps), compare(table_of(PUBLISHED)))
    of_base = steps["variant"].eq("control") & steps["seed"].eq(0) & steps["step"].eq(2)
    a_step_less = steps.assign(step=steps["step"].replace(2, 20).mask(of_base, 19))
    assert not la.compare(a_step_less, "control").runs["lost"].any()
    crashed = steps.assign(State=np.where(of_base, "crashed", "finished"))
    for lost in (steps.assign(loss=steps["loss"].mask(of_base)), steps[~of_base], crashed):
        row = compare(lost).loc["control"]
        assert (row["n"], row["lost"]) == (2, 1)


def test_higher_may_be_better_and_a_side_that_lost_runs_is_not_called_better():
    losses = {"base": [1.0, 1.1, 1.2, 1.3], "more": [2.0, 2.1, 2.2, 2.31]}
    words = [
        compare(table_of(losses), "base", higher_is_better=high).loc["more", "verdict"]
        for high in (False, True)
    ]
    assert words == ["worse", "better"]
    lost = table_of({**losses, "more": [0.0, 0.1, 0.21, math.inf], "gone": [math.nan] * 4})
    assert compare(lost, "base")["verdict"].to_dict() == {
        "base": "baseline",
        "more": "inconclusive",
        "gone": "lost",
    }


def test_a_history_with_a_column_for_each_run_is_read_by_the_names_of_its_runs():
    """As Weights & Biases exports a panel; blank cells are steps that a run did not log."""
    names = {"base-s0": [2.0, 1.0], "base-s1": [2.1, 1.1], "wide-s0": [1.9, math.nan]}
    columns = {f"{name} - val/loss{end}": of for name, of in names.items() for end in ("", "__MIN")}
    read = read_rows(pd.DataFrame({"Step": [1, 2], **columns}), "{variant}-s{seed}")
    rows = read[["variant", "seed", "Step", "val/loss"]].to_numpy().tolist()
    assert rows == [
        *[["base", "0", 1, 2.0], ["base", "0", 2, 1.0], ["base", "1", 1, 2.1]],
        *[["base", "1", 2, 1.1], ["wide", "0", 1, 1.9]],
    ]


@pytest.fixture
def write(tmp_path):
    def write(table, name="runs.csv"):
        table.to_csv(tmp_path / name, index=False)
        return str(tmp_path / name)

    return write


def test_the_command_writes_a_page_that_opens_again(write, tmp_path, capsys):
    sizes = {"small": 1.0, "large": 0.5}
    steps = [
        table_of(PUBLISHED, step=step, size=size, tokens_per_second=np.linspace(1, 2, 6)).assign(
            loss=lambda rows, by=by, step=step: rows["loss"] + by / step
        )
        for size, by in sizes.items()
        for step in (1, 2, 3)
    ]
    file, out = write(pd.concat(steps)), tmp_path / "out"
    words = ["--baseline", "control", "--by", "size", "--target", "2.1", "--margin", "0.02"]
    assert main(["compare", file, *words, "--out", str(out), "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    page = (out / "report.html").read_text("utf-8")
    assert all(f"size {size}" in page for size in sizes)
    assert {path.suffix for path in (out / "tables").iterdir()} == {".csv", ".md", ".tex"}
    opened = la.open(out)
    assert opened.comparison()["difference"].tolist() == pytest.approx(
        [row["difference"] for row in values["comparison"]]
    )
    assert len(opened.targets()) == len(values["target"]) == 4
    assert (len(opened.runs), len(opened.curves), len(opened.metrics)) == (12, 36, 36)


WRONG = {
    "--baseline contrl": "no such variant; allowed: candidate, control; did you mean 'control'?",
    "--seed sed": "seed sed: no such column; allowed: loss, seed, variant; did you mean 'seed'?",
    "--pattern foo": "needs {variant} or {seed}",
    "--pattern {variant}-s{seed}": "'runs' does not fit --pattern",
    "--margin -1": "margin -1.0",
    "--target 2": "target: needs",
    "--step variant": "need columns of their own",
    "--documents runs.csv": "documents: needs the columns",
    "--unpaired --documents runs.csv": "documents: give the error of pairs",
}
TABLES = {
    "no seed in common": (table_of(PUBLISHED).assign(seed=range(6)), "--unpaired"),
    "a run twice": (
        pd.concat([table_of(PUBLISHED)] * 2),
        "variant control, seed 0: is given twice",
    ),
    "no seed": (table_of(PUBLISHED).drop(columns="seed"), "--seed COLUMN"),
    "no numbers": (table_of(PUBLISHED).assign(loss="x"), "loss 'x': is not a number, in row 1"),
    "no loss": (table_of(PUBLISHED).rename(columns={"loss": "speed"}), "--metric COLUMN"),
    "one variant": (table_of({"control": [1, 2]}), "no other variant"),
}


@pytest.mark.parametrize("words", WRONG)
def test_wrong_options_are_refused_in_one_line(write, words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(table_of(PUBLISHED))
    baseline = [] if "--baseline" in words else ["--baseline", "control"]
    assert main(["compare", "runs.csv", *baseline, *words.split(), "--out", "out"]) == 2
    said = capsys.readouterr().err
    assert WRONG[words] in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_cannot_be_compared_is_refused_in_one_line(write, name, capsys):
    table, said = TABLES[name]
    assert main(["compare", write(table), "--baseline", "control"]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("file", "text"),
    [("runs.txt", ""), ("runs.csv", ""), ("runs.jsonl", "{"), ("runs.parquet", "x")],
)
def test_a_file_that_cannot_be_read_is_named(file, text, tmp_path, capsys):
    (tmp_path / file).write_text(text)
    assert main(["compare", str(tmp_path / file), "--baseline", "control"]) == 2
    assert file in capsys.readouterr().err


def test_a_damaged_folder_is_named_when_it_is_opened(tmp_path):
    compared = la.compare(table_of(PUBLISHED), "control")
    for name in ("points.csv", "compare.json"):
        compared.save(tmp_path)
        (tmp_path / name).write_text("x")
        with pytest.raises(la.ConfigError):
            la.open(tmp_path)
