import json
import re
from collections import Counter

import pytest

from llama_ablate.data.task_items import task
from llama_ablate.errors import ConfigError

CHOICE = {"context": "Two and two are", "choices": ["four", "a fish"], "answer": 0}
PAIR = {"sentence_good": "The cat sleeps.", "sentence_bad": "The cat sleep."}
LAST = {"text": "He put the key into the lock"}


@pytest.fixture
def file(tmp_path):
    def write(*items, name="own.jsonl"):
        lines = [one if isinstance(one, str) else json.dumps(one) for one in items]
        (tmp_path / name).write_text("\n".join(lines), "utf-8")
        return str(tmp_path / name)

    return write


def test_items_of_each_kind_are_read_as_they_are_scored(file):
    choice = task(file(CHOICE, {**CHOICE, "answer": "a fish"}))
    assert choice.kind == "multiple choice"
    assert choice.items[0].context == "Two and two are"
    assert choice.items[0].continuations == (" four", " a fish")
    assert [item.answer for item in choice.items] == [0, 1]
    pair = task(file(PAIR)).items[0]
    assert (pair.context, pair.continuations) == ("", ("The cat sleeps.", "The cat sleep."))
    last = task(file(LAST)).items[0]
    assert (last.context, last.continuations) == ("He put the key into the", (" lock",))
    given = task(file({"context": "He put the key into the ", "target": "lock"})).items[0]
    assert given.continuations == ("lock",)


def test_chance_is_the_mean_over_items_of_one_over_their_choices(file):
    three = {**CHOICE, "choices": ["a", "b", "c"]}
    assert task(file(CHOICE, three)).chance == (1 / 2 + 1 / 3) / 2
    assert task(file(LAST)).chance is None


@pytest.mark.parametrize(
    ("items", "message"),
    [
        (["{"], "own.jsonl:1: Invalid JSON: "),
        ([{"question": "?"}], "own.jsonl:1: no item of a task, which has one of: 'choices' and"),
        ([{**CHOICE, "answer": 2}], "'answer' is 2: must be from 0 to 1, the place of the right"),
        ([{**PAIR, "sentence_bad": PAIR["sentence_good"]}], "both sentences are the same"),
        ([PAIR, LAST], "own.jsonl:2: an item of last words, and those before are of minimal pairs"),
    ],
)
def test_a_file_that_is_no_task_is_refused_with_its_line(file, items, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as refused:
        task(file(*items))
    assert refused.value.where == ("task",)
    assert "\n" not in refused.value.message


def test_the_built_in_pairs_are_200_of_8_phenomena_and_always_the_same():
    pairs = task("minimal-pairs")
    assert (pairs.name, pairs.kind) == ("minimal-pairs", "minimal pairs")
    phenomena = Counter(item.group for item in pairs.items)
    assert (len(phenomena), {*phenomena.values()}) == (8, {25})
    assert len({item.choices for item in pairs.items}) == 200
    # Of the pairs as they were made: a change here makes earlier accuracies other ones.
    assert pairs.fingerprint == "9f248dfd"
