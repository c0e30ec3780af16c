"""A paper's files: labels that differ, figures of a column's width, the sources of components."""

import math
import re
import shutil
import subprocess
from dataclasses import replace

import pandas as pd
import pytest

from llama_ablate.commands.cli import main
from llama_ablate.errors import ConfigError
from llama_ablate.evidence.written import Estimate
from llama_ablate.files import disk
from llama_ablate.findings.frames import Frames
from llama_ablate.report import latex, paper, plots
from llama_ablate.report.picture import Axis, Cast, Dot, Dots, Lines, Picture, Point, style_names
from llama_ablate.report.sections import sections
from llama_ablate.results import CURVE, Results, Store
from tests import plans
from tests.metrics import measured

HOSTILE = r"[50% & more_{x} \input{/etc/passwd} 中文 é ¿ ~^#$ "
MODEL = {
    "dim": 8,
    "norm": {"name": "rmsnorm", "eps": 1e-6},
    "position": {"name": "rope", "scaling": "none"},
    "attention": {"pattern": ["mha", {"name": "gqa", "kv_heads": 1}]},
    "feedforward": {"name": "moe", "inner": "swiglu"},
    "block": "pre",
}


@pytest.fixture
def made(tmp_path):
    """Make results of one experiment: a function of its folder, its name and labels."""

    def make(folder, name="x", labels=("base", "wide"), base="base", question="Which is better?"):
        variants = [
            plans.variant(f"{base}{at}" if at == 0 else f"{folder}{at}", label, model=MODEL)
            for at, label in enumerate(labels)
        ]
        runs = [plans.run(f"{v.id}{seed}", v.id, seed) for v in variants for seed in range(3)]
        store = Store(tmp_path / folder)
        table = plans.table(variants, runs)
        document = plans.document(table, name=name, question=question, seeds=3)
        store.create(document, "name: x\n")
        for run in runs:
            at = [v.id for v in variants].index(run.variant)
            loss = 2.0 + 0.1 * at + 0.01 * run.seed
            own = {"id": run.id, "label": labels[at], "variant": run.variant, "seed": run.seed}
            metrics = {"perplexity": measured(test_loss_nats=loss, test_perplexity=math.exp(loss))}
            curve = [{**dict.fromkeys(CURVE, 1.0), "step": s, "tokens": 32 * s} for s in (1, 2)]
            store.commit(replace(plans.RECORD, **own, metrics=metrics), curve, None)
        return store.root

    return make


