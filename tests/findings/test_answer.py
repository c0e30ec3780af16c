"""The headline answers the question of the file: hypotheses, all tables, steps in their order."""

import re

import pytest

from llama_ablate.findings.answer import MAX_WORDS, answer, headline
from llama_ablate.findings.comparison import compare_variants
from llama_ablate.findings.factors import describe_steps, estimate_factors
from tests.tables import BASE, PRODUCT, SQUARE, frames, move, sentences_of

PATH = {"design": "path"}


def muon(**train):
    return {"train": {"optimizer": {"name": "muon"}, **train}}


@pytest.mark.parametrize(
    ("losses", "margin", "verb"),
    [
        (move(-0.1), None, "beats"),
        (move(0.1), None, "is worse than"),
        (move(0.001), "0.02 nats", "is equivalent to"),
        (move(0.001), None, "is inconclusive against"),
    ],
)
def test_the_answer_is_a_sentence_with_the_verdict_and_the_numbers_of_the_row(losses, margin, verb):
    made = frames({"": {"base": BASE, "a": losses}}, **({"margin": margin} if margin else {}))
    told, row = headline(made), compare_variants(made.table).iloc[1]
    assert told.startswith(f"a {verb} base")
    assert told.endswith("at 1,000 parameters and 0.064 tokens a parameter; 5 seeds.")
    numbers = [abs(float(n)) for n in re.findall(r"[-+\d]*\d\.\d{4}", told)]
    ends = sorted(abs(row[name]) for name in ("difference", "low", "high"))
    assert sorted(numbers) == pytest.approx(ends, abs=6e-5)


def test_hypotheses_follow_the_table_with_their_results():
    stated = [
        {"variant": "a", "direction": "better"},
        {"variant": "b", "direction": "better"},
        {"variant": "a", "against": "b", "direction": "better", "margin": "0.2 nats"},
    ]
    losses = {"base": BASE, "a": move(-0.1), "b": move(0.1)}
    told = headline(frames({"": losses}, hypotheses=stated))
    results = re.findall(r"(Supported|Refuted|Undecided): '(\w) is better than (\w+)", told)
    pairs = [("a", "base"), ("b", "base"), ("a", "b")]
    assert [of[1:] for of in results] == pairs
    assert [word for word, *_ in results] == ["Supported", "Refuted", "Undecided"]


def test_over_many_tables_it_is_counted_in_how_many_a_variant_is_what():
    gains = {"one": 0.0, "two": -0.1, "three": -0.2, "four": -0.3, "five": -0.4}
    told = headline(frames({name: {"base": BASE, "a": move(by)} for name, by in gains.items()}))
    assert told.startswith("a against base is better in 4 and inconclusive in 1 of 5 tables.")


def test_a_path_tells_which_steps_help_and_which_decide_nothing():
    """The last variant is better than the baseline, and its own step is not."""
    losses = {"base": BASE, "+a": move(0.001), "+b": move(-0.2, 1.5), "+c": move(-0.201)}
    losses["+d"] = ["pending"] * 5
    told = headline(frames({"": losses}, variants=PATH))
    assert told.startswith("+b lowers the loss by 0.2010 nats [0.1934, 0.2086]; +a and +c are inc")


def test_a_factorial_design_names_the_effects_that_decide():
    losses = {f"{n}{b}": move(-0.3 * n, 1 - n / 2 + b / 3) for n in (0, 1) for b in (0, 1)}
    told = headline(frames({"": losses}, levels=SQUARE, variants=PRODUCT))
    assert "norm1 instead of norm0 is better by 0.3000 nats" in told
    assert "no interaction was shown" in told


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
    losses = {"base": BASE, "a": move(-0.1), "b": move(0.1)}
    made = frames({"": losses}, changes=changes, **experiment)
    remarks = compare_variants(made.table).set_index("label")["rate"]
    assert {*remarks[remarks != ""].index} == marked
    assert {*remarks} <= {"", "one rate for all: not tuned"}
    assert sum("with one rate for all" in line for line in sentences_of(made)) == len(marked)
    assert headline(made).count("one rate for all: not tuned") == len(marked)


def test_a_factor_and_a_step_of_another_optimizer_say_so_too():
    levels = {cell: {"norm": int(cell[0]), "train.optimizer": int(cell[1])} for cell in SQUARE}
    losses = {cell: move(0.1 * i, 1 + i / 3) for i, cell in enumerate(levels)}
    changes = {"01": muon(), "11": muon()}
    made = frames({"": losses}, levels=levels, changes=changes, variants=PRODUCT)
    found = estimate_factors(made.table)
    assert (found["rate"] != "").tolist() == found["factor"].str.contains("optimizer").tolist()
    path = {"base": BASE, "+muon": move(0.1), "+b": move(0.2)}
    made = frames({"": path}, changes={"+muon": muon(), "+b": muon()}, variants=PATH)
    steps = describe_steps(made.table)["rate"]
    assert [*steps] == ["one rate for all: not tuned", ""]  # muon before and after


def test_where_a_cost_is_asked_for_the_answer_names_what_is_cheaper_and_as_good():
    gaps = {"mqa": 0.001, "gqa": -0.1, "none": 0.1, "wide": -0.2}
    losses = {"mha (baseline)": BASE, **{label: move(gap) for label, gap in gaps.items()}}
    sizes = {"mha (baseline)": 64, "mqa": 8, "gqa": 16, "none": 0, "wide": 128}
    changes = {label: {"state_bytes": 100 * n} for label, n in sizes.items()}
    asked = {"margin": "0.03 nats", "answer": {"cost": "kv_cache"}}
    told = headline(frames({"": losses}, changes=changes, **asked))
    named = re.findall(r"(\w+) needs (\S+).*? is (\w+)", told)
    assert named == [("mqa", "1/8", "equivalent"), ("gqa", "1/4", "better"), ("none", "0", "worse")]
    for label in ("mqa", "gqa"):
        losses[label] = move(0.1)
    told = headline(frames({"": losses}, changes=changes, **asked))
    assert "No variant that needs less" in told


def test_an_answer_has_sixty_words_at_most_and_keeps_its_first_sentence():
    arms = {f"variant number {n}": move(0.1 * (n - 6)) for n in range(13)}
    stated = [{"variant": name, "direction": "better"} for name in [*arms][:3]]
    tables = {"one": {"base": BASE, **arms}, "two": {"base": BASE, **arms}}
    told = answer(frames(tables, hypotheses=stated))
    assert len(told.split()) <= MAX_WORDS
    assert told.startswith("In 'one': variant number 0 beats base by")
