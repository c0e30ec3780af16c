"""Minimal pairs of English sentences, made by templates: one is grammatical, the other is not.

The kind of pairs of BLiMP (Warstadt et al. 2020, arXiv:1912.00582), in words that small models
know. In every phenomenon half of the right sentences are the longer ones, or both are as long: who
only counts letters is right half the time.
"""

import random
from collections.abc import Callable, Iterator
from itertools import product

#: Pairs of each phenomenon.
_EACH = 25
_SEED = 0

_NOUNS = ("boy", "girl", "dog", "cat", "bird", "king", "queen", "friend", "teacher", "bear")
_VERBS = ("run", "walk", "sleep", "play", "eat", "sing", "swim", "work", "talk", "sit")
_WHERE = ("in the house", "in the park", "at night", "with a friend", "by the river", "every day")
_THINGS = ("tree", "book", "ball", "flower", "box", "house", "hat", "cup", "stone", "door")
_STATES = ("happy", "sad", "old", "big", "small", "tired", "hungry", "kind", "strong", "new")
_PEOPLE = ("He", "She", "The man", "The woman")
_HIM = ("boy", "man", "king", "father", "brother", "prince", "uncle", "son")
_HER = ("girl", "woman", "queen", "mother", "sister", "princess", "aunt", "daughter")
_DONE_TO = ("saw", "hurt", "liked", "helped", "loved", "washed", "dressed", "asked")
#: A past form and the participle of another length.
_PAST: tuple[tuple[str, str], ...] = (
    ("ate", "eaten"),
    ("took", "taken"),
    ("gave", "given"),
    ("broke", "broken"),
)
_PAST += (("saw", "seen"), ("wrote", "written"), ("hid", "hidden"), ("forgot", "forgotten"))
#: A verb that takes an object, and one as long that takes none.
_WITH_OBJECT: tuple[tuple[str, str], ...] = (
    ("found", "slept"),
    ("took", "fell"),
    ("made", "went"),
    ("kept", "came"),
)
_WITH_OBJECT += (("opened", "smiled"), ("pushed", "danced"), ("carried", "arrived"))
_WITH_OBJECT += (("broke", "cried"), ("pulled", "jumped"))
_SEEN: tuple[str, ...] = (
    "seen the sea",
    "been to the city",
    "eaten an apple",
    "found a home",
    "had a friend",
)
_SEEN += ("heard a song", "read a book", "played a game")

Pair = tuple[str, str]


def _agreement() -> Iterator[Pair]:
    """Make a verb agree with its subject."""
    for noun, verb, where in product(_NOUNS, _VERBS, _WHERE):
        yield f"The {noun} {verb}s {where}.", f"The {noun} {verb} {where}."
        yield f"The {noun}s {verb} {where}.", f"The {noun}s {verb}s {where}."


def _agreement_at_a_distance() -> Iterator[Pair]:
    """Make a verb agree with its subject, where another noun stands between them."""
    for noun, thing, state in product(_NOUNS, _THINGS, _STATES):
        one, several = f"The {noun} near the {_plural(thing)}", f"The {noun}s near the {thing}"
        yield f"{one} is {state}.", f"{one} are {state}."
        yield f"{several} are {state}.", f"{several} is {state}."


def _determiner() -> Iterator[Pair]:
    """Make a noun agree with its determiner."""
    near, far = ("this", "these"), ("that", "those")
    for who, thing, (one, several) in product(_PEOPLE, _THINGS, (near, far)):
        yield f"{who} saw {one} {thing}.", f"{who} saw {one} {_plural(thing)}."
        yield f"{who} saw {several} {_plural(thing)}.", f"{who} saw {several} {thing}."


def _anaphor_gender() -> Iterator[Pair]:
    """Make a reflexive pronoun agree in gender."""
    for him, her, done in product(_HIM, _HER, _DONE_TO):
        yield f"The {him} {done} himself.", f"The {him} {done} herself."
        yield f"The {her} {done} herself.", f"The {her} {done} himself."


def _anaphor_number() -> Iterator[Pair]:
    """Make a reflexive pronoun agree in number."""
    for him, done in product(_HIM, _DONE_TO):
        several = "men" if him == "man" else f"{him}s"
        yield f"The {him} {done} himself.", f"The {him} {done} themselves."
        yield f"The {several} {done} themselves.", f"The {several} {done} himself."


def _participle() -> Iterator[Pair]:
    """Take the past form alone, and the participle after `has`."""
    for noun, (past, participle), thing in product(_NOUNS, _PAST, _THINGS):
        yield f"The {noun} {past} the {thing}.", f"The {noun} {participle} the {thing}."
        yield f"The {noun} has {participle} the {thing}.", f"The {noun} has {past} the {thing}."


def _object() -> Iterator[Pair]:
    """Give an object to a verb that takes one."""
    for noun, (takes, takes_none), thing in product(_NOUNS, _WITH_OBJECT, _THINGS):
        yield f"The {noun} {takes} the {thing}.", f"The {noun} {takes_none} the {thing}."


def _polarity() -> Iterator[Pair]:
    """Say `ever` where something is denied."""
    for noun, seen in product(_NOUNS, _SEEN):
        yield f"None of the {noun}s have ever {seen}.", f"Some of the {noun}s have ever {seen}."
        yield f"Neither {noun} has ever {seen}.", f"Another {noun} has ever {seen}."


PHENOMENA: dict[str, Callable[[], Iterator[Pair]]] = {
    "agreement": _agreement,
    "agreement at a distance": _agreement_at_a_distance,
    "determiner": _determiner,
    "anaphor gender": _anaphor_gender,
    "anaphor number": _anaphor_number,
    "participle": _participle,
    "object": _object,
    "polarity": _polarity,
}


def _plural(noun: str) -> str:
    return f"{noun}es" if noun.endswith("x") else f"{noun}s"


def minimal_pairs() -> list[tuple[str, str, str]]:
    """Return 200 triples of phenomenon, right sentence and wrong sentence: always the same."""
    chosen = []
    for phenomenon, make in PHENOMENA.items():
        pairs = list(dict.fromkeys(make()))
        # Templates yield their two halves in turn; each gives as many, and one more.
        halves = (pairs[::2], pairs[1::2])
        draw = random.Random(f"{_SEED} {phenomenon}")
        drawn = [pair for half in halves for pair in draw.sample(half, (_EACH + 1) // 2)][:_EACH]
        chosen += [(phenomenon, right, wrong) for right, wrong in drawn]
    return chosen
