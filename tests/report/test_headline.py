"""The headline answers the question of the file: hypotheses, all tables, steps in their order."""

import itertools
from dataclasses import replace

import pandas as pd
import pytest

from llama_ablate.findings import contrasts
from llama_ablate.findings.rows import cells
from llama_ablate.findings.rows import frame as framed
from llama_ablate.report import warnings
from llama_ablate.report.headline import facts, headline
from llama_ablate.report.warnings import machines
from tests.tables import frames

BASE = [2.0, 2.2, 2.1, 2.3, 2.15]
UNBOUNDED = " Bias is not bounded: no arm repeats the baseline with nothing changed."
NOISE = [0.01, -0.01, 0.005, -0.005, 0.0]


def moved(by, noise=1.0, base=BASE):
    """Losses that lie by so much beside the baseline's, with a standard deviation of 0.008."""
    return [loss + by + noise * own for loss, own in zip(base, NOISE, strict=True)]


def test_hypotheses_come_first_each_with_its_result_and_its_number():
    stated = [
        {"variant": "a", "direction": "better"},
        {"variant": "b", "direction": "better"},
        {"variant": "a", "against": "b", "direction": "better", "margin": "0.2 nats"},
    ]
    told = headline(
        frames({"": {"base": BASE, "a": moved(-0.1), "b": moved(0.1)}}, hypotheses=stated)
    )
    # Half widths: 0.0079 / sqrt(5) x t(1 - 0.05 / 4, 4) = 3.495: 0.012; of a minus b all equal.
    assert told == (
        "Supported: a is better than base (-0.100 [-0.112, -0.088]). "
        "Refuted: b is better than base (+0.100 [+0.088, +0.112]). "
        "Undecided: a is better than b by more than 0.2 nats "
        "(-0.2000 [-0.2000, -0.2000]). "
        "Against 'base' (difference in nats): better: a (-0.100); worse: b (+0.100)." + UNBOUNDED
    )


def test_of_many_hypotheses_the_undecided_are_counted():
    losses = {"base": BASE, "a": moved(-0.1), **{f"n{i}": moved(0.0, 0.5 + i) for i in range(6)}}
    stated = [{"variant": label, "direction": "better"} for label in list(losses)[1:]]
    made = {"": losses}
    told = headline(frames(made, hypotheses=stated))
    assert told.startswith("Supported: a is better than base (-0.100). Undecided: 6 hypotheses. Ag")
    made = {"": {"base": BASE, **{f"n{i}": moved(-0.1 - i / 9) for i in range(7)}}}
    stated = [{"variant": f"n{i}", "direction": "better"} for i in range(7)]
    told = headline(frames(made, hypotheses=stated))
    assert told.startswith("Supported: n0 is better than base (-0.100); n1 is better than base (")
    assert "and 4 more. Against" in told


def test_a_hypothesis_of_several_tables_is_one_sentence_over_all_of_them():
    stated = [{"variant": "a", "direction": "better", "table": name} for name in ("small", "large")]
    told = headline(
        frames(
            {
                "small": {"base": BASE, "a": moved(0.0)},
                "large": {"base": BASE, "a": moved(-0.1)},
            },
            hypotheses=stated,
        )
    )
    assert told.startswith("Supported: a is better than base (large -0.1000 [")
    assert "Undecided: a is better than base (small +0.0000 [" in told
    assert told.endswith(
        "Against 'base' (difference in nats; small | large): better in large, inconclusive in "
        "small: a (+0.0000 | -0.1000)." + UNBOUNDED
    )


def test_over_many_tables_a_variant_is_said_where_it_differs():
    gains = {"one": 0.0, "two": -0.1, "three": -0.2, "four": -0.3, "five": -0.4}
    told = headline(frames({name: {"base": BASE, "a": moved(by)} for name, by in gains.items()}))
    sentence = "Against 'base' (difference in nats): inconclusive in 1, else better: a."
    assert told == sentence + UNBOUNDED


def test_a_path_tells_its_steps_in_order_each_with_its_own_verdict():
    """The last variant is better than the baseline, and its own step is not."""
    told = headline(
        frames(
            {
                "": {
                    "base": BASE,
                    "+a": moved(0.001),
                    "+b": moved(-0.2, 1.5),
                    "+c": moved(-0.201),
                    "+d": ["pending"] * 5,
                }
            },
            variants={"design": "path"},
        )
    )
    assert told == (
        "Step by step (difference in nats): +a (+0.001, inconclusive), +b (-0.2010, better), "
        "+c (-0.0010, inconclusive), +d (pending)." + UNBOUNDED
    )


