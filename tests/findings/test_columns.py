"""Frames of findings have the declared columns, of whole packs, of unfinished ones and of none."""

import math
import random
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from llama_ablate.findings import (
    comparison,
    controls,
    factors,
    hypotheses,
    others,
    outcomes,
    sizes,
    stages,
    tuning,
)
from llama_ablate.findings.columns import COLUMNS, list_means
from llama_ablate.findings.frames import Frames
from llama_ablate.results import Results
from tests import tables

REFERENCE = Path(__file__).parents[2] / "results/reference"


def frames_of(frames):
    """Yield every frame of findings, with the section of its columns."""
    for table in frames.tables:
        runs = stages.find_runs(table)
        yield "comparison", comparison.compare_variants(table)
        yield "factors", factors.estimate_factors(table)
        yield "axes", factors.compare_axes(table)
        yield "steps", factors.describe_steps(table)
        yield "other_metrics", others.compare_others(table)
        yield "controls", controls.check_controls(table)
        yield "heldout", controls.describe_splits([table], table.plan.name)
        yield "tuning", tuning.describe_tuning(table, runs)
        yield "stability", outcomes.describe_stability(runs)
        yield "lengths", sizes.compare_lengths(table)
        yield "points", sizes.list_points(table)
    yield "hypotheses", hypotheses.judge_hypotheses(frames)
    yield "sizes", sizes.compare_sizes(frames)
    yield "transfer", sizes.find_optima(frames)


def opened(name, share=1.0):
    """Read a pack, of which a share of the runs has finished."""
    results = Results.open(REFERENCE / name)
    ids = [*results.finished]
    kept = {*random.Random(1).sample(ids, int(share * len(ids)))}
    results.finished = {id_: of for id_, of in results.finished.items() if id_ in kept}
    return Frames.of(results)


def kinds(frame):
    """Return the type of each column in the words of `columns.yaml`."""
    words = {"i": "int", "f": "float", "b": "bool"}
    return {name: words.get(of.kind, "str") for name, of in frame.dtypes.items()}


def check_columns(frames):
    """Compare the columns of every frame with those that are declared; return the filled ones."""
    filled = set()
    for section, frame in frames_of(frames):
        found = kinds(frame)
        assert [*found] == [*COLUMNS[section]], section
        if len(frame):
            filled.add(section)
            for name, column in COLUMNS[section].items():
                # Integers and truth values with missing cells are floats.
                allowed = (
                    {column.type} if column.type in ("str", "float") else {column.type, "float"}
                )
                assert found[name] in allowed, (section, name)
    return filled


#: Raced, with two looks, guards and branches.
RACED = "claims/e07-ffn-activation"


def test_every_frame_of_findings_has_the_columns_that_are_declared():
    filled = check_columns(opened("claims/e16-leave-one-out-stack"))
    filled |= check_columns(opened("rate-transfer")) | check_columns(opened("prose"))
    filled |= check_columns(opened(RACED, 0.5))
    made = {"base": [2.0, 2.1], "+a": [1.9, 2.0]}
    filled |= check_columns(tables.frames({"": made}, variants={"design": "path"}))
    assert filled == {section for section, _ in frames_of(tables.frames({"": made}))}


#: Of other kinds: tuned over sizes, a raced grid, tasks with guards, a grid with branches.
PACKS = [RACED, "rate-transfer", "claims/e12-precision", "prose", "atlas/activations"]


@pytest.mark.parametrize("share", [0.6, 0.25])
@pytest.mark.parametrize("name", PACKS)
def test_unfinished_packs_have_all_frames_and_what_is_missing_is_pending(name, share):
    frames = opened(name, share)
    check_columns(frames)
    for table in frames.tables:
        frame = comparison.compare_variants(table)
        reported = stages.find_reported(table)
        ended = reported[reported["outcome"].eq("ok")].groupby("label")["seed"].nunique()
        rows = frame[~frame["baseline"].astype(bool)]
        assert (rows["n"] <= rows["label"].map(ended).fillna(0)).all()
        assert {*rows.loc[rows["n"].eq(0), "verdict"]} <= {
            "pending",
            "failed",
            "diverged",
            "collapsed",
        }
        assert rows.loc[rows["n"].eq(0), "difference"].isna().all()


def test_a_raced_and_branched_pack_whose_baseline_is_pending_compares_nothing():
    results = Results.open(REFERENCE / RACED)
    runs, base = results.plan.runs, results.plan.tables[0].baseline.id
    ended = {id_: of for id_, of in results.finished.items() if runs[id_].variant != base}
    results.finished = ended
    frames = Frames.of(results)
    check_columns(frames)
    assert comparison.compare_variants(frames.table)["difference"][1:].isna().all()


def test_a_mean_is_that_over_runs_of_the_number_of_its_name():
    table = tables.frames({"": {"base": [1.0, 1.0], "other": ["pending"] * 2}}).table
    numbers = pd.Series([2.0, 4.0, math.nan, math.nan])
    planned = table.planned.assign(test_perplexity=numbers, peak_memory_bytes=4 * numbers)
    base, other = comparison.compare_variants(replace(table, planned=planned)).itertuples()
    assert {"perplexity", "peak_memory_bytes"} < {*list_means("comparison")}
    assert (base.perplexity, base.peak_memory_bytes) == (3.0, 12.0)
    assert math.isnan(other.perplexity)
