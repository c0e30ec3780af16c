"""Packed results: the same numbers and pages as the folder, in a few files, and nothing damaged."""

import hashlib
import json
import lzma
import math
import re
import shutil
import tarfile
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest

from llama_ablate.commands import pack as pack_command
from llama_ablate.commands import report
from llama_ablate.commands.cli import main
from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.strict_json import sealed
from llama_ablate.results import CURVE, Results, Store, archive
from llama_ablate.results.archive import write_pack
from tests import fsck, plans
from tests.metrics import measured
from tests.quiet import cpu_seconds
from tests.reliability.harness import Disk, content, crash_at, in_child

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "results" / "reference"
ARCHIVE = "results.tar.xz"
ROW = dict.fromkeys(CURVE, 1.0)
HYPOTHESIS = {"variant": "swiglu <é>", "direction": "lower", "measure": "test_loss_nats"}


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
        numbers = measured(validation_loss_nats=loss, test_loss_nats=loss + 1 / 3, odd=math.nan)
        record = plans.record_of(
            run,
            label={v.id: v.label for v in variants}[run.variant],
            outcome=outcome,
            reason="why\nnot" if outcome != "ok" else "",
            metrics={"perplexity": numbers} if outcome == "ok" else {},
        )
        curve = [{**ROW, "step": 1.0, "validation_loss_nats": math.nan}, {**ROW, "step": 2.0}]
        store.commit(record, curve if outcome != "error" else [], lambda file: file.write(b"w"))
    with store.alone("measure") as lease:
        for variant in variants:
            of_variant = store.variant_folder(variant.label, variant.id)
            store.add_metric(lease, of_variant, "train_speed", measured(train_tokens_per_s=3.0))
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


def pack(results, target, pages=None):
    """Pack results with some pages beside them, and without a report."""
    return write_pack(target, results.packable(), pages or {})


def members(root):
    """Return the content of the files in a pack's archive by name."""
    with tarfile.open(root / ARCHIVE) as packed:
        return {member.name: packed.extractfile(member).read() for member in packed}


def test_a_pack_is_a_few_files_and_holds_no_weights(folder, packed):
    names = {path.name for path in packed.iterdir()}
    pages = {"experiment.yaml", "report.md", "effects.png", "effects_two.png"}
    assert names == {ARCHIVE, "runs.csv", *pages}
    assert "![effects](effects.png)" in (packed / "report.md").read_text("utf-8")
    assert "figures/" not in (packed / "report.md").read_text("utf-8")
    own = content(folder, "report", "working")
    held = members(packed)
    weights = {name for name in own if name.endswith("weights.safetensors")}
    dropped = {name.replace("weights.safetensors", "weights.dropped"): b"" for name in weights}
    assert len(weights) == len(Results.open(folder).finished)
    pages = {name: hashlib.sha256((packed / name).read_bytes()).hexdigest() for name in names}
    sums = sealed({name: pages[name] for name in sorted(names - {ARCHIVE})}, "pages.json")
    kept = {name: own[name] for name in own.keys() - weights}
    assert held == kept | dropped | {"pages.json": sums}


def test_packing_twice_gives_the_same_bytes_and_so_does_packing_a_pack(folder, packed, tmp_path):
    before = content(packed)
    pages = {name: page for name, page in before.items() if name != ARCHIVE}
    for source in (folder, packed, tmp_path / "again"):  # the last in its own place
        sizes = pack(Results.open(source), tmp_path / "again", pages)
        assert content(tmp_path / "again") == before
        assert sizes == {name: len(file) for name, file in before.items()}


def test_the_report_of_a_pack_is_that_of_the_folder_without_links_to_records(folder, copy, capsys):
    main(["report", str(copy)])
    capsys.readouterr()
    pages = content(folder / "report")
    assert {"report.html", "report.md", "figures/effects.svg"} <= pages.keys()
    page = pages["report.html"]
    pages["report.html"] = re.sub(rb'<a href="../(?:runs|failed)/[^"]*">(.*?)</a>', rb"\1", page)
    assert pages["report.html"] != page
    assert content(copy / "report") == pages


