from abc import ABC, abstractmethod
from typing import Protocol

import pytest
from torch import nn

from llama_ablate.commands import components
from llama_ablate.config.registry import Choice, Registry
from llama_ablate.errors import ConfigError


@pytest.fixture
def fruits():
    registry = Registry("fruit")

    @registry.register("apple")
    def apple(size, *, sweet: bool = True, weight: float = 1.5, kinds: int | None = None):
        """Grow on trees (Newton 1687).

        More words that are no part of the summary.
        """
        return ("apple", size, sweet, weight, kinds)

    @registry.register("pear")
    def pear():
        """Taste well (Linnaeus 1753)."""
        return "pear"

    return registry


def test_a_component_without_a_docstring_is_listed_without_a_summary():
    registry = Registry("part")

    @registry.register("bare")
    class Bare(nn.Module):
        pass

    assert registry.summary("bare") == ""
    assert "(no docstring)" in components.text(
        [{"slot": "part", "name": "bare", "summary": "", "options": {}}], 80
    )


def test_a_bare_name_resolves_with_every_default_filled_in(fruits):
    assert fruits.resolve("apple") == Choice(
        "apple", (("sweet", True), ("weight", 1.5), ("kinds", None))
    )
    assert fruits.resolve({"name": "apple"}) == fruits.resolve("apple")


def test_options_replace_defaults_and_build_takes_only_the_sizes_it_names(fruits):
    choice = fruits.resolve({"name": "apple", "weight": 2, "sweet": False})
    assert fruits.build(choice, size=3, colour="red") == ("apple", 3, False, 2.0, None)
    assert fruits.build(fruits.resolve("pear"), size=3) == "pear"


def test_an_entry_written_out_resolves_to_the_same_choice(fruits):
    for entry in ("pear", {"name": "apple", "kinds": 4}):
        choice = fruits.resolve(entry)
        assert fruits.resolve(choice.entry()) == choice


@pytest.mark.parametrize(
    ("entry", "where", "message"),
    [
        ("aple", (), "'aple' is not a fruit; allowed: apple, pear; did you mean 'apple'?"),
        (
            {"name": "aple"},
            ("name",),
            "'aple' is not a fruit; allowed: apple, pear; did you mean 'apple'?",
        ),
        (
            {"name": "apple", "swet": True},
            ("swet",),
            "unknown key 'swet'; allowed: kinds, sweet, weight; did you mean 'sweet'?",
        ),
        ({"name": "pear", "x": 1}, ("x",), "unknown key 'x'; it takes no keys"),
        (
            {"name": "apple", "kinds": "two"},
            ("kinds",),
            "'two' (text) is not accepted: it should be a whole number",
        ),
        (
            {"name": "apple", "sweet": 1},
            ("sweet",),
            "1 (int) is not accepted: it should be true or false",
        ),
        (
            {"name": "apple", "weight": float("nan")},
            ("weight",),
            "nan (float) is not accepted: it should be a finite number",
        ),
        ({"sweet": True}, (), "a fruit is a name, or a mapping that has the key 'name'"),
    ],
)
def test_wrong_entries_say_what_was_given_and_what_is_allowed(fruits, entry, where, message):
    with pytest.raises(ConfigError) as caught:
        fruits.resolve(entry)
    assert caught.value.message == message
    assert caught.value.where == where


def test_a_second_component_of_one_name_is_an_error(fruits):
    with pytest.raises(ConfigError, match="'pear' is registered already"):
        fruits.register("pear")(lambda: None)


def test_an_option_that_a_class_declares_again_has_its_default_and_is_listed_once():
    things = Registry("thing")

    class Wide:
        def __init__(self, *, width: int = 4) -> None:
            self.width = width

    @things.register("wider")
    class Wider(Wide):
        def __init__(self, *, width: int = 64, **options: int) -> None:
            super().__init__(width=width, **options)

    assert [(option.name, option.default) for option in things.options("wider")] == [("width", 64)]
    assert dict(things.resolve("wider").options) == {"width": 64}
    assert things.build(things.resolve("wider")).width == 64


def test_an_option_without_a_default_is_an_error_of_the_author(fruits):
    def plum(*, stone: int):
        """Have a stone (Linnaeus 1753)."""

    with pytest.raises(ConfigError, match="option 'stone' needs a default"):
        fruits.register("plum")(plum)
    assert "plum" not in fruits


class Peelable(Protocol):
    """What a fruit of this test must offer."""

    skin: str

    def peel(self):
        """Take the skin off."""


@pytest.fixture
def peeled():
    return Registry("fruit", sizes=("size", "weight"), interface=Peelable, options=("ripe",))


class Sound:
    """Have all that is asked for (nobody 2026)."""

    def __init__(self, size, *, ripe: bool = True):
        self.size, self.ripe, self.skin = size, ripe, "thin"

    def peel(self):
        """Take the skin off."""


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        (
            "self, eps=1, *, ripe: bool = True",
            "no size 'eps' (an option stands after '*'); allowed: size, weight",
        ),
        ("self, sise, *, ripe: bool = True", "did you mean 'size'?"),
        ("self, size", "it needs the option 'ripe'"),
        ("self, *, ripe=True", "its option 'ripe' needs a type"),
        ("self, *, ripe: object() = True", "cannot be registered: "),
    ],
)
def test_what_a_slot_asks_for_is_looked_for_when_a_component_is_registered(
    peeled, parameters, said
):
    names = {}
    exec(f"class Plum:\n  def __init__({parameters}): pass", names)  # noqa: S102  a class per case
    with pytest.raises(ConfigError) as caught:
        peeled.register("plum")(names["Plum"])
    assert "the fruit 'plum' cannot be registered" in str(caught.value)
    assert said in str(caught.value)
    assert "plum" not in peeled


def test_a_method_that_is_missing_or_left_abstract_is_named(peeled):
    class Abstract(Sound, ABC):
        @property
        @abstractmethod
        def peel(self):
            """Take the skin off."""

    class Bare:
        def __init__(self, *, ripe: bool = True):
            pass

    for wrong in (Abstract, Bare):
        with pytest.raises(ConfigError, match="it has no 'peel'"):
            peeled.register("plum")(wrong)
    peeled.register("plum")(Sound)


def test_an_attribute_that_is_missing_is_named_when_the_component_is_made(peeled):
    class Skinless(Sound):
        def __init__(self, size, *, ripe: bool = True):
            pass

    peeled.register("plum")(Skinless)
    with pytest.raises(ConfigError, match="the fruit 'plum' has no 'skin'"):
        peeled.build(peeled.resolve("plum"), size=3)


@pytest.mark.parametrize(("slot", "one"), [("norm", "a norm"), ("attention", "an attention")])
def test_a_slot_has_its_article(slot, one):
    with pytest.raises(ConfigError, match=f"'x' is not {one}; allowed"):
        Registry(slot).resolve("x")
    with pytest.raises(ConfigError, match=f"{one} is a name, or a mapping"):
        Registry(slot).resolve({"nam": "x"})


def test_the_summary_is_the_first_paragraph_of_the_docstring(fruits):
    assert fruits.summary("apple") == "Grow on trees (Newton 1687)."
    assert [option.name for option in fruits.options("apple")] == ["sweet", "weight", "kinds"]


def test_choices_are_hashable_and_a_changed_option_is_another_choice(fruits):
    choice = fruits.resolve("apple")
    heavier = choice.with_options(weight=9.0)
    assert heavier["weight"] == 9.0
    assert len({choice, heavier, fruits.resolve("apple")}) == 2
