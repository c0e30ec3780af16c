"""A paper's files: labels that differ, figures of a column's width, the sources of components."""

import itertools
import math
import re
import shutil
import subprocess
from dataclasses import replace

import pandas as pd
import pytest

from llama_ablate.commands.cli import main
from llama_ablate.config.schema import RACE_SEED
from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.findings.frames import Frames
from llama_ablate.findings.union import union
from llama_ablate.report import latex, paper, pictures
from llama_ablate.results import CURVE, Results, Store
from tests import plans, tables
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


@pytest.fixture
def tuned(tmp_path):
    """Results of two sizes, whose rates are chosen on one seed that no table reports."""
    best = {"base32": 0.01, "wide32": 0.03, "base64": 0.01, "wide64": 0.003}
    tables, records = [], {}
    for dim in ("32", "64"):
        arms = ("base", "wide")
        variants = [plans.variant(f"{name}{dim}", name, model=MODEL) for name in arms]
        runs = []
        for one in variants:
            at_best = best[one.id]
            for lr, seed in itertools.product((0.003, 0.01, 0.03), (0, 1, 2, RACE_SEED)):
                id_ = f"{one.id}{lr:g}s{seed}".replace(".", "p")
                loss = 2.0 + 0.1 * (lr != at_best) + (0.2 + 0.01 * (seed % 3)) * (at_best != 0.01)
                runs.append(plans.run(id_, one.id, seed, tuned={"lr": lr}))
                if seed == RACE_SEED or lr == at_best:
                    records[id_] = (one, seed, loss)
        size = {"dim": int(dim), "layers": 1, "heads": 1}
        tables.append(plans.table(variants, runs, name=f"dim {dim}", size=size))
    tune = {"tune": {"lr": [0.003, 0.01, 0.03]}, "race": 1, "seeds": 3}
    sizes = {"models": [{"dim": 32}, {"dim": 64}]}
    store = Store(tmp_path / "tuned")
    store.create(plans.document(*tables, name="tuned", sizes=sizes, **tune), "name: tuned\n")
    for id_, (one, seed, loss) in records.items():
        own = {"id": id_, "label": one.label, "variant": one.id, "seed": seed}
        numbers = {f"{split}_loss_nats": loss for split in ("validation", "test")}
        metrics = {"perplexity": measured(**numbers, test_perplexity=math.exp(loss))}
        store.commit(replace(plans.RECORD, **own, metrics=metrics), [], None)
    return store.root


def frames_of(*roots):
    """Return the frames of an experiment, or of several as one."""
    every = [Frames.of(Results.open(root)) for root in roots]
    return union(every) if len(every) > 1 else every[0]


@pytest.fixture
def read(monkeypatch):
    """Make a paper's files without drawing; return the names, the table and the set-up."""
    monkeypatch.setattr(pictures, "write", lambda *_: b"")

    def make(*roots):
        made = paper.files(frames_of(*roots))
        return [*made], made["comparison.tex"].decode(), made["setup.tex"].decode()

    return make


def rows_of(table):
    return table.split("\\midrule\n")[1].split("\\bottomrule")[0].splitlines()


def test_a_paper_has_one_table_a_setup_and_three_figures_at_most(made, read):
    names, table, _ = read(made("a", HOSTILE, ("base", HOSTILE)))
    assert names[:2] == ["comparison.tex", "setup.tex"]
    assert len(names) <= 8
    assert all(re.fullmatch("[a-z_]+(-wide)?[.](tex|pdf)", name) for name in names)
    (label,) = re.findall(r"\\label\{([^}]*)\}", table)
    assert re.fullmatch("tab:[a-z0-9-]+", label)


def test_rows_of_experiments_with_one_baseline_stand_in_one_table(made, read):
    _, table, _ = read(made("a", "near"), made("b", "far"))
    assert [row.split(" & ")[0] for row in rows_of(table)] == ["base", "wide", "wide (far)"]
    with pytest.raises(ConfigError, match="the baselines differ"):
        frames_of(made("c", "near"), made("d", "far", base="other"))


def test_a_caption_says_what_the_numbers_are_and_the_setup_what_was_not_tested(made, read):
    _, table, setup = read(made("a", question="Is 50% enough?"))
    caption = re.search(r"\\caption\{(.*)\}\n", table)[1]
    assert caption.startswith(r"Is 50\% enough? Mean test loss (nats per token) and its difference")
    assert "1,000 parameters, 64 training tokens of python-stdlib, 3 seeds." in caption
    assert setup.startswith(
        "We compare 1 variant (wide) with a baseline of rmsnorm, rope, mha / gq"
    )
    assert "The learning rate is 0.001. Nothing is tuned." in setup
    assert "Student's t at 95\\%, Bonferroni over the rows" in setup
    assert "Not tested: other sizes, other texts, other lengths of training" in setup