@pytest.mark.row("R25", "damage: 40 bytes of the archive of a pack, and half of it")
def test_any_changed_byte_of_a_pack_is_damage_told_in_one_line(copy, answer):
    """The last ones, too: xz's check sums, behind the end of what tar reads."""
    whole = (copy / ARCHIVE).read_bytes()
    last = range(len(whole) - 40, len(whole), 3)
    for at in (*range(0, len(whole), max(1, len(whole) // 40)), *last):
        (copy / ARCHIVE).write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert "damaged" in answer("status", copy, code=2), at
        assert [name for name, *_ in fsck.check(copy)] == ["I2"], at
    for end in (0, 1, len(whole) // 2, len(whole) - 1):
        (copy / ARCHIVE).write_bytes(whole[:end])
        assert "damaged" in answer("show", copy, code=2), end


def test_a_file_in_an_archive_that_is_not_as_it_was_written_is_damage(copy, answer):
    """Whoever packs a changed file makes an archive that is whole: the file's own sum is not."""
    held = members(copy)
    for name in ("plan.json", "protocol.json", *(n for n in held if n.startswith("runs/one0v1"))):
        files = {**held, name: held[name].replace(b"0", b"1", 1)}
        (copy / ARCHIVE).write_bytes(archive.archived(files.items()))
        assert "damaged" in answer("show", copy, code=2), name
        assert "I2" in {invariant for invariant, *_ in fsck.check(copy)}, name


def test_a_file_beside_the_archive_that_was_changed_is_told(copy, capsys):
    def changed():
        return {name for _, name, what in fsck.check(copy) if what == "is not what was packed"}

    (copy / "runs.csv").write_text("mine")
    (copy / "experiment.yaml").unlink()
    assert changed() == {"runs.csv", "experiment.yaml"}
    main(["report", str(copy)])
    assert "not as they were packed: 'experiment.yaml', 'runs.csv'" in capsys.readouterr().err
    main(["pack", str(copy)])
    assert not changed()


def repacked(root, name, change):
    """Change a document in a pack, and seal it and pack it again as a stranger can."""
    held = members(root)
    document = json.loads(held[name])
    del document["sha256"]
    change(document)
    files = {**held, name: sealed(document, name)}
    (root / ARCHIVE).write_bytes(archive.archived(files.items()))


def test_nothing_is_added_to_a_pack(copy, experiment_file, tmp_path, answer):
    before = content(copy)
    file = experiment_file(name="x")
    for words in (
        ["run", file, "--results", tmp_path],
        ["measure", copy, "perplexity"],
        ["generate", copy / "baseline", "--prompt", "a"],
    ):
        assert "holds packed results, without weights and closed to new runs" in answer(
            *words, code=2
        )
    with pytest.raises(ConfigError, match="holds packed results"):
        Store.open(copy)
    assert content(copy) == before


@pytest.fixture
def with_its_report(packed, monkeypatch):  # noqa: ARG001  by which the report was written
    """Let `pack` take the report that stands in the folder."""
    monkeypatch.setattr(report, "write", lambda _results: None)


@pytest.mark.usefixtures("with_its_report")
def test_a_pack_takes_the_place_of_a_pack_and_of_nothing_else(folder, packed, tmp_path, answer):
    target = tmp_path / "x"
    target.mkdir()
    (target / "mine").write_text("mine")
    assert "is there already, and is no pack" in answer("pack", folder, "--out", target, code=2)
    assert content(target) == {"mine": b"mine"}
    assert "is there already" in answer("pack", folder, "--out", folder, code=2)
    again = shutil.copytree(packed, tmp_path / "again")
    (again / "mine").write_text("mine")
    (again / "report.md").write_text("of an earlier report")
    assert main(["pack", str(folder), "--out", str(again)]) == 0
    assert content(again) == {**content(packed), "mine": b"mine"}


@pytest.mark.row("R25", "skew: another experiment's pack, or a later format's, in its place")
def test_a_pack_of_another_experiment_or_of_a_later_format_is_not_replaced(
    packed, tmp_path, answer
):
    first = REFERENCE / "first"
    before = content(packed)
    assert "holds a pack of 'x', not of 'first'" in answer("pack", first, "--out", packed, code=2)
    later = shutil.copytree(packed, tmp_path / "later")
    repacked(later, "plan.json", lambda plan: plan.update(format=99))
    held = content(later)
    assert "is of format 99: a later version" in answer("status", later, code=2)
    assert "is of format 99: a later version" in answer("pack", packed, "--out", later, code=2)
    assert (content(packed), content(later)) == (before, held)


@pytest.mark.row("R25", "race: two commands pack into one place")
def test_two_commands_do_not_pack_into_one_place_at_once(packed, copy, monkeypatch):
    replaced = []

    def alone(path, _file):
        with pytest.raises(BlockingIOError), disk.locked(copy, wait=False):
            pass
        replaced.append(path.name)

    monkeypatch.setattr(disk, "replace", alone)
    pack(Results.open(packed), copy, {"report.md": b"new"})
    assert sorted(replaced) == ["report.md", ARCHIVE]


@pytest.mark.usefixtures("with_its_report")
@pytest.mark.parametrize("replaces", [True, False])
def test_packing_that_is_killed_at_any_call_leaves_a_whole_archive_and_can_be_done_again(
    folder, packed, tmp_path, monkeypatch, capsys, tally, replaces
):
    """The archive from before or the new one; where there was none before, none or the new one."""
    old = tmp_path / "old"
    old.mkdir()
    if replaces:
        pack(Results.open(packed).only(["one0v1"]), old, {"report.md": b"old", "mine": b"mine"})
    files, pages = [*Results.open(packed).packable()], {"report.md": b"new"}
    monkeypatch.setattr(pack_command, "_pages", lambda _results: pages)
    calls = Disk(lambda *_: None)
    with monkeypatch.context() as patch:
        patch.setattr(disk, "os", calls)
        write_pack(shutil.copytree(old, tmp_path / "counted"), files, pages)
    after = content(tmp_path / "counted")
    assert calls.calls > 10
    ended, wrong = Counter(), []
    for number in range(1, calls.calls + 1):
        root = shutil.copytree(old, tmp_path / "x")

        def crash(number=number, root=root):
            crash_at(number).install()
            write_pack(root, files, pages)

        assert in_child(crash) == -9
        found = content(root).get(ARCHIVE)
        assert found in (content(old).get(ARCHIVE), after[ARCHIVE])
        ended[found == after[ARCHIVE]] += 1
        again = main(["pack", str(folder), "--out", str(root)])
        whole = {n: file for n, file in content(root).items() if not n.startswith(disk.PARTIAL)}
        wrong += [(number, again, capsys.readouterr().err)] * ((again, whole) != (0, after))
        shutil.rmtree(root)
    assert ended.keys() == {True, False}
    print(*wrong, sep="\n")
    what = f"kill: packing{' again' if replaces else ''}, before every call that changes the disk"
    tally("R25", what, ended.total(), len(wrong))


def member(kind, name, text=b"", link="", size=None):
    """Return a member of an archive; `size` is what it says of itself."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.linkname, entry.size = kind, link, len(text) if size is None else size
    return entry.tobuf(tarfile.GNU_FORMAT) + text + bytes(-len(text) % 512)


def hostile(root):
    """Return the archive of a pack with what no packing adds, by what is wrong with it."""
    raw = lzma.decompress((root / ARCHIVE).read_bytes())
    with tarfile.open(root / ARCHIVE) as packed:
        last = packed.getmembers()[-1]
    whole = raw[: last.offset_data + -(-last.size // 512) * 512]

    def with_(*more, end=bytes(1024)):
        added = b"".join(one if isinstance(one, bytes) else member(*one) for one in more)
        return lzma.compress(whole + added + end, preset=0)

    file, some, large = tarfile.REGTYPE, b"some text", bytes(1 << 24)
    return {
        "a symbolic link": with_((tarfile.SYMTYPE, "mine.json", b"", "/etc/passwd")),
        "a path that leads out": with_((file, "runs/../../mine.json", some)),
        "one path twice": with_((file, "experiment.yaml", some)),
        "a file that says to be large": with_((file, "mine.json", some, "", 1 << 40)),
        "too many files": with_(*((file, f"{n}.json") for n in range(60))),
        "too much in files": with_(*((file, f"{n}.json", bytes(LARGEST)) for n in range(9))),
        "a bomb behind the end": with_(end=large),
        "a bomb of a name": with_((tarfile.GNUTYPE_LONGNAME, "a", large), (file, "a")),
        "headers of headers": with_(*((tarfile.XHDTYPE, "a", NAME),) * 3000, (file, "a")),
        "long names of long names": with_(*((tarfile.GNUTYPE_LONGNAME, "a", b"b"),) * 3000),
        "a size beyond all numbers": with_((file, "mine.json", some, "", 1 << 80)),
        "a path of many folders": with_((file, "a/" * 40 + "b", some)),
        "a file cut off": with_((file, "mine.json", some, "", 4000), end=b""),
    }


NAME = b"10 path=a\n"
#: Bytes of one added file.
LARGEST = 1 << 15


def test_a_hostile_archive_is_refused_at_once_in_one_line(copy, monkeypatch, answer, tally):
    files = members(copy)
    monkeypatch.setattr(archive, "MAX_MEMBERS", len(files) + 50)
    monkeypatch.setattr(archive, "MAX_BYTES", 1 << 18)
    assert main(["status", str(copy)]) == 1
    archives, wrong = hostile(copy), []
    for what, raw in archives.items():
        (copy / ARCHIVE).write_bytes(raw)
        tracemalloc.start()
        try:
            with cpu_seconds(1):
                assert "damaged" in answer("status", copy, code=2)
        except Exception as error:  # noqa: BLE001  told by what it is
            wrong.append((what, repr(error)))
        wrong += [(what, "takes memory")] * (tracemalloc.get_traced_memory()[1] > 10 << 20)
        tracemalloc.stop()
    print(*wrong, sep="\n")
    tally("R24", "hostile archives", len(archives), len(wrong))


def test_a_bomb_is_refused_without_the_memory_that_it_asks_for(copy, answer):
    """One of 200 MB of zeros, and one whose window alone would take 64 MiB."""
    window = [{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 64 << 20}]
    for raw in (lzma.compress(bytes(200 << 20), preset=0), lzma.compress(b"", filters=window)):
        (copy / ARCHIVE).write_bytes(raw)
        tracemalloc.start()
        assert "damaged" in answer("status", copy, code=2)
        assert tracemalloc.get_traced_memory()[1] < 50 << 20
        tracemalloc.stop()


@pytest.mark.row("R26", "skew: keys of a later version")
@pytest.mark.usefixtures("without_pictures")
def test_what_a_pack_states_and_todays_schema_does_not_know_is_left_out_and_told(copy):
    """As of a key, a metric and a form of hypothesis that were removed since it was packed."""

    def plan(document):
        stated = document["experiment"]
        stated["no_such_section"] = {"a": 1}
        stated["measure"].append({"name": "no_such_metric"})
        stated["hypotheses"].append({**HYPOTHESIS, "minus_all": "x"})
        (table, _) = document["tables"]
        for part in (document, table, table["runs"][0], table["variants"][0]):
            part["no_such_key"] = {"a": 1}

    repacked(copy, "plan.json", plan)
    results = Results.open(copy)
    assert len(results.finished) == len(results.plan.runs) - 1
    assert len(results.plan.experiment.hypotheses) == 1
    for command in ("status", "show", "report"):
        assert main([command, str(copy)]) in (0, 1), command
    page = (copy / "report" / "report.md").read_text("utf-8")
    assert "stated, no longer judged" in page
    assert "minus_all x" in page
    before = members(copy)
    assert main(["pack", str(copy)]) == 0
    changed = {name for name, held in members(copy).items() if before[name] != held}
    assert changed == {"pages.json"}  # the rest as it was stored, with what is not known


def test_the_published_packs_are_sound_few_and_small(volume):
    packs = sorted(file.parent for file in REFERENCE.rglob(ARCHIVE))
    assert len(packs) == 44
    some = packs[:: volume(16, 1, 1)]  # each is unpacked to hundreds of files
    assert [breach for folder in some for breach in fsck.check(folder)] == []
    files = [file for file in REFERENCE.rglob("*") if file.is_file() and "report" not in file.parts]
    assert len(files) <= 270
    assert sum(file.stat().st_size for file in files) <= 17_000_000
