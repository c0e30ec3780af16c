"""A tokenizer that loses text has no bits per byte in any table or page, and a note says why."""

import re

from llama_ablate.results import Results
from tests.in_process import run_in_process


def test_no_bits_per_byte_appear_where_words_are_unknown_and_the_reason_is_told(
    experiment_file, book, words_tokenizer, tmp_path, capsys
):
    corpus = f"{{name: files, path: '{book}'}}"
    data = f"{{corpus: {corpus}, tokenizer: {{name: file, path: '{words_tokenizer}'}}}}"
    assert run_in_process(experiment_file(data=data), tmp_path) == 0
    results = Results.open(tmp_path / "tiny")
    assert "<unk>" in results.plan.tables[0].text.lost
    report = [path for path in results.root.rglob("report/**/*") if path.is_file()]
    texts = {path.name: path.read_text("utf-8") for path in report if path.suffix != ".png"}
    texts["the terminal"] = "".join(capsys.readouterr())
    for name, text in texts.items():
        assert not re.findall(r"bits.per.byte\W{0,3}\d|\d bits.per.byte|bits/byte", text), name
    for name in ("report.html", "report.md", "the terminal"):
        assert "so there are no bits per byte" in texts[name]
    assert not any("bits_per_byte" in repr(results.record(run)) for run in results.finished)