def test_sizes_are_groups_of_columns_and_each_rate_is_the_one_that_was_chosen(tuned, read):
    _, table, setup = read(tuned)
    assert table.count(r"\multicolumn{3}{c}") == 2
    heads = table.split("\\toprule\n")[1].split("\\midrule")[0].splitlines()[-1]
    assert heads.count("lr &") == heads.count("loss") == heads.count("difference") == 2
    cells = [row.split(" & ") for row in rows_of(table)]
    assert [(row[1], row[4]) for row in cells] == [("0.01", "0.01"), ("0.03", "0.003")]
    grid = "at the lr chosen on 1 seed (lr in 0.003, 0.01, 0.03) by the validation loss of 1 seed"
    assert f"{grid}, which no" in setup
    assert "in the order of the tables: 0.01, 0.01 for base; 0.03, 0.003 for wide." in setup
    assert rows_of(table)[1].count("]*") == 2  # both intervals leave out 0
    assert "0.001" not in setup  # the file's own rate, at which no reported run trained


def test_figures_have_the_width_of_their_place_and_their_fonts_embedded(made):
    found = paper.files(frames_of(made("a", labels=("base", "a name of many letters $x$"))))
    drawn = {name: content for name, content in found.items() if name.endswith(".pdf")}
    assert drawn
    for name, content in drawn.items():
        box = re.search(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", content)
        assert float(box[1]) == 72 * (6.75 if "-wide" in name else 3.25)
        assert float(box[2]) <= 72 * 7.5  # with its caption it fits the page
        assert b"/FontFile2" in content
        assert b"/Type3" not in content


def test_rows_that_lost_runs_or_lack_seeds_carry_a_mark_that_the_caption_explains():
    losses = {"base": [2.0, 2.1, 2.2], "a": ["diverged", 2.3, 2.4], "b": [2.1, 2.2, "pending"]}
    found = tables.frames({"": losses})
    cells = paper.tabulate(found).set_index("variant")
    marked = cells[next(head for head in cells if head.startswith("difference"))]
    assert [cell.endswith("\N{DAGGER}") for cell in marked] == [False, True, True]
    caption = paper.describe_table(found)
    assert "a: mean of the 2 of 3 runs that trained; b: 2 of 3 seeds." in caption
    assert "2 seeds finished of each variant and the baseline (3 were planned)" in (
        paper.describe_setup(found)
    )


def test_what_is_in_a_folder_stays_and_what_fails_leaves_nothing(made, tmp_path, monkeypatch):
    experiment = frames_of(made("a"))
    kept = tmp_path / "mine" / "paper.tex"
    kept.parent.mkdir()
    kept.write_text("my own")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match="is not empty: name a new folder with --out"):
        paper.write(experiment, kept.parent)
    assert kept.read_text() == "my own"
    monkeypatch.setattr(paper, "files", lambda _: {"a.tex": b"1", "b.tex": b"2"})
    write = disk.write

    def full(path, content):
        if path.name == "b.tex":
            raise OSError(28, "No space left on device")
        return write(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write", full)
        with pytest.raises(OSError, match="No space left"):
            paper.write(experiment, tmp_path / "new")
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "empty").mkdir()
    assert paper.write(experiment, tmp_path / "empty") == ["a.tex", "b.tex"]
    assert (tmp_path / "empty" / "b.tex").read_bytes() == b"2"


def test_what_a_paper_cannot_be_made_of_is_told_in_one_line(made, tmp_path, capsys):
    root, other = str(made("a")), str(made("b"))
    (tmp_path / "file").write_text("")
    for words, told in {
        (root, other): f"'{other}': allowed with --paper alone",
        (root, str(made("c", base="q")), "--paper"): "the baselines differ",
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
def test_papers_are_compiled_without_a_warning(made, tuned, tmp_path):
    body = ""
    for name, root in (("a", made("a", HOSTILE, ("base", HOSTILE))), ("b", tuned)):
        files = paper.write(frames_of(root), tmp_path / "paper" / name)
        for file in files:
            place = f"figure{'*' * ('-wide' in file)}"
            figure = rf"\begin{{{place}}}\includegraphics{{{name}/{file}}}\end{{{place}}}"
            body += rf"\input{{{name}/{file}}}" if file.endswith(".tex") else figure
            body += r"\clearpage"
    packages = ["fontenc", "times", "booktabs", "array", "adjustbox", "graphicx"]
    uses = "".join(rf"\usepackage{'[T1]' if p == 'fontenc' else ''}{{{p}}}" for p in packages)
    size = r"\setlength{\textwidth}{6.75in}\setlength{\columnsep}{0.25in}\emergencystretch=3em"
    head = rf"\documentclass[10pt,twocolumn]{{article}}{uses}{size}"
    (tmp_path / "paper/paper.tex").write_text(rf"{head}\begin{{document}}{body}\end{{document}}")
    for _ in range(2):
        options = ["-interaction=nonstopmode", "-halt-on-error"]
        ran = subprocess.run(
            ["pdflatex", *options, "paper"],
            cwd=tmp_path / "paper",
            capture_output=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout.decode(errors="replace")
    told = ran.stdout.decode(errors="replace")
    assert not re.search("Overfull|undefined|multiply|too large", told), told
    fonts = told.replace("\n", "")
    assert ".pfb>" in fonts
    assert "pk>" not in fonts  # no bitmaps
