"""How runs ended never inverts a comparison: a law over random curves, and what readers see."""

import itertools
import math
from collections import defaultdict
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from llama_ablate.commands import status
from llama_ablate.findings import union
from llama_ablate.findings.answer import headline
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.factors import describe_steps, estimate_factors
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.hypotheses import judge_hypotheses
from llama_ablate.findings.outcomes import describe_stability, milder_outcomes
from llama_ablate.findings.stages import find_runs
from llama_ablate.results.snapshot import RunStatus
from llama_ablate.training.loop import outcome
from tests import plans, tables
from tests.metrics import measured
from tests.tables import sentences_of as warnings

CHANCE, UNIGRAM = math.log(61), 3.3
ARMS, SEEDS, RATES, EVALUATIONS = ("base", "low", "high", "other"), range(3), (0.1, 0.2), 9
LOST = {"diverged", "collapsed"}
STEADY = {"grad_norm": 0.5}


def results_of(curves, planned=0, **experiment):
    """What a report reads of runs with these held-out losses, by arm, seed and rate.

    Each ends as the training loop would say.
    Of each arm so many seeds are `planned`, if that is more.
    """
    ids = {key: plans.id_of(*key) for key in curves}
    arms, rates = (list(dict.fromkeys(key[i] for key in curves)) for i in (0, 2))
    variants = [plans.variant(arm, arm, baseline=i == 0) for i, arm in enumerate(arms)]
    runs = [
        plans.run(ids[arm, seed, rate], arm, seed, tuned={"lr": rate} if len(rates) > 1 else {})
        for arm, seed, rate in curves
    ]
    runs += [
        plans.run(plans.id_of(arm, seed), arm, seed)
        for seed in range(len(curves) // len(arms), planned)
        for arm in arms
    ]
    tune = {"tune": {"lr": rates}} if len(rates) > 1 else {}
    seeds = len({seed for _, seed, _ in curves})
    plan = plans.document(plans.table(variants, runs), **{"seeds": seeds, **tune, **experiment})
    points = {ids[key]: points_of(own) for key, own in curves.items()}
    records = {}
    for (arm, seed, rate), own in curves.items():
        id_ = ids[arm, seed, rate]
        word, reason = outcome(points[id_], CHANCE, UNIGRAM)
        numbers = measured(test_loss_nats=own[-1], validation_loss_nats=own[-1])
        metrics = {} if word == "diverged" else {"perplexity": numbers}
        about = {"id": id_, "label": arm, "variant": arm, "seed": seed, "metrics": metrics}
        records[id_] = replace(plans.RECORD, **about, outcome=word, reason=reason)
    return SimpleNamespace(
        plan=plan,
        root="x",
        finished=records,
        record=records.__getitem__,
        curve=lambda id_: points.get(id_, []),
        variant_metrics=defaultdict(dict),
        protocol=[],
        experiment_text="",
        folder=lambda _run: None,
        statuses=[
            RunStatus(r.id, r.label, r.seed, r.outcome, r.reason, name=f"{r.label} s{r.seed}")
            for r in records.values()
        ],
    )


def points_of(losses):
    """A curve whose training loss is the held-out loss, from where it began on."""
    return [
        {"train_loss_nats": loss, "validation_loss_nats": loss, **STEADY, "step": n, "tokens": n}
        for n, loss in enumerate(losses)
    ]


def drawn(generator):
    """Losses of an arm that learns, falls too slowly, is stuck near chance, or is thrown back."""
    start = generator.uniform(CHANCE - 0.3, CHANCE + 0.3)
    end = generator.choice([2.5, UNIGRAM - 0.1, UNIGRAM, UNIGRAM, UNIGRAM + 0.1, CHANCE + 0.5])
    speed = generator.choice([0.2, 3.0, 20.0, 40.0])
    share = (1 - np.exp(-speed * np.linspace(0, 1, EVALUATIONS))) / (1 - math.exp(-speed))
    return start + (end - start) * share + generator.normal(0, 0.01, EVALUATIONS)


def random_curves(generator):
    """Curves of four arms; of `low` and `high` the first is at most the second everywhere."""
    rates = RATES[: generator.integers(1, 3)]
    curves = {}
    for rate in rates:
        kinds = {arm: drawn(generator) for arm in ARMS}
        for arm, seed in itertools.product(ARMS, SEEDS):
            curves[arm, seed, rate] = kinds[arm] + generator.normal(0, 0.02, EVALUATIONS)
            if generator.random() < 0.1:
                curves[arm, seed, rate] = drawn(generator)
    gap = generator.choice([0.0, 0.02, 0.3]) * np.ones(EVALUATIONS)
    if generator.random() < 0.4:  # it falls from above, towards an arm that may be stuck
        gap = np.linspace(1.0, 0.01, EVALUATIONS)
    for seed, rate in itertools.product(SEEDS, rates):
        above = gap * generator.uniform(0.9, 1.0, EVALUATIONS)
        curves["high", seed, rate] = curves["low", seed, rate] + above
    if generator.random() < 0.5:  # an arm of the pair is the baseline, or neither
        first = str(generator.choice(["low", "high"]))
        curves = {k: v for k, v in curves.items() if k[0] == first} | curves
    return curves


def no_lower(curves, first, second):
    """Whether no evaluation of the second is lower than that of the first, in any seed."""
    return all((curves[b] >= curves[a]).all() for a, b in zip(first, second, strict=True))


def test_a_run_that_is_lower_at_every_evaluation_is_never_put_below_another(volume):
    generator, seen = np.random.default_rng(1), set()
    for _ in range(volume(16, 200, 1_000)):
        curves = random_curves(generator)
        results = results_of(curves)
        frames = Frames.of(results)
        table, runs = frames.table, find_runs(frames.table)
        rows = compare_variants(table).set_index("label")
        shares = describe_stability(runs).set_index("label")
        rates = list(dict.fromkeys(rate for *_, rate in curves))
        keys = {arm: [k for k in sorted(curves) if k[0] == arm] for arm in ARMS}
        for low, high in itertools.permutations(ARMS, 2):
            if not no_lower(curves, keys[low], keys[high]):
                continue
            better, worse = rows.loc[low], rows.loc[high]
            seen |= {(better["verdict"], worse["verdict"])}
            assert (better["verdict"], worse["verdict"]) != ("worse", "better")
            assert better["verdict"] not in LOST or worse["verdict"] in LOST
            if rows.loc[high, "baseline"]:
                assert better["verdict"] not in {"worse", *LOST}
            if rows.loc[low, "baseline"]:
                assert worse["verdict"] != "better"
            # Counts, and with them the exit code, which asks whether any run was lost.
            lost = [shares.loc[arm, ["diverged", "collapsed"]].sum() for arm in (low, high)]
            assert lost[0] <= lost[1]
            assert shares.loc[low, "diverged"] <= shares.loc[high, "diverged"]
            if rows.loc[low, "point"] == rows.loc[high, "point"]:
                assert better["lost"] <= worse["lost"]
        for arm, (one, other) in itertools.product(ARMS, itertools.permutations(rates, 2)):
            own = [[k for k in keys[arm] if k[2] == rate] for rate in (one, other)]
            if no_lower(curves, *own) and not no_lower(curves, *reversed(own)):
                assert rows.loc[arm, "point"] == f"lr {one}"
        told = {run.id: run.outcome for run in status.list_needed(results, ())}
        assert told == runs.set_index("id")["outcome"].to_dict()
    assert len({better for better, _ in seen}) > 3


#: 156 steps on Tiny Shakespeare's bytes, where token frequencies give 3.297 nats.
FALLING = np.array([5.045, 4.445, 3.971, 3.665, 3.488, 3.388, 3.328, 3.291, 3.269])


def towards(end, seed=0):
    """Losses like those of a run that still falls, to another end."""
    return FALLING + np.linspace(0, end - FALLING[-1], EVALUATIONS) + seed / 50


def stuck(at=UNIGRAM, seed=0):
    return np.full(EVALUATIONS, at) + seed / 50


def arms(**losses):
    """Curves of two seeds of some arms at one rate: by arm what makes its losses of a seed."""
    return {(arm, seed, 0.1): of(seed) for arm, of in losses.items() for seed in range(2)}


def verdicts(frames):
    return compare_variants(frames.table).set_index("label")["verdict"].to_dict()


def test_one_arm_that_was_too_short_makes_its_row_too_short_with_its_difference():
    ends = {"base": 3.27, "better": 3.2, "learns": 3.1, "short": 3.3}
    curves = arms(**{arm: partial(towards, end) for arm, end in ends.items()})
    stated = [{"variant": "better", "direction": "better"}]
    frames = Frames.of(results_of(curves, hypotheses=stated))
    rows = compare_variants(frames.table).set_index("label")
    (tested,) = judge_hypotheses(frames).to_dict("records")
    assert tested["result"] == "undecidable"
    assert tested["why"].startswith("too short: base, seed 0: the loss ended at 3.270")
    assert list(rows["verdict"]) == ["baseline", "too short", "too short", "too short"]
    assert rows["too_short"].to_dict() == {"base": 2, "better": 0, "learns": 0, "short": 2}
    assert rows.loc["better", "difference"] == pytest.approx(-0.07)
    assert (rows["lost"] == 0).all()
    assert "better, learns and short are too short to compare." in headline(frames)
    assert rows["outcome"].tolist() == ["2 too short", "2 ok", "2 ok", "2 too short"]
    (told,) = (w for w in warnings(frames) if "too short to compare" in w)
    assert told.startswith("4 of 8 runs are too short to compare: base, seed 0 (the loss")


def test_a_table_whose_runs_are_too_short_ends_at_the_first_look():
    """More seeds of as many steps would be too short as well: nothing more is asked for."""
    curves = {(arm, seed, 0.1): towards(3.3, seed) for arm in ("base", "a") for seed in range(3)}
    results = results_of(curves, seeds={"looks": [3, 6]}, planned=6)
    frames = Frames.of(results)
    assert verdicts(frames)["a"] == "too short"
    assert len(frames.stage.runs) == len(results.finished) == 6


def test_a_run_that_is_stuck_below_one_that_falls_counts_as_too_short_everywhere():
    curves = arms(base=partial(towards, 3.4), flat=partial(stuck, 3.35), far=partial(stuck, 9.0))
    results = results_of(curves)
    ended = [record.outcome for record in results.finished.values()]
    assert ended == ["ok"] * 2 + ["collapsed"] * 4
    frames = Frames.of(results)
    assert frames.runs["outcome"].tolist() == ["ok"] * 4 + ["collapsed"] * 2
    assert verdicts(frames) == {"base": "baseline", "flat": "too short", "far": "collapsed"}
    flat = frames.runs.set_index("id").loc[plans.id_of("flat", 0, 0.1)]
    assert flat["too_short"]
    assert flat["reason"].endswith("'base' lies no lower at any evaluation")
    assert flat["test_loss_nats"] == pytest.approx(3.35)
    answer = status._once(results)
    assert answer.code == 1
    assert "flat  2 too short" in answer.text
    assert "far s0: collapsed" in answer.text
    alone = results_of({key: own for key, own in curves.items() if key[0] != "far"})
    assert status._once(alone).code == 0


def test_losses_of_other_steps_or_tokens_excuse_nothing():
    curves = arms(base=partial(towards, 3.4), flat=partial(stuck, 3.35))
    other = results_of({k: own if k[0] == "flat" else own[1:] for k, own in curves.items()})
    assert verdicts(Frames.of(other))["flat"] == "collapsed"
    results = results_of(curves)
    (table,) = results.plan.tables
    base, flat = table.variants
    text = table.text.model_copy(update={"fingerprint": "g"})
    table = table.model_copy(update={"variants": [base, flat.model_copy(update={"text": text})]})
    runs = [RunStatus(r.id, r.label, r.seed, r.outcome) for r in results.finished.values()]
    assert milder_outcomes(runs, results.curve, [table]) == {}


def test_experiments_that_are_joined_excuse_each_others_runs():
    """In its own experiment an arm is the only one near chance; another's falls from above it."""
    learns = partial(towards, 2.5)
    alone = Frames.of(results_of(arms(base=learns, flat=partial(stuck, 3.35))))
    other = Frames.of(results_of(arms(base=learns, falls=partial(towards, 3.4))))
    assert verdicts(alone)["flat"] == "collapsed"
    joined = verdicts(union.union([alone, other]))
    assert joined == {"base": "baseline", "flat": "too short", "falls": "too short"}


LOSSES = {"00": [2.0, 2.1, 2.2], "01": [2.02, 2.1, 2.2]}
LOSSES |= {"10": [2.5, 2.6, 2.7], "11": [2.51, 2.63, 2.7]}


def test_an_effect_is_judged_by_how_the_runs_of_its_cells_ended():
    def words(losses, short=""):
        table = tables.frames({"": losses}, levels=tables.SQUARE).table
        runs = tables.changed(
            table.planned, lambda run: (run.label, run.seed) == (short, 0), too_short=True
        )
        found = estimate_factors(replace(table, planned=runs))
        return found.set_index("factor")["verdict"].to_dict()

    assert words(LOSSES) == {
        "norm": "worse",
        "block": "inconclusive",
        "norm x block": "inconclusive",
    }
    assert set(words(LOSSES, short="01").values()) == {"too short"}
    lost = [*LOSSES["11"][:2], "collapsed"]
    assert words(LOSSES | {"11": lost})["norm"] == "worse"  # a lost run only makes it worse
    lost = [*LOSSES["00"][:2], "collapsed"]
    assert words(LOSSES | {"00": lost})["norm"] == "inconclusive"


def test_a_step_is_judged_by_how_the_runs_of_both_its_variants_ended():
    path = {"base": [2.0, 2.1, 2.2], "one": ["collapsed"] * 3, "two": [1.0, 1.1, 1.21]}
    table = tables.frames({"": path}, variants={"design": "path"}).table
    assert list(describe_steps(table)["verdict"]) == ["collapsed", "inconclusive"]