def test_of_many_variants_what_decides_is_named_and_the_rest_is_counted():
    losses = {f"good{i}": moved(-0.1 - i / 100) for i in range(7)}
    losses |= {f"none{i}": moved(0.0) for i in range(5)}
    told = headline(frames({"": {"base": BASE, **losses}}))
    assert told == (
        "Against 'base' (difference in nats): better: good6 (-0.160), good5 (-0.150), "
        "good4 (-0.140), good3 (-0.130) and 3 more; inconclusive: 5 others." + UNBOUNDED
    )


@pytest.mark.parametrize("end", ["failed", "pending", "diverged"])
def test_how_a_variants_runs_ended_is_a_verdict_of_its_own(end):
    ended = {"failed": "error"}.get(end, end)
    stated = [{"variant": "lost", "direction": "better", "measure": None}]
    made = frames({"": {"base": BASE, "lost": [ended] * 5}}, hypotheses=stated)
    told = headline(made)
    assert f"{end}: lost" in told
    if end != "diverged":  # else it counts with the loss of chance
        assert told.startswith(f"{end.capitalize()}: lost is better than base.")


def test_where_the_repeated_baseline_differs_in_its_one_seed_the_answer_says_so_before_all_else():
    losses = {"base": BASE, "a": moved(-0.1), "again": [BASE[0] + 1e-6]}
    repeated = {"changes": {"again": {"reseed": "none"}}, "roles": {"again": "aa"}}
    again = {**repeated, "margin": "0.02 nats"}
    told = headline(frames({"": losses}, **again))
    assert told.startswith("No difference is sure: the repeated baseline fails. Against 'base'")
    stated = [{"variant": "a", "direction": "better"}]
    told = headline(frames({"": losses}, **again, hypotheses=stated))
    assert told.startswith("No verdict on the hypothesis: the repeated baseline fails (measured: a")
    assert "No difference is sure" not in told
    told = headline(frames({"": {**losses, "again": BASE[:1]}}, **again))
    assert told == "Against 'base' (difference in nats): better: a (-0.1000)."


def test_where_only_the_positive_control_fails_a_difference_that_was_seen_stands():
    losses = {"base": BASE, "a": moved(-0.1), "harm": moved(0.0)}
    stated = [
        {"variant": "a", "direction": "better"},
        {"variant": "a", "direction": "equivalent", "margin": "0.2 nats"},
    ]
    made = {"roles": {"harm": "positive"}, "margin": "0.02 nats"}
    told = headline(frames({"": losses}, **made, hypotheses=stated))
    assert told.startswith("Supported: a is better than base (-0.100")
    assert "No verdict on 1 of 2 hypotheses: the positive control" in told
    told = headline(frames({"": losses}, **made))
    assert told.startswith("No equivalence is sure: the positive control fails. Against 'base'")


def test_a_factorial_design_names_the_effects_that_decide():
    cells = list(itertools.product((0, 1), repeat=2))
    levels = {f"{n}{b}": {"norm": n, "block": b} for n, b in cells}
    losses = {f"{n}{b}": moved(-0.3 * n, 1 - n / 2 + b / 3) for n, b in cells}
    told = headline(
        frames(
            {"": losses},
            levels=levels,
            variants={"design": "product", "axes": {"norm": ["a", "b"], "block": ["a", "b"]}},
        )
    )
    assert told.startswith("On average over the other factors (difference in nats): better: norm1")
    assert "Interactions: inconclusive: norm1 with block1 (" in told


def test_two_precisions_in_two_tables_are_told_in_one_sentence_and_in_the_facts():
    """As of the rungs of a ladder, each of which is of one precision."""
    made = frames({name: {"base": BASE, "a": moved(0.0)} for name in ("small", "large")})
    assert machines(made) == []
    computed = [pd.DataFrame({"precisions": [p] * 3}) for p in ("float32", "bfloat16")]
    tables = zip(made.tables, computed, strict=True)
    both = replace(made, tables=tuple(replace(t, machines=m) for t, m in tables))
    assert machines(both) == ["The runs were made with different precisions (bfloat16; float32)."]
    assert " in bfloat16 or float32 with the " in facts(both)


