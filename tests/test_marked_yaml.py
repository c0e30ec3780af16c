import pytest

from llama_ablate.config.marked_yaml import load, parse, scalar
from llama_ablate.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("400_000", 400_000),
        ("true", True),
        ("null", None),
        ("0x10", "0x10"),
        ("none", "none"),
    ],
)
def test_plain_words_have_the_value_that_people_expect(text, value):
    assert scalar(text) == value
    assert type(scalar(text)) is type(value)
    assert parse(f"x: {text}", "f").values == {"x": value}


def test_every_value_knows_its_line_and_column():
    marked = parse("model:\n  dim: 8\n  norm: {name: x, eps: 1e-5}\nseeds: [1, 22]\n", "f.yaml")
    assert str(marked.marks[("model", "dim")]) == "f.yaml:2:8"
    assert str(marked.marks[("model", "norm", "eps")]) == "f.yaml:3:24"
    assert str(marked.marks[("seeds", 1)]) == "f.yaml:4:12"
    located = marked.locate(ConfigError("is wrong", ("seeds", 1)))
    assert str(located) == "f.yaml:4:12: seeds[1]: is wrong"
    # What has no mark of its own is shown at what holds it.
    located = marked.locate(ConfigError("is missing", ("model", "norm", "gain")))
    assert str(located) == "f.yaml:3:3: model.norm.gain: is missing"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: no", "f:1:4: bare 'no' is ambiguous"),
        ("a: [Yes]", "f:1:5: bare 'Yes' is ambiguous"),
        ("a: 1\nb: 2\na: 3", "f:3:1: the key 'a' stands twice (first on line 1)"),
        ("a: &x 1\nb: *x", "f:1:4: anchors and aliases (& and *) are not accepted"),
        ("<<: {a: 1}", "f:1:1: a key must be one plain word"),
        ("a: !!python/object:os.system x", "f:1:4: tags like"),
        ("a: 'x", "f:1:6: not valid YAML"),
        ("a: " + "[" * 5000 + "]" * 5000, "f:1:28: nested too deeply"),
    ],
)
def test_what_people_write_by_mistake_is_refused_with_its_place(text, message):
    with pytest.raises(ConfigError) as caught:
        parse(text, "f")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"a: \xff\xfe", b"a: " + b"x" * 1_000_001], ids=len)
def test_a_file_that_is_no_text_or_too_large_is_refused(tmp_path, content):
    (tmp_path / "x.yaml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"not UTF-8 text|larger than"):
        load(tmp_path / "x.yaml")
