"""Packed results: the same numbers and pages as the folder, in a few files, and nothing damaged."""

import gzip
import json
import math
import re
import shutil
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from llama_ablate.commands.cli import main
from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.strict_json import sealed
from llama_ablate.results import CURVE, Results, Store, pack_writer
from llama_ablate.results.pack_writer import finish, pack
from llama_ablate.results.record import Measurement, Value, row
from tests import plans
from tests.in_process import in_process
from tests.reliability.harness import Disk, crash_at, fsck, in_child

ROOT = Path(__file__).parents[1]
ROW = dict.fromkeys(CURVE, 1.0)
HYPOTHESIS = {"variant": "swiglu <é>", "direction": "lower", "measure": "test_loss_nats"}
RECORD = replace(plans.RECORD, train={"lr": 1e-3})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Results of two tables: a diverged run, a failed one, one pending, speeds and a hypothesis."""
    variants = [plans.variant(label="baseline"), plans.variant("v2", "swiglu <é>")]
    store = Store(tmp_path_factory.mktemp("results") / "x")
    tables = [
        plans.table(
            variants,
            [plans.run(f"{name}{seed}{v.id}", v.id, seed) for seed in range(3) for v in variants],
            name=name,
        )
        for name in ("one", "two")
    ]
    plan = plans.document(*tables, name="x", question="Which?", seeds=3, hypotheses=[HYPOTHESIS])
    store.prepare()
    store.create(plan, "name: x  # as it was written: é\n")
    for run in list(plan.runs.values())[:-1]:
        loss = 2.0 + 0.1 * run.seed + 0.01 * run.seed * (run.variant == "v2")
        outcome = {"one1v2": "diverged", "two2v1": "error"}.get(run.id, "ok")
        numbers = [
            row("validation_loss_nats", loss, "nats", "loss", split="validation"),
            row("test_loss_nats", loss + 1 / 3, "nats", "loss", split="test"),
            row("odd", math.nan),
        ]
        record = replace(
            RECORD,
            id=run.id,
            label={"v1": "baseline", "v2": "swiglu <é>"}[run.variant],
            variant=run.variant,
            seed=run.seed,
            outcome=outcome,
            reason="why\nnot" if outcome != "ok" else "",
            metrics={"perplexity": Measurement(tuple(numbers))} if outcome == "ok" else {},
        )
        curve = [{**ROW, "step": 1.0, "validation_loss_nats": math.nan}, {**ROW, "step": 2.0}]
        store.commit(record, curve if outcome != "error" else [], lambda file: file.write(b"w"))
    with store.alone("measure") as lease:
        for variant in variants:
            rates = [Value("train_tokens_per_s", 3.0, samples=(2.0, 3.0, 4.0))]
            speeds = Measurement(tuple(rates), circumstances="c", compute={"device": "cpu"})
            store.add_variant_metric(lease, variant.label, variant.id, "train_speed", speeds)
    return store.root


@pytest.fixture(scope="module")
def packed(folder, tmp_path_factory):
    """The same results, packed; the folder's report has been written with them."""
    target = tmp_path_factory.mktemp("packed") / "x"
    assert main(["pack", str(folder), "--out", str(target)]) == 0
    return target


@pytest.fixture
def copy(packed, tmp_path):
    """A pack to spoil."""
    return shutil.copytree(packed, tmp_path / "x")


