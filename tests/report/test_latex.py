"""LaTeX tables hold what fits a paper's column, and print what the cells say."""

import re

import pandas as pd

from llama_ablate.report import latex

LONG = "rmsnorm+rope+gqa-kv_heads=2+swiglu-multiple_of=8+pre"


def comparison():
    """Return cells like those of a comparison."""
    return pd.DataFrame(
        {
            "variant": ["baseline", LONG, "50% & more_{x}"],
            "n": ["3", "3", "3"],
            "loss": ["2.4310", "2.3964", "2.4419"],
            "difference [simultaneous 95%]": ["", "-0.0346 [-0.0512, -0.0180]", "+0.0109"],
            "verdict": ["baseline", "better", "inconclusive"],
            "parameters": ["118,272", "118,272", "118,272"],
            "speed": ["", "0.97x [0.93, 1.01]", "1.08x [1.02, 1.15]"],
            "state bytes": ["32,768", "16,384", "32,768"],
        }
    )


def header(text):
    return text.split("\\toprule\n")[1].split("\\midrule")[0]


def test_up_to_five_columns_take_a_column_of_the_paper_and_more_its_width():
    narrow = latex.table(comparison().iloc[:, :5], "c", "tab:x")
    wide = latex.table(comparison(), "c", "tab:x")
    assert r"\begin{table}" in narrow
    assert r"\begin{table*}" in wide
    assert r"\label{tab:x}" in narrow
    for text in (narrow, wide):
        columns = header(text).splitlines()[-1].count("&")
        rows = text.split("\\midrule\n")[1].split("\\bottomrule")[0].splitlines()
        assert {len(re.findall(r"(?<!\\)&", row)) for row in rows} == {columns}
        assert "adjustbox" in text.splitlines()[0]  # the packages that it needs


def test_numbers_stand_flush_right_and_a_long_label_may_be_broken_between_its_parts():
    text = latex.table(comparison(), "c", "tab:x")
    assert r"p{11em}rrrlrrr@{}}" in text
    assert r"\shortstack[r]{difference\\{}[simultaneous 95\%]}" in header(text)
    assert r"rmsnorm+\allowbreak{}rope+\allowbreak{}gqa-\allowbreak{}kv\_" in text


def test_signs_are_printed_and_no_text_is_a_command():
    assert latex.escaped("-0.5 [-1.2, +0.3]") == "$-$0.5 [$-$1.2, +0.3]"
    assert latex.escaped("gqa-kv_heads=2, 1e-5") == r"gqa-kv\_heads=2, 1e-5"
    assert latex.escaped(r"\input{x} ^~ a<b ±1") == (
        r"\textbackslash{}input\{x\} \textasciicircum{}$\sim$ a\textless{}b $\pm$1"
    )
