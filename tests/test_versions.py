"""R21: results of other versions. Of those of this format test_pack.py has what they may hold."""

import json
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from llama_ablate import __version__
from llama_ablate.commands.cli import main
from llama_ablate.files.strict_json import sealed
from llama_ablate.results import Store
from llama_ablate.results.record import Measurement
from tests import fsck
from tests.reliability.harness import content, grid


def test_results_of_another_format_are_refused_in_a_line_and_left_as_they_are(
    experiment_file, tmp_path, unsealed, capsys, tally
):
    file = experiment_file(measure="[perplexity]", seeds="1", variants="{}")
    store = grid(file, tmp_path)
    plan = unsealed(store.plan_file)
    wrong = 0
    others = {n: sealed({**plan, "format": n}, "plan.json") for n in (2, 3, 6)}
    for number, text in others.items():
        store.plan_file.write_bytes(text)
        before = content(store.root, "working")
        run = ["run", str(file), "--results", str(tmp_path)]
        for words in (run, *([word, str(store.root)] for word in ("status", "report", "show"))):
            capsys.readouterr()
            code, error = main(words), capsys.readouterr().err
            told = f"is of format {number}: {'a later' if number > 5 else 'an earlier'} version"
            read = f"wrote it; this is version {__version__}, which reads format 5"
            wrong += code != 2 or error.count("\n") != 1 or told not in error or read not in error
        wrong += content(store.root, "working") != before
    tally("R21", "results of formats 2, 3 and 6: refused in a line, and left alone", 15, wrong)


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Results of format 4 and their pack, as version 51e340e9 wrote them, and what it reported."""
    with tarfile.open(Path(__file__).parent / "golden" / "format_4.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    monkeypatch.chdir(tmp_path)
    rows = json.loads((tmp_path / "said.json").read_text("utf-8"))["comparison"]
    gone = ("p_corrected", "lost_p_corrected")  # columns of the version that wrote it
    return [{key: row[key] for key in row if key not in gone} for row in rows]


@pytest.mark.usefixtures("in_process")
def test_a_folder_and_a_pack_of_format_4_are_reported_continued_and_packed_as_before(
    written, answer
):
    def compared(folder):
        rows = answer("report", folder, "--json")["comparison"]
        return [
            {key: row[key] for key in before} for row, before in zip(rows, written, strict=True)
        ]

    assert compared("pack") == compared("results/written") == written
    store = Store(Path("results/written"))
    before = {run: folder.record() for run, folder in store.folders().items()}
    assert len(before) == 4
    run = ("run", "written.yaml", "--device", "cpu")
    answer(*run)
    assert {r: folder.record() for r, folder in store.folders().items()} == before
    measured = Measurement(error="why")
    first = next(iter(before))
    with store.alone("measure") as lease:
        store.add_metric(lease, store.folder(first), "more", measured)
    metrics = {**before[first].metrics, "more": measured}
    before[first] = replace(before[first], metrics=metrics)
    assert {r: folder.record() for r, folder in store.folders().items()} == before
    answer("pack", "results/written", "--out", "again")
    assert compared("again") == written
    with tarfile.open("again/results.tar.xz") as archive:
        assert not [name for name in archive.getnames() if name.endswith("manifest.json")]
    answer(*run, "--set", "seeds=3")
    after = {run: folder.record() for run, folder in store.folders().items()}
    assert len(after) == 6
    assert {run: after[run] for run in before} == before
    assert fsck.check(store.root) == []