def content(root, pattern="**/*"):
    """Return the content of a folder's files by name."""
    files = (path for path in root.glob(pattern) if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def refusal(capsys, *words):
    """Return the one line with which a command refuses."""
    capsys.readouterr()
    assert main([*map(str, words)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("llama-ablate: ")
    assert error.count("\n") == 1
    return error


def test_a_pack_is_a_few_files_and_holds_no_weights(packed):
    names = {path.name for path in packed.iterdir()}
    assert names == {
        "pack.json",
        "runs.jsonl.gz",
        "experiment.yaml",
        "report.md",
        "effects.png",
        "effects_two.png",
    }
    assert "![effects](effects.png)" in (packed / "report.md").read_text("utf-8")
    assert "figures/" not in (packed / "report.md").read_text("utf-8")


def test_packing_twice_gives_the_same_bytes_and_so_does_packing_a_pack(folder, packed, tmp_path):
    before = content(packed, "*")
    pages = {name: page for name, page in before.items() if name.startswith(("report", "effects"))}
    assert len(pages) == 3
    for source in (folder, packed, tmp_path / "again"):  # the last in its own place
        pack(Results.open(source), tmp_path / "again", pages)
        assert content(tmp_path / "again") == before


def test_a_pack_reads_as_the_folder_does(folder, packed):
    ours, theirs = Results.open(packed), Results.open(folder)
    assert ours.plan == theirs.plan
    assert list(ours.finished) == list(theirs.finished)
    for run in ours.finished:
        assert repr(ours.record(run)) == repr(theirs.record(run))  # as NaN is not itself
        assert repr(ours.curve(run)) == repr(theirs.curve(run))
    assert ours.statuses == theirs.statuses
    assert [s.outcome for s in ours.statuses].count("pending") == 1
    assert ours.protocol == theirs.protocol != []
    assert ours.experiment_text == theirs.experiment_text
    assert ours.variant_metrics("v2") == theirs.variant_metrics("v2") != {}
    assert ours.folder("one0v1") is None
    assert ours.curve("two2v2") == []


@pytest.mark.parametrize(
    "words",
    [
        ["status"],
        ["show"],
        ["show", "swiglu <é>"],
        ["show", "baseline", "--table", "two"],
        ["compare", "baseline", "swiglu <é>"],
        ["compare", "baseline", "swiglu <é>", "--json"],
    ],
)
def test_commands_print_of_a_pack_what_they_print_of_the_folder(folder, packed, words, capsys):
    command, *rest = words
    printed = []
    for root in (folder, packed):
        code = main([command, str(root), *rest])
        printed.append((code, capsys.readouterr().out.replace(str(root), "ROOT")))
    assert printed[0] == printed[1]


def test_the_report_of_a_pack_is_that_of_the_folder_without_links_to_records(folder, copy, capsys):
    main(["report", str(copy)])
    capsys.readouterr()
    pages = content(folder / "report")
    assert {"report.html", "report.md", "figures/effects.svg"} <= pages.keys()
    page = pages["report.html"]
    pages["report.html"] = re.sub(rb'<a href="../(?:runs|failed)/[^"]*">(.*?)</a>', rb"\1", page)
    assert pages["report.html"] != page
    assert content(copy / "report") == pages


@pytest.mark.row("R25", "damage: 40 bytes of each document of a pack, and half of it")
@pytest.mark.parametrize("name", ["pack.json", "runs.jsonl.gz"])
def test_any_changed_byte_of_a_pack_is_damage_told_in_one_line(copy, name, capsys):
    whole = (copy / name).read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 40)):
        (copy / name).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert "damaged" in refusal(capsys, "status", copy), at
    (copy / name).write_bytes(whole[: len(whole) // 2])
    assert "damaged" in refusal(capsys, "show", copy)


def test_a_pack_without_its_runs_is_damaged_and_without_its_document_no_results(copy, capsys):
    (copy / "runs.jsonl.gz").rename(copy / "elsewhere")
    assert "damaged, it lacks runs.jsonl.gz" in refusal(capsys, "status", copy)
    (copy / "elsewhere").rename(copy / "runs.jsonl.gz")
    (copy / "pack.json").unlink()
    assert "holds no results" in refusal(capsys, "status", copy)


def test_a_pack_of_another_format_is_refused_by_its_number(copy, capsys):
    document = json.loads((copy / "pack.json").read_text("utf-8"))
    del document["sha256"]
    document["plan"]["format"] += 1
    (copy / "pack.json").write_bytes(sealed(document, "pack.json"))
    assert "of format 5: a later version" in refusal(capsys, "status", copy)


def test_nothing_is_added_to_a_pack(copy, experiment_file, tmp_path, capsys):
    before = content(copy)
    file = experiment_file(name="x")
    for words in (
        ["run", file, "--results", tmp_path],
        ["measure", copy, "perplexity"],
        ["generate", copy / "baseline", "--prompt", "a"],
        ["generate", copy, "--prompt", "a"],
    ):
        assert "holds packed results, without weights and closed to new runs" in refusal(
            capsys, *words
        )
    with pytest.raises(ConfigError, match="holds packed results"):
        Store.open(copy)
    assert content(copy) == before


def test_a_pack_takes_the_place_of_a_pack_and_of_nothing_else(folder, packed, tmp_path, capsys):
    target = tmp_path / "x"
    target.mkdir()
    (target / "mine").write_text("mine")
    assert "is there already, and is no pack" in refusal(capsys, "pack", folder, "--out", target)
    assert content(target) == {"mine": b"mine"}
    assert "is there already" in refusal(capsys, "pack", folder, "--out", folder)
    pack(Results.open(packed), tmp_path / "y", {"old": b"1"})
    pack(Results.open(packed), tmp_path / "y", {"new": b"2"})
    assert {*content(tmp_path / "y")} == {"new", "pack.json", "runs.jsonl.gz", "experiment.yaml"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x", "y"]


@pytest.fixture
def beside(packed, tmp_path):
    """A pack of fewer runs, with files of somebody else's in its folder, and what those hold."""
    old = shutil.copytree(packed, tmp_path / "old")
    with tempfile.TemporaryDirectory() as place:
        store = Store(Path(place) / "x")
        store.prepare()
        store.create(plans.of_runs("0a"), "name: x\n")
        pack(Results(store), old, {"report.md": b"old", "effects_old.png": b"old"})
    (old / "paper").mkdir()
    (old / "paper" / "main.tex").write_text("mine")
    (old / "NOTES.md").write_text("mine")
    return old


MINE = {"NOTES.md": b"mine", "paper/main.tex": b"mine"}


def test_packing_again_replaces_what_the_pack_lists_and_nothing_else(packed, beside):
    assert (beside / "effects_old.png").is_file()
    pack(Results.open(packed), beside, {"report.md": b"new"})
    names = {"pack.json", "runs.jsonl.gz", "experiment.yaml", "report.md"}
    assert content(beside).keys() == names | MINE.keys()
    assert content(beside).items() >= {**MINE, "report.md": b"new"}.items()
    listed = json.loads((beside / "pack.json").read_text("utf-8"))["files"]
    assert listed.keys() == names - {"pack.json"}


def test_a_file_of_somebody_elses_is_not_replaced_by_one_of_the_pack(packed, beside):
    before = content(beside)
    with pytest.raises(ConfigError, match=r"NOTES.md' is no file of that pack"):
        pack(Results.open(packed), beside, {"NOTES.md": b"theirs"})
    assert content(beside) == before


def test_a_page_that_was_changed_since_and_one_that_the_list_only_claims_stay(packed, beside):
    (beside / "report.md").write_text("what I make of it")
    before = content(beside)
    with pytest.raises(ConfigError, match=r"report.md' is no file of that pack, or was changed"):
        pack(Results.open(packed), beside, {"report.md": b"new"})
    assert content(beside) == before
    pack(Results.open(packed), beside, {"summary.md": b"new"})
    assert (beside / "report.md").read_text() == "what I make of it"


@pytest.mark.row("R25", "skew: a pack of format 3 is packed again")
def test_of_a_pack_in_format_3_only_what_its_report_shows_is_replaced(tmp_path):
    root = shutil.copytree(ROOT / "results" / "reference" / "first", tmp_path / "x")
    mine = {"effects_of_mine.png", "effects-of-my-thesis.docx"}
    for name in mine:
        (root / name).write_text("mine")
    shown = {path.name for path in root.glob("effects*.png")} - mine
    assert shown
    pack(Results.open(root), root, {"report.md": b"new"})
    assert mine <= content(root).keys()
    assert shown.isdisjoint(content(root))


@pytest.mark.row("R25", "skew: another experiment's pack, or a later format's, in its place")
def test_a_pack_of_another_experiment_or_of_a_later_format_is_not_replaced(
    packed, tmp_path, capsys
):
    first = ROOT / "results" / "reference" / "first"
    before = content(packed)
    assert "holds a pack of 'x', not of 'first'" in refusal(capsys, "pack", first, "--out", packed)
    later = shutil.copytree(packed, tmp_path / "later")
    document = json.loads((later / "pack.json").read_text("utf-8"))
    del document["sha256"]
    document["plan"]["format"] = 99
    (later / "pack.json").write_bytes(sealed(document, "pack.json"))
    held = content(later)
    assert "is of format 99: a later version" in refusal(capsys, "pack", packed, "--out", later)
    assert (content(packed), content(later)) == (before, held)


@pytest.mark.row("R25", "hostile: half a pack that is a link, or another pack's")
def test_what_is_being_packed_is_never_moved_through_a_link_or_by_who_only_reads(
    packed, beside, tmp_path, capsys
):
    """A whole pack where another one's files are written first would be moved from there."""
    stranger = shutil.copytree(packed, tmp_path / "stranger")
    (stranger / ".partial-pack").symlink_to(beside)
    before = content(beside), content(packed)
    for words in (["pack", stranger], ["pack", packed, "--out", stranger]):
        assert "is a link" in refusal(capsys, *words)
    (stranger / ".partial-pack").unlink()
    shutil.copytree(packed, stranger / ".partial-pack")
    held = content(stranger)
    assert "finishes it" in refusal(capsys, "pack", stranger, "--out", tmp_path / "elsewhere")
    assert content(stranger) == held
    (stranger / "report.md").write_text("mine")
    assert "report.md' is no file of that pack" in refusal(capsys, "pack", stranger)
    assert (stranger / "report.md").read_text() == "mine"
    assert (content(beside), content(packed)) == before


def test_packing_that_is_killed_at_any_call_leaves_the_old_pack_or_is_finished(
    packed, beside, tmp_path, volume, tally
):
    pages = {"report.md": b"new", "effects.png": b"new"}
    calls = Disk(lambda *_: None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(disk, "os", calls)
        pack(Results.open(packed), shutil.copytree(beside, tmp_path / "reference"), pages)
    before, after = content(beside), content(tmp_path / "reference")
    assert calls.calls > 30
    ended = Counter()
    for number in range(1, calls.calls + 1, volume(3, 1, 1)):
        root = shutil.copytree(beside, tmp_path / "x")

        def crash(number=number, root=root):
            crash_at(number).install()
            pack(Results.open(packed), root, pages)

        assert in_child(crash) == -9
        assert content(root).items() >= MINE.items()
        seen = "old" if content(root).items() >= before.items() else "new"
        if (root / ".partial-pack" / "pack.json").exists():
            with pytest.raises(ConfigError, match="was being packed again when that was stopped"):
                Results.open(root).finished  # noqa: B018
            finish(root)
            seen = "finished"
        ended[seen] += 1
        assert not Results.open(root).changed
        if seen == "old":
            pack(Results.open(packed), root, pages)
        assert {k: v for k, v in content(root).items() if ".partial" not in k} == after
        assert seen == "new" or not (root / ".partial-pack").exists()
        shutil.rmtree(root)
    assert ended.keys() == {"old", "finished", "new"}
    tally("R25", "kill: packing again, before every call that changes the disk", ended.total())


def test_an_interrupted_pack_is_named_and_the_same_command_finishes_it(folder, copy, capsys):
    staged = copy / ".partial-pack"
    staged.mkdir()
    shutil.copy(copy / "pack.json", staged)
    (copy / "report.md").rename(staged / "report.md")
    said = refusal(capsys, "status", copy)
    assert "was being packed again" in said
    assert f"llama-ablate pack {copy} finishes it" in said
    with in_process():
        assert main(["pack", str(copy)]) == 0
    assert not staged.exists()
    shutil.rmtree(copy)
    staged.mkdir(parents=True)
    assert "packing was stopped there, before its end" in refusal(capsys, "status", copy)
    with in_process():
        assert main(["pack", str(folder), "--out", str(copy)]) == 0
    assert main(["status", str(copy)]) == 1


def test_changed_pages_of_a_pack_are_named_and_its_numbers_stand(copy, capsys):
    for name in ("report.md", "effects.png", "experiment.yaml"):
        (copy / name).write_bytes((copy / name).read_bytes()[:-1] + b"X")
        capsys.readouterr()
        assert main(["status", str(copy)]) == 1
        assert name in capsys.readouterr().err
        assert ("I2", name, "is not what the pack says") in fsck.check(copy)


@pytest.mark.row("R25", "race: two commands pack into one place")
def test_two_commands_do_not_pack_into_one_place_at_once(packed, copy):
    with pack_writer._alone(copy), pytest.raises(ConfigError, match="another command is writing"):
        pack(Results.open(packed), copy, {})


def test_an_earlier_plan_is_packed_as_the_plan(folder, tmp_path):
    root = shutil.copytree(folder, tmp_path / "r")
    store = Store.open(root)
    store.create(plans.of_runs("new"), "name: x\n")
    (earlier,) = root.glob("plan-*.json")
    pack(Results.open(earlier), tmp_path / "p", {})
    assert Results.open(tmp_path / "p").finished.keys() == Results.open(folder).finished.keys()


def test_the_runs_of_a_pack_are_strict_json_one_a_line(packed):
    lines = gzip.decompress((packed / "runs.jsonl.gz").read_bytes()).decode("utf-8").splitlines()
    runs = [json.loads(line, parse_constant=pytest.fail) for line in lines]
    assert [run["id"] for run in runs] == list(Results.open(packed).finished)
    assert runs[0]["curve"]["step"] == [1.0, 2.0]


def test_the_published_packs_are_sound_few_and_small():
    reference = ROOT / "results" / "reference"
    packs = sorted(file.parent for file in reference.rglob("pack.json"))
    assert len(packs) == 43
    assert [breach for folder in packs for breach in fsck.check(folder)] == []
    files = [file for file in reference.rglob("*") if file.is_file() and "report" not in file.parts]
    assert sum(file.parent != reference for file in files) <= 6 * len(packs)  # beside its pages
    assert len(files) <= 250
    assert sum(file.stat().st_size for file in files) <= 12_000_000
