"""The headline answers the question of the file: hypotheses, all tables, steps in their order."""

import itertools

import pytest

from llama_ablate.findings.answer import MAX_WORDS, answer, headline
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.factors import describe_steps, estimate_factors
from tests.tables import frames, sentences_of

BASE = [2.0, 2.2, 2.1, 2.3, 2.15]
SIZE = " On python-stdlib, at 1,000 parameters and 0.064 tokens a parameter; 5 seeds."
NOISE = [0.01, -0.01, 0.005, -0.005, 0.0]


def moved(by, noise=1.0, base=BASE):
    """Losses that lie by so much beside the baseline's, with a standard deviation of 0.008."""
    return [loss + by + noise * own for loss, own in zip(base, NOISE, strict=True)]


def test_the_answer_is_a_sentence_with_both_names_the_number_its_unit_and_the_size():
    told = headline(frames({"": {"base": BASE, "a": moved(-0.1)}}))
    assert told == "a beats base by 0.1000 nats [0.0902, 0.1098]." + SIZE
    told = headline(frames({"": {"base": BASE, "a": moved(0.1)}}))
    assert told.startswith("a is worse than base by 0.1000 nats [0.0902, 0.1098].")
    told = headline(frames({"": {"base": BASE, "a": moved(0.001)}}, margin="0.02 nats"))
    number = "(+0.0010 nats [-0.0088, +0.0108])"
    assert told.startswith(f"a is equivalent to base within 0.02 nats {number}.")
    told = headline(frames({"": {"base": BASE, "a": moved(0.001)}}))
    assert told.startswith(f"a is inconclusive against base {number}.")


def test_a_variant_equal_bit_for_bit_is_equivalent_where_no_margin_is_given():
    told = headline(frames({"": {"base": BASE, "a": BASE}}))
    assert told.startswith("a is equivalent to base (+0.0000 nats [+0.0000, +0.0000]).")


def test_of_a_baseline_alone_the_scope_is_told_and_that_nothing_is_compared():
    alone = frames({"": {"base": BASE}})
    assert headline(alone) == "There are no variants to compare." + SIZE


def test_hypotheses_follow_the_table_with_the_numbers_that_it_does_not_have():
    stated = [
        {"variant": "a", "direction": "better"},
        {"variant": "b", "direction": "better"},
        {"variant": "a", "against": "b", "direction": "better", "margin": "0.2 nats"},
    ]
    losses = {"base": BASE, "a": moved(-0.1), "b": moved(0.1)}
    told = headline(frames({"": losses}, hypotheses=stated))
    # Half widths: 0.0079 / sqrt(5) x t(1 - 0.05 / 4, 4 + 3) = 2.841: 0.010.
    assert told == (
        "a beats base by 0.100 nats [0.090, 0.110]; b is worse by 0.100 nats [0.090, 0.110]. "
        "Supported: 'a is better than base'. Refuted: 'b is better than base'. "
        "Undecided: 'a is better than b by more than 0.2 nats'." + SIZE
    )


def test_over_many_tables_it_is_counted_in_how_many_a_variant_is_what():
    gains = {"one": 0.0, "two": -0.1, "three": -0.2, "four": -0.3, "five": -0.4}
    told = headline(frames({name: {"base": BASE, "a": moved(by)} for name, by in gains.items()}))
    counted = "better in 4 and inconclusive in 1 of 5 tables."
    assert told == f"a against base is {counted}" + SIZE


def test_a_path_tells_which_steps_help_and_which_decide_nothing():
    """The last variant is better than the baseline, and its own step is not."""
    losses = {"base": BASE, "+a": moved(0.001), "+b": moved(-0.2, 1.5), "+c": moved(-0.201)}
    losses["+d"] = ["pending"] * 5
    told = headline(frames({"": losses}, variants={"design": "path"}))
    assert told == (
        "+b lowers the loss by 0.2010 nats [0.1934, 0.2086]; +a and +c are inconclusive; "
        "+d is pending." + SIZE
    )


@pytest.mark.parametrize("end", ["failed", "pending", "diverged"])
def test_how_a_variants_runs_ended_is_a_verdict_of_its_own(end):
    ended = {"failed": "error"}.get(end, end)
    told = headline(frames({"": {"base": BASE, "lost": [ended] * 5}}))
    assert told.startswith("lost is pending." if end == "pending" else f"lost {end}.")


def test_where_the_repeated_baseline_differs_in_its_one_seed_the_answer_decides_nothing():
    losses = {"base": BASE, "a": moved(-0.1), "again": [BASE[0] + 1e-6]}
    again = {"changes": {"again": {"reseed": "none"}}, "roles": {"again": "aa"}}
    stated = [{"variant": "a", "direction": "better"}]
    told = headline(frames({"": losses}, **again, hypotheses=stated))
    assert told.startswith("a is inconclusive against base (-0.100 nats [-inf, +inf]).")
    assert "Undecided: 'a is better than base'." in told
    told = headline(frames({"": {**losses, "again": BASE[:1]}}, **again))
    assert told == "a beats base by 0.1000 nats [0.0902, 0.1098]." + SIZE


CELLS = list(itertools.product((0, 1), repeat=2))
PRODUCT = {"design": "product", "axes": {"norm": ["a", "b"], "block": ["a", "b"]}}


