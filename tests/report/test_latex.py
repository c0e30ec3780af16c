"""LaTeX tables hold what fits a paper's column, and print what the cells say."""

import re
import shutil
import subprocess

import pandas as pd
import pytest

from llama_ablate.report import latex, tables

LONG = "rmsnorm+rope+gqa-kv_heads=2+swiglu-multiple_of=8+pre"


def comparison():
    """Return cells like those of a comparison."""
    return pd.DataFrame(
        {
            "variant": ["baseline", LONG, "50% & more_{x}"],
            "n": ["3", "3", "3"],
            "loss": ["2.4310", "2.3964", "2.4419"],
            "difference [simultaneous 95%]": [
                "",
                "-0.0346 [-0.0512, -0.0180]",
                "+0.0109 [-0.0093, +0.0311]",
            ],
            "verdict": ["baseline", "better", "inconclusive"],
            "parameters": ["118,272", "118,272", "118,272"],
            "speed": ["", "0.97x [0.93, 1.01]", "1.08x [1.02, 1.15]"],
            "state bytes": ["32,768", "16,384", "32,768"],
        }
    )


def header(text):
    return text.split("\\toprule\n")[1].split("\\midrule")[0]


def test_a_column_has_the_first_five_columns_and_a_page_has_more():
    narrow = latex.table(comparison(), "c", "tab:x")
    wide = latex.table(comparison(), "c", "tab:x", wide=True)
    assert "verdict" in header(narrow)
    assert "speed" not in header(narrow)
    assert "bytes" in header(wide)
    assert narrow.startswith("% needs")
    assert r"\begin{table}" in narrow
    assert r"\begin{table*}" in wide
    assert r"\label{tab:x}" in narrow
    columns = header(narrow).splitlines()[-1].count("&")
    rows = narrow.split("\\midrule\n")[1].split("\\bottomrule")[0].splitlines()
    assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {columns}


@pytest.mark.parametrize("wide", [False, True])
def test_a_table_that_is_too_wide_is_scaled_down_to_its_column(wide):
    text = latex.table(comparison(), "c", "tab:x", wide=wide)
    inside = text.split("\\begin{adjustbox}{max width=\\linewidth}\n")[1]
    assert inside.startswith("\\begin{tabular}")
    assert "\\end{tabular}\n\\end{adjustbox}\n" in inside
    assert "adjustbox" in text.splitlines()[0]  # the packages that it needs


def test_numbers_stand_flush_right_under_titles_that_are_no_wider():
    text = latex.table(comparison(), "c", "tab:x")
    assert r"p{11em}rrrl@{}}" in text
    title = r"\shortstack[r]{difference\\{}[simultaneous 95\%]}"
    assert title in header(text)


def test_a_long_label_may_be_broken_between_its_parts():
    text = latex.table(comparison(), "c", "tab:x")
    assert "p{11em}" in text
    assert (
        r"rmsnorm+\allowbreak{}rope+\allowbreak{}gqa-\allowbreak{}kv\_\allowbreak{}heads=\allowbreak{}2"
        in text
    )
    short = latex.table(comparison().iloc[[0]], "c", "tab:x")
    assert r"\begin{tabular}{@{}l" in short


def test_signs_are_printed_and_no_text_is_a_command():
    assert latex.escaped("-0.5 [-1.2, +0.3]") == "$-$0.5 [$-$1.2, +0.3]"
    assert latex.escaped("gqa-kv_heads=2, 1e-5") == r"gqa-kv\_heads=2, 1e-5"
    assert latex.escaped(r"\input{x} ^~ a<b ±1") == (
        r"\textbackslash{}input\{x\} \textasciicircum{}\textasciitilde{} a\textless{}b $\pm$1"
    )


def test_a_report_has_a_table_for_a_column_one_for_a_page_and_all_columns_as_csv(tmp_path):
    cells = comparison()
    tables.save(cells, cells, "A question", tmp_path / "comparison", short=3)
    narrow, wide = (
        (tmp_path / name).read_text() for name in ("comparison.tex", "comparison-wide.tex")
    )
    assert "tab:comparison}" in narrow
    assert "tab:comparison-wide}" in wide
    assert "verdict" not in wide  # beyond the section's short form
    assert "state bytes" in (tmp_path / "comparison.csv").read_text()


@pytest.mark.full
@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="no pdflatex")
def test_latex_prints_both_within_their_widths(tmp_path):
    """Compile both in a two-column paper: no box is wider than its column."""
    for wide, name in ((False, "narrow"), (True, "wide")):
        text = latex.table(comparison(), "Is it -1 or 50%?", f"tab:{name}", wide=wide)
        (tmp_path / f"{name}.tex").write_text(text)
    # The page of a two-column conference paper: columns of 3.25 inches, text of 6.75 inches.
    (tmp_path / "paper.tex").write_text(r"""\documentclass[10pt,twocolumn]{article}
\usepackage{booktabs,array,adjustbox}
\setlength{\textwidth}{6.75in}\setlength{\columnsep}{0.25in}
\begin{document}
Tables \ref{tab:narrow} and \ref{tab:wide}.
\input{narrow}
\input{wide}
\end{document}
""")
    ran = subprocess.run(
        ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout
    assert "Overfull" not in ran.stdout
