import json
import re
from collections import Counter

import pytest
import yaml

from llama_ablate.data.tasks.minimal_pairs import PHENOMENA, minimal_pairs
from llama_ablate.data.tasks.task import BUILT_IN, task, tasks
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


def test_blank_lines_and_a_byte_order_mark_are_no_items(file, tmp_path):
    path = file(PAIR, "", {**PAIR, "group": "verbs"}, "")
    (tmp_path / "own.jsonl").write_bytes(b"\xef\xbb\xbf" + (tmp_path / "own.jsonl").read_bytes())
    items = task(path).items
    assert [item.place.rpartition(":")[2] for item in items] == ["1", "3"]
    assert [item.group for item in items] == ["", "verbs"]


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], "is empty"),
        (["\n"], "holds no items"),
        (["{"], "own.jsonl:1: not JSON: "),
        ([PAIR, "[1]"], "own.jsonl:2: an item is a mapping, not [1]"),
        ([{"question": "?"}], "own.jsonl:1: no item of a task, which has one of: 'choices' and"),
        ([{"choices": ["a", "b"]}], "an item with 'choices' needs 'answer' too"),
        ([{**CHOICE, "choices": ["a"]}], "'choices' has 1: must be two or more"),
        ([{**CHOICE, "choices": "ab"}], "'choices' is 'ab': must be a list of texts"),
        ([{**CHOICE, "choices": ["a", ""]}], "'choices[1]' is '': must be text"),
        ([{**CHOICE, "choices": ["a", 2]}], "'choices[1]' is 2: must be text"),
        ([{**CHOICE, "answer": 2}], "'answer' is 2: must be from 0 to 1, the place of the right"),
        ([{**CHOICE, "answer": -1}], "'answer' is -1: must be from 0 to 1"),
        ([{**CHOICE, "answer": None}], "'answer' is None: must be from 0 to 1"),
        ([{**CHOICE, "answer": True}], "'answer' is True: must be from 0 to 1"),
        ([{**CHOICE, "answer": "five"}], "'answer' is 'five': must be from 0 to 1"),
        ([{**PAIR, "sentence_bad": PAIR["sentence_good"]}], "both sentences are the same"),
        ([{"text": "word"}], "'text' has one word"),
        ([{"target": "word"}], "last words need a 'context' before them"),
        ([PAIR, LAST], "own.jsonl:2: an item of last words, and "),
        (['{"sentence_good": "\\ud800", "sentence_bad": "a"}'], "holds half a character"),
    ],
)
def test_a_file_that_is_no_task_is_refused_with_its_line(file, items, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as refused:
        task(file(*items))
    assert refused.value.where == ("task",)
    assert "\n" not in refused.value.message


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("minimal-pair", "did you mean 'minimal-pairs'?"),
        ("missing.jsonl", "there is no file 'missing.jsonl'"),
        ("items.csv", "neither a task nor a file that ends in .jsonl"),
        (["minimal-pairs", "minimal-pairs"], "two tasks are called 'minimal-pairs'"),
        ([], "name one or more tasks"),
    ],
)
def test_what_names_no_task_is_refused(entries, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        tasks(entries)


def test_a_limit_takes_the_first_items(file):
    (few,) = tasks(file(PAIR, {**PAIR, "group": "b"}, PAIR), limit=2)
    assert [item.place.rpartition(":")[2] for item in few.items] == ["1", "2"]
    assert few.fingerprint != task(file(PAIR)).fingerprint
    with pytest.raises(ConfigError, match="limit 1: must be 2 or more"):
        tasks("minimal-pairs", limit=1)


def test_the_built_in_pairs_are_200_of_8_phenomena_and_always_the_same():
    pairs = minimal_pairs()
    assert Counter(phenomenon for phenomenon, _, _ in pairs) == dict.fromkeys(PHENOMENA, 25)
    assert pairs == minimal_pairs()
    assert len({pair[1:] for pair in pairs}) == 200
    # Of the pairs as they were made: a change here makes earlier accuracies other ones.
    assert BUILT_IN["minimal-pairs"]().fingerprint == "9f248dfd"


def test_who_counts_letters_is_right_in_half_of_each_phenomenon():
    shorter = {}
    for phenomenon, right, wrong in minimal_pairs():
        ahead = len(wrong) - len(right)
        shorter.setdefault(phenomenon, []).append(0.5 if not ahead else float(ahead > 0))
    for phenomenon, scores in shorter.items():
        assert abs(sum(scores) - 12.5) <= 0.5, phenomenon


def test_sentences_of_a_pair_differ_in_one_word():
    for _, right, wrong in minimal_pairs():
        words = zip(right.split(), wrong.split(), strict=True)
        assert sum(a != b for a, b in words) == 1


HARNESS = {
    "task": "colours",
    "dataset_path": "json",
    "output_type": "multiple_choice",
    "test_split": "train",
    "doc_to_text": "{{question}} It is",
    "doc_to_choice": "{{[first, second]}}",
    "doc_to_target": "label",
    "metric_list": [{"metric": "acc"}],
}
ROWS = [
    {"question": "The sky?", "first": "blue", "second": "grün", "label": 0},
    {"question": "The sun?", "first": "a 'cold' one", "second": "hot", "label": 1},
]


@pytest.fixture
def harness(tmp_path, file, monkeypatch):
    """Write a task of lm-evaluation-harness and its data; return the path."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))

    def write(rows=ROWS, without=(), **changes):
        data = {"dataset_kwargs": {"data_files": file(*rows, name="rows.jsonl")}}
        values = {**HARNESS, **data, **changes}
        path = tmp_path / "colours.yaml"
        kept = {key: value for key, value in values.items() if key not in without}
        path.write_text(yaml.safe_dump(kept, allow_unicode=True, sort_keys=False), "utf-8")
        return str(path)

    return write


def test_a_task_of_the_harness_is_read_by_its_fields_and_templates(harness):
    read = task(harness())
    assert (read.name, read.kind) == ("colours", "multiple choice")
    assert [item.context for item in read.items] == ["The sky? It is", "The sun? It is"]
    assert [item.answer for item in read.items] == [0, 1]
    assert read.items[0].continuations == (" blue", " grün")
    assert read.items[1].choices == ("a 'cold' one", "hot")


def test_a_target_of_the_harness_may_be_a_template_of_digits_or_a_choice(harness):
    for target in ("{{[first, second].index(second)}}", "{{second}}", "second"):
        assert [item.answer for item in task(harness(doc_to_target=target)).items] == [1, 1]


def test_a_data_set_of_the_harness_may_be_a_folder_in_the_hubs_layout(harness, file, tmp_path):
    (tmp_path / "folder").mkdir()
    file(*ROWS, name="folder/test.jsonl")
    folder = {"dataset_path": str(tmp_path / "folder"), "test_split": "test"}
    assert len(task(harness(without=("dataset_kwargs",), **folder)).items) == 2
    with pytest.raises(ConfigError, match="'nobody/nothing' could not be loaded: "):
        task(harness(dataset_path="nobody/nothing", without=("dataset_kwargs",)))


def test_a_last_word_of_the_harness_is_scored_as_it_is_written(harness):
    lambada = {
        "output_type": "loglikelihood",
        "doc_to_text": "{{text.split(' ')[:-1]|join(' ')}}",
        "doc_to_target": "{{' '+text.split(' ')[-1]}}",
    }
    (item, _) = task(harness([LAST, LAST], ("doc_to_choice",), **lambada)).items
    assert (item.context, item.continuations) == ("He put the key into the", (" lock",))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"process_docs": "x"}, "process_docs: is not read here"),
        ({"doc_to_txt": "x"}, "doc_to_txt: unknown key; allowed: "),
        ({"without": ["doc_to_text"]}, "the key 'doc_to_text' is needed here"),
        ({"without": ["doc_to_choice"]}, "output_type: multiple_choice needs 'doc_to_choice'"),
        ({"without": ["test_split"]}, "needs a 'test_split' or 'validation_split'"),
        ({"output_type": "generate_until"}, "output_type: 'generate_until' is not read here; all"),
        ({"num_fewshot": 5}, "num_fewshot: examples in the prompt are not made here"),
        ({"doc_to_text": "{{nothing}}"}, "doc_to_text: row 1 of 'train': the template fails: "),
        ({"doc_to_text": "{{ ''.__class__.__mro__ }}"}, "the template fails: access to attribute"),
        ({"doc_to_choice": "first"}, "doc_to_choice: row 1 of 'train': 'blue': must be a list"),
        ({"doc_to_target": 2}, "row 1 of 'train': 'answer' is 2: must be from 0 to 1"),
        ({"doc_to_target": "{{first}} or"}, "'answer' is 'blue or': must be from 0 to 1"),
        ({"test_split": "tset"}, "dataset_path: 'json' could not be loaded: "),
        ({"dataset_kwargs": {"data_files": "gone.jsonl"}}, "'json' could not be loaded: "),
        ({"dataset_kwargs": {"trust": 1}}, "dataset_kwargs: takes 'data_files' or 'data_dir'"),
    ],
)
def test_what_is_not_read_of_the_harness_is_one_line_with_its_place(harness, changes, message):
    with pytest.raises(ConfigError, match=re.escape(message)) as refused:
        task(harness(**changes))
    assert "colours.yaml" in refused.value.message
    assert "\n" not in refused.value.message


def test_code_in_a_task_of_the_harness_is_refused(harness, tmp_path):
    path = harness()
    (tmp_path / "colours.yaml").write_text("process_docs: !function utils.docs\n", "utf-8")
    with pytest.raises(ConfigError, match="tags like !function are not accepted"):
        task(path)
