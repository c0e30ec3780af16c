"""A page says one thing of a contrast: all reference packs are read as their readers read them."""

import itertools
import re
from functools import cache
from pathlib import Path

import pytest

from llama_ablate.commands.cli import main
from llama_ablate.findings.answer import answer, headline
from llama_ablate.findings.columns import iterate
from llama_ablate.findings.factors import describe_steps, estimate_factors
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.hypotheses import judge_hypotheses
from llama_ablate.report import columns, latex, tables
from llama_ablate.report.sections import sections
from llama_ablate.results import Results
from tests.tables import frames as made

REFERENCE = Path(__file__).parents[2] / "results" / "reference"
#: Single changes, a path, a list with guards, a tuned list, half of a grid, and two tables.
FAST = (
    "first",
    "wikitext2",
    "atlas/short-convolution",
    "claims/e10-pre-post-warmup-depth",
    "claims/e16-leave-one-out-stack",
    "claims/e18-isotime-pareto",
)
PACKS = sorted(
    str(file.parent.relative_to(REFERENCE)) for file in REFERENCE.rglob("results.tar.xz")
)
#: Words of which no two can hold of one contrast.
CONTRARY = {
    frozenset(pair)
    for pair in (
        *itertools.combinations(("better", "worse", "equivalent", "inconclusive"), 2),
        *(("no verdict", word) for word in ("better", "worse", "equivalent", "inconclusive")),
        ("supported", "refuted"),
    )
}
#: How the answer says each word, and what of it names the baseline.
SAID = {
    "better": r" beats |is better",
    "worse": r"is worse",
    "equivalent": r"(?:is|are) equivalent",
    "inconclusive": r"(?:is|are) inconclusive",
    "no verdict": r"(?:has|have) no verdict",
    "too short": r"(?:is|are) too short",
}


@cache
def opened(pack):
    return Frames.of(Results.open(REFERENCE / pack))


def contrary(words):
    """Return the pairs of words, each with where it stands, that cannot both hold."""
    return [
        (one, other)
        for one, other in itertools.combinations(words, 2)
        if frozenset((one[1], other[1])) in CONTRARY
    ]


def in_answer(table, text):
    """Return what the answer says of each variant of a table, by its label."""
    name = table.plan.name
    start = f"In '{name}': " if name else ""
    (sentence,) = re.findall(re.escape(start) + r"(.*?)\.(?= In '| On |$)", text)[:1]
    found, base = {}, table.plan.baseline.label.removesuffix(" (baseline)")
    labels = sorted((v.label for v in table.plan.variants if not v.baseline), key=len, reverse=True)
    for clause in sentence.split("; "):
        word = next((word for word, how in SAID.items() if re.search(how, clause)), None)
        rest = re.sub(rf" (?:beats|than|to|against) {re.escape(base)}(?= |$)", " ", clause)
        for label in labels:
            if re.search(rf"(?<![\w-]){re.escape(label)}(?![\w=-])", rest):
                rest = rest.replace(label, "", 1)
                if word:
                    found[label] = word
    return found


def shown(frames, table):
    """Yield each variant's verdict in every rendering of a table: where, label, word."""
    parts = [p for p in sections(frames) if p.key == "comparison" and p.table == table.plan.name]
    for part in parts:
        if "verdict" not in part.cells:
            continue
        md = [row.split("|") for row in tables.markdown(part.cells).splitlines()[2:]]
        place = [*part.cells].index("verdict") + 1
        tex = latex.table(part.cells, part.title, "tab:x")
        for label, cell, frame_word, row in zip(
            part.frame["variant"], part.cells["verdict"], part.frame["verdict"], md, strict=True
        ):
            yield "cell", label, cell
            yield "Markdown", label, row[place].strip()
            yield "CSV", label, frame_word
            assert latex.escaped(str(cell)) in tex
    data = columns.comparison(frames)
    for row in data[data["table"] == table.plan.name].itertuples():
        yield "Python", row.variant, row.verdict


def of_hypothesis(entry, row):
    """Return what a hypothesis about a row of a table says of it; None for nothing."""
    if row.result == "no verdict":
        return None  # a bound of its own may need a control that the row does not
    if row.result == "supported" and not entry.direction.startswith("not "):
        return entry.direction
    if row.result == "refuted" and not entry.size:
        return {"better": "worse", "worse": "better"}.get(entry.direction)
    return None


@pytest.mark.parametrize(
    "pack", [pytest.param(p, marks=[] if p in FAST else pytest.mark.full) for p in PACKS]
)
def test_no_two_words_of_a_page_contradict(pack):
    frames = opened(pack)
    text = re.split(" (?:Supported|Refuted|Undecided|Of [0-9])", answer(frames))[0]
    for table in frames.tables:
        said = {}
        for where, label, cell in shown(frames, table):
            said.setdefault(label, []).append((where, re.split("[,:]", str(cell))[0]))
        if len(frames.tables) <= 3 and estimate_factors(table).empty:
            if frames.plan.experiment.variants.design != "path":
                for label, word in in_answer(table, text).items():
                    said[label].append(("headline", word))
            else:
                step = next(iterate(describe_steps(table)))
                said[step.step].append(("first step", step.verdict))
        judged = iterate(judge_hypotheses(frames))
        for entry, row in zip(frames.plan.hypotheses, judged, strict=False):
            plain = entry.measure in (None, table.loss)
            base = entry.against in (None, table.plan.baseline.label)
            here = (entry.table or frames.table.plan.name) == table.plan.name
            word = of_hypothesis(entry, row)
            excused = "by less than the margin" in row.remark  # and the row says equivalent
            if plain and base and here and word and entry.variant in said and not excused:
                said[entry.variant].append((row.hypothesis, word))
        assert said
        for label, words in said.items():
            assert not contrary(words), label
            assert len({word for where, word in words if where in ("cell", "CSV", "Python")}) == 1


def test_a_word_that_contradicts_another_is_found():
    """The checker is checked: on each pair of its table, and on what the answer says."""
    for pair in CONTRARY:
        assert contrary([("headline", word) for word in pair])
    assert not contrary([("a", "better"), ("b", "better"), ("c", "supported")])
    losses = {"base": [2.0, 2.1, 2.2], "a": [1.8, 1.9, 2.01], "b": [2.3, 2.4, 2.51]}
    frames = made({"": losses})
    assert in_answer(frames.table, headline(frames)) == {"a": "better", "b": "worse"}
    wrong = headline(frames).replace("a beats base", "a is worse than base")
    assert in_answer(frames.table, wrong)["a"] == "worse"


def test_the_baseline_answers_to_its_component_to_baseline_and_to_its_id(capsys):
    pack = str(REFERENCE / "systems" / "feedforward")
    base = opened("systems/feedforward").table.plan.baseline
    assert base.label == "swiglu (baseline)"
    told = []
    for name in ("swiglu", "baseline", base.id, base.label):
        assert main(["show", pack, name, "gelu"]) == 0
        told.append(capsys.readouterr().out)
    assert len(set(told)) == 1
    assert "swiglu (baseline) -> gelu" in told[0]
    assert main(["show", pack, "basline", "gelu"]) == 2
    assert "did you mean 'baseline'?" in capsys.readouterr().err