def muon(**train):
    return {"train": {"optimizer": {"name": "muon"}, **train}}


UNTUNED = {
    "another optimizer at one rate": ({"a": muon()}, {}, {"a"}),
    "a rate of its own": ({"a": muon(lr=0.01)}, {}, set()),
    "tuned": ({"a": muon()}, {"tune": {"lr": [0.1, 0.2]}}, set()),
    "other options of the same": ({"a": {"train": {"optimizer": {"name": "adamw"}}}}, {}, set()),
    "each at two rates": ({"a": muon(), "b": muon(lr=0.01)}, {}, set()),
    "two of three": ({"a": muon(), "b": {"train": {"optimizer": "sgd", "lr": 1.0}}}, {}, {"a"}),
    "a control": ({"a": {**muon(), "role": "positive"}}, {}, set()),
}


@pytest.mark.parametrize("case", UNTUNED)
def test_a_row_of_another_optimizer_at_one_rate_says_so(case):
    """Lion beside AdamW at AdamW's rate was called worse, without a word."""
    changes, experiment, marked = UNTUNED[case]
    stated = {"hypotheses": [{"variant": "a", "direction": "better"}], **experiment}
    losses = {"base": BASE, "a": moved(-0.1), "b": moved(0.1)}
    made = frames({"": losses}, changes=changes, **stated)
    table = made.table
    remarks = framed(table.comparison).set_index("label")["rate"]
    assert {*remarks[remarks != ""].index} == marked
    assert {*remarks} <= {"", "one rate for all: not tuned"}
    assert ("learning rate" in cells(table.comparison)) == bool(marked)
    planned = [line for line in warnings.planned(table.plan, table.experiment) if "rate" in line]
    assert planned == [line for line in warnings.warnings(made) if "rate" in line]
    assert len(planned) == len(marked)
    assert all("'a' and of 'base' differ, with one rate for all" in line for line in planned)
    told = headline(made)
    assert ("better: a (-0.100; one rate for all: not tuned)" in told) == bool(marked)
    assert told.count("one rate for all: not tuned") == 2 * len(marked)  # and in the hypothesis


def test_a_factor_and_a_step_of_another_optimizer_say_so_too():
    cells = list(itertools.product((0, 1), repeat=2))
    losses = {f"{n}{o}": moved(-0.1 * n + 0.2 * o, 1 + n / 3 + o / 5) for n, o in cells}
    made = frames(
        {"": losses},
        levels={f"{n}{o}": {"norm": n, "train.optimizer": o} for n, o in cells},
        changes={f"{n}1": muon() for n in (0, 1)},
        variants={"design": "product", "axes": {"norm": ["a", "b"]}},
    )
    found = framed(contrasts.factors(made.table)).set_index("factor")["rate"]
    assert [*found[found != ""].index] == ["train.optimizer", "norm x train.optimizer"]
    assert headline(made).count("; one rate for all: not tuned)") == 2
    path = {"base": BASE, "+muon": moved(0.1), "+b": moved(0.2)}
    made = frames({"": path}, changes={"+muon": muon(), "+b": muon()}, variants={"design": "path"})
    steps = framed(contrasts.steps(made.table)).set_index("step")["rate"]
    assert [*steps] == ["one rate for all: not tuned", ""]  # muon before and after
    assert "+muon (+0.100, worse; one rate for all: not tuned), +b (" in headline(made)
    assert headline(made).endswith(
        "; all together +0.200, worse; one rate for all: not tuned." + UNBOUNDED
    )
    assert [*framed(made.table.comparison)["rate"]] == ["", *["one rate for all: not tuned"] * 2]


def test_the_facts_tell_every_matching_and_how_many_seeds_are_reported():
    table = {"base": BASE, "a": moved(0.0)}
    matches = {"matched none": {"match": "none"}, "matched parameters": {"match": "parameters"}}
    told = facts(frames(dict.fromkeys(matches, table), planned=matches))
    assert told.startswith("2 tables, 2 variants, 5 seeds, 64 tokens a run (2 steps of 4 x ")
    assert "not matched or matched on parameters (by table)" in told
    one = facts(frames({"": table}, planned={"": {"match": "active_parameters"}}))
    assert "matched on active_parameters." in one