def test_a_factorial_design_names_the_effects_that_decide():
    levels = {f"{n}{b}": {"norm": n, "block": b} for n, b in CELLS}
    losses = {f"{n}{b}": moved(-0.3 * n, 1 - n / 2 + b / 3) for n, b in CELLS}
    told = headline(frames({"": losses}, levels=levels, variants=PRODUCT))
    assert told.startswith(
        "On average over the other factors, norm1 instead of norm0 is better by 0.3000 nats"
    )
    assert "; no interaction was shown." in told


def muon(**train):
    return {"train": {"optimizer": {"name": "muon"}, **train}}


UNTUNED = {
    "another optimizer at one rate": ({"a": muon()}, {}, {"a"}),
    "a rate of its own": ({"a": muon(lr=0.01)}, {}, set()),
    "tuned": ({"a": muon()}, {"tune": {"lr": [0.1, 0.2]}}, set()),
    "a control": ({"a": {**muon(), "role": "positive"}}, {}, set()),
}


@pytest.mark.parametrize("case", UNTUNED)
def test_a_row_of_another_optimizer_at_one_rate_says_so(case):
    """Lion beside AdamW at AdamW's rate was called worse, without a word."""
    changes, experiment, marked = UNTUNED[case]
    stated = {"hypotheses": [{"variant": "a", "direction": "better"}], **experiment}
    losses = {"base": BASE, "a": moved(-0.1), "b": moved(0.1)}
    made = frames({"": losses}, changes=changes, **stated)
    remarks = compare_variants(made.table).set_index("label")["rate"]
    assert {*remarks[remarks != ""].index} == marked
    assert {*remarks} <= {"", "one rate for all: not tuned"}
    told = [line for line in sentences_of(made) if "with one rate for all" in line]
    assert len(told) == len(marked)
    assert headline(made).count("one rate for all: not tuned") == len(marked)
    assert ("each variant at the lr chosen for it." in headline(made)) == ("tune" in experiment)


def test_a_factor_and_a_step_of_another_optimizer_say_so_too():
    made = frames(
        {"": {f"{n}{o}": moved(-0.1 * n + 0.2 * o, 1 + n / 3 + o / 5) for n, o in CELLS}},
        levels={f"{n}{o}": {"norm": n, "train.optimizer": o} for n, o in CELLS},
        changes={f"{n}1": muon() for n in (0, 1)},
        variants=PRODUCT,
    )
    found = estimate_factors(made.table).set_index("factor")["rate"]
    assert [*found[found != ""].index] == ["train.optimizer", "norm x train.optimizer"]
    assert headline(made).count(" (one rate for all: not tuned)") == 1
    path = {"base": BASE, "+muon": moved(0.1), "+b": moved(0.2)}
    made = frames({"": path}, changes={"+muon": muon(), "+b": muon()}, variants={"design": "path"})
    steps = describe_steps(made.table).set_index("step")["rate"]
    assert [*steps] == ["one rate for all: not tuned", ""]  # muon before and after


def test_where_a_cost_is_asked_for_the_answer_names_what_is_cheaper_and_as_good():
    gaps = {"mqa": 0.001, "gqa": -0.1, "none": 0.1, "wide": -0.2}
    losses = {"mha (baseline)": BASE, **{label: moved(gap) for label, gap in gaps.items()}}
    sizes = {"mha (baseline)": 64, "mqa": 8, "gqa": 16, "none": 0, "wide": 128}
    changes = {label: {"state_bytes": 100 * n} for label, n in sizes.items()}
    asked = {"margin": "0.03 nats", "answer": {"cost": "kv_cache"}}
    told = headline(frames({"": losses}, changes=changes, **asked))
    assert told.startswith(
        "mqa needs 1/8 of the state bytes at 128 tokens and is equivalent within 0.03 nats (+0.001"
    )
    assert "; gqa needs 1/4 and is better (-0.100 nats [" in told
    assert "; none needs 0 and is worse (+0.100 nats [" in told
    assert "wide" not in told  # which costs more
    for label in ("mqa", "gqa"):
        losses[label] = moved(0.1)
    told = headline(frames({"": losses}, changes=changes, **asked))
    assert (
        "No variant that needs less of the state bytes at 128 tokens is shown to be as good" in told
    )
    alike = {label: {"state_bytes": 100} for label in losses}
    assert " needs " not in headline(frames({"": losses}, changes=alike, **asked))


def test_an_answer_has_sixty_words_at_most_and_keeps_its_first_sentence():
    arms = {f"variant number {n}": moved(0.1 * (n - 6)) for n in range(13)}
    stated = [{"variant": name, "direction": "better"} for name in [*arms][:3]]
    tables = {"one": {"base": BASE, **arms}, "two": {"base": BASE, **arms}}
    told = answer(frames(tables, hypotheses=stated))
    assert len(told.split()) <= MAX_WORDS
    assert told.startswith("In 'one': variant number 0 beats base by")


def test_a_warning_is_one_for_all_that_it_is_about_and_the_gravest_comes_first():
    losses = {"base": BASE, "a": ["diverged"] * 5, "b": [*moved(0.1)[:4], "pending"]}
    told = sentences_of(frames({"": losses}))
    assert told[0].startswith("1 of 15 planned runs have not finished")
    assert told[1].startswith("5 of 15 runs diverged or collapsed, of 'a'")
    assert len([line for line in told if "diverged" in line]) == 1