def files(*roots):
    """A paper's files; nothing is drawn."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "for_paper", lambda _picture, _width: b"")
        return paper.files([Frames.of(Results.open(root)) for root in roots])


def labels_of(made):
    """All labels of a paper, those of its tables and those of its figures."""
    text = b"\n".join(content for name, content in made.items() if name.endswith(".tex"))
    return re.findall(r"\\label\{([^}]*)\}", text.decode())


def test_no_two_labels_of_a_paper_are_alike_whatever_experiments_are_called(made):
    roots = [made("a", "same"), made("b", "same"), made("c", "中文"), made("d", "all", base="q")]
    found = files(*roots, made("e", HOSTILE, ("base", HOSTILE)))
    labels = labels_of(found)
    assert len(labels) == len({*labels})
    assert {
        "tab:same-comparison",
        "tab:same-N2-comparison-wide",
    } <= {*labels}
    assert {"tab:all-comparison", "tab:all-N4-comparison"} <= {*labels}
    assert all(re.fullmatch("[a-zN0-9:-]+", label) for label in labels)
    assert all(re.fullmatch("[a-zN0-9.-]+", name) for name in found)


def test_one_table_has_the_rows_of_all_experiments(made):
    together = files(made("a", "near"), made("b", "far"))["all-comparison.tex"].decode()
    rows = together.split("\\midrule\n")[1].split("\\bottomrule")[0].splitlines()
    assert [row.split(" & ")[1] for row in rows] == ["near + far", "near", "far"]
    assert "intervals hold at once over all rows" in together
    assert "verdict" in together
    apart = files(made("c", "near"), made("d", "far", base="other"))["all-comparison.tex"].decode()
    rows = apart.split("\\midrule\n")[1].split("\\bottomrule")[0].splitlines()
    assert [row.split(" & ")[1] for row in rows] == ["near", "near", "far", "far"]
    assert "over the rows of one experiment (the baselines differ" in apart


def test_a_caption_says_what_was_trained_and_the_setup_what_was_not_tested(made):
    found = files(made("a", question="Is 50% enough?"))
    caption = re.search(r"\\caption\{(.*)\}\n", found["x-comparison.tex"].decode())[1]
    assert caption.startswith(r"Is 50\% enough? Comparison: Test loss in nats per token")
    assert "mha / gqa" in caption
    assert "1,000 parameters, 64 tokens of python-stdlib, 3 seeds." in caption
    told = " ".join(found["x-setup.tex"].decode().split())
    assert "We compare 1 variant with a baseline. Baseline: rmsnorm, rope" in told
    assert "nothing is tuned for each variant" in told
    assert "Student's t at 95\\%, Bonferroni over the rows" in told
    assert "Computed on cpu" in told
    assert "Not tested: other sizes, other texts, other lengths of training" in told


@pytest.mark.parametrize("width", [3.25, 6.75])
def test_a_figure_has_the_width_of_its_place_and_its_fonts_embedded(width):
    long = "rmsnorm+rope+gqa-kv_heads=2+swiglu-multiple_of=8+pre $x$"
    dots = Dots(
        [Dot(long, Estimate(0.1, 0.0, 0.2), "better"), Dot("b", Estimate(0))], Axis("loss " * 20)
    )
    named = style_names([long, *map(str, range(11))])
    points = [Point(name, x, Estimate(x, x - 1, x + 1)) for name in named for x in (1.0, 2.0, 3.0)]
    lines = Lines(points, Axis("x " * 40), Axis("y " * 40), Cast(named, named), title="t " * 40)
    for picture in (Picture([dots]), Picture([lines] * 3)):
        drawn = plots.for_paper(picture, width)
        box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", drawn)
        assert float(box[1]) == 72 * width
        assert float(box[2]) <= 72 * 7.5  # with its caption it fits the page
        assert b"/FontFile2" in drawn
        assert b"/Type3" not in drawn
    assert plots.for_paper(Picture([dots]), width) == plots.for_paper(Picture([dots]), width)


def test_columns_are_called_alike_in_csv_and_in_python(made, capsys):
    root = made("a")
    assert main(["report", str(root)]) == 0
    capsys.readouterr()
    written = pd.read_csv(root / "report" / "tables" / "comparison.csv")
    assert list(written["variant"]) == ["base", "wide"]
    every = sections(Frames.of(Results.open(root)))
    assert not any("label" in section.frame for section in every)
    measured = pd.read_csv(root / "report" / "tables" / "metrics.csv")
    assert list(measured[["variant", "variant_id"]].iloc[0]) == ["base", "base0"]
    assert r"\label{tab:x-comparison}" in (root / "report/tables/comparison.tex").read_text()


def test_what_is_in_a_folder_stays_and_what_fails_leaves_nothing(made, tmp_path, monkeypatch):
    experiments = [Frames.of(Results.open(made("a")))]
    kept = tmp_path / "mine" / "paper.tex"
    kept.parent.mkdir()
    kept.write_text("my own")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match="is not empty; allowed: --out with a folder"):
        paper.write(experiments, kept.parent)
    assert kept.read_text() == "my own"
    monkeypatch.setattr(paper, "files", lambda _: {"a.tex": b"1", "b.tex": b"2"})
    write, calls = disk.write, []

    def full(path, content):
        calls.append(path)
        if len(calls) > 1:
            raise OSError(28, "No space left on device")
        return write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write", full)
        with pytest.raises(OSError, match="No space left"):
            paper.write(experiments, tmp_path / "new")
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "empty").mkdir()
    assert paper.write(experiments, tmp_path / "empty") == ["a.tex", "b.tex"]
    assert (tmp_path / "empty" / "b.tex").read_bytes() == b"2"


def test_what_a_paper_cannot_be_made_of_is_told_in_one_line(made, tmp_path, capsys):
    root, other = str(made("a")), str(made("b"))
    (tmp_path / "file").write_text("")
    for words, told in {
        (root, other): f"'{other}': allowed with --paper alone",
        (root, "--out", "p"): "--out: allowed with --paper alone",
        (root, root, "--paper"): "is given twice",
        (root, str(tmp_path / "none"), "--paper"): "none",
        (root, "--paper", "--out", str(tmp_path / "file")): "file",
        (root, "--paper", "--out", root): "is not empty",
    }.items():
        assert main(["report", *words]) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("llama-ablate: ")
        assert told in error
    assert not (tmp_path / "a-paper").exists()


def test_text_that_pdflatex_lacks_stands_as_its_number_and_no_row_begins_with_an_option():
    assert latex.escaped("中 \u202e a\n b\x1b") == "[U+4E2D] [U+202E] a b[U+001B]"
    assert latex.escaped("é Ł “x” \N{MINUS SIGN}1") == "é Ł “x” $-$1"
    cells = pd.DataFrame({"variant": ["a", "[2]", "*"], "n": ["1", "2", "3"]})
    rows = latex.table(cells, "c", "tab:x").split("\\midrule\n")[1].splitlines()
    assert [row[:3] for row in rows[:3]] == ["a &", "{}[", "{}*"]


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:Glyph .* missing from font")  # of a label in Chinese
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex: nothing is compiled")
def test_a_paper_of_several_experiments_is_compiled_without_a_warning(made, tmp_path):
    roots = [made("a", "same"), made("b", "same"), made("c", HOSTILE, ("base", HOSTILE), "q")]
    folder = tmp_path / "paper"
    paper.write([Frames.of(Results.open(root)) for root in roots], folder)
    body = "".join(
        rf"\input{{{file.stem}}}\clearpage"
        if file.suffix == ".tex"
        else rf"\includegraphics{{{file.stem}}}\clearpage"
        for file in sorted(folder.iterdir())
    )
    packages = ["fontenc", "times", "booktabs", "array", "adjustbox", "graphicx"]
    uses = "".join(rf"\usepackage{'[T1]' if p == 'fontenc' else ''}{{{p}}}" for p in packages)
    size = r"\setlength{\textwidth}{6.75in}\emergencystretch=3em"
    head = rf"\documentclass[10pt,twocolumn]{{article}}{uses}{size}"
    document = rf"{head}\begin{{document}}{body}\end{{document}}"
    (folder / "paper.tex").write_text(document)
    for _ in range(2):
        options = ["-interaction=nonstopmode", "-halt-on-error"]
        ran = subprocess.run(
            ["pdflatex", *options, "paper"], cwd=folder, capture_output=True, check=False
        )
        assert ran.returncode == 0, ran.stdout.decode(errors="replace")
    told = ran.stdout.decode(errors="replace")
    assert not re.search("Overfull|undefined|multiply|too large", told)
    fonts = told.replace("\n", "")
    assert ".pfb>" in fonts
    assert "pk>" not in fonts  # no bitmaps
