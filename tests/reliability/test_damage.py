"""R7 and R8: damaged files, and folders that cannot be used."""

import json
import os
import random
import shutil
import subprocess
import time
from contextlib import suppress

import pytest

from llama_ablate.commands.cli import main
from llama_ablate.commands.shared import notes
from llama_ablate.data import tokens
from llama_ablate.errors import ConfigError
from llama_ablate.files.strict_json import sealed
from llama_ablate.launch import worker
from llama_ablate.results import Store, leases
from llama_ablate.results.run import RunFolder
from llama_ablate.training import checkpoint
from tests.commands import command
from tests.metrics import measured
from tests.quiet import cpu_seconds

from .harness import Settings, begun, breaches, fsck, grid, in_child

AT_WORK = "tiny/working/*/lease-1", "tiny/plan.json"
TRAIN = "{steps: 6, batch: 2, lr: 1e-3, precision: float32, kernel: math, evals: 1}"


def damage(kind, file, chance, other):
    """Change a file as disks, copies and people do."""
    raw = bytearray(file.read_bytes())
    at = chance.randrange(len(raw))
    if kind == "flip a bit":
        raw[at] ^= 1 << chance.randrange(8)
    elif kind == "truncate":
        raw = raw[: at // 64 * 64]
    elif kind == "zero a block":
        raw[at : at + 64] = bytes(len(raw[at : at + 64]))
    elif kind == "empty":
        raw = bytearray()
    else:
        raw = bytearray(other.read_bytes())
    changed = bytes(raw) != file.read_bytes()
    file.write_bytes(raw)
    return changed


def refused(read, file):
    """Return whether a document is not believed, and named."""
    try:
        read()
    except ConfigError as error:
        return str(file) in str(error)
    return False


def read_compute(store):
    """Read what was measured, as commands do. Raises ConfigError where it is measured again."""

    def again():
        raise ConfigError(f"{store.document('compute')} is measured again")

    return store.measure_once("compute", "cpu", again)


KINDS = ["flip a bit", "truncate", "zero a block", "empty", "swap with another run's"]


def test_every_damage_to_a_finished_run_is_seen_and_no_healthy_run_is_blamed(
    experiment_file, tmp_path, volume, tally
):
    file = experiment_file(train=TRAIN, measure="[perplexity, calibration]")
    store = grid(file, tmp_path)
    folders = sorted(run.path for run in store.folders().values())
    files = [[p for p in sorted(f.rglob("*")) if p.is_file()] for f in folders]
    assert len(folders) == 4
    assert {len(of) for of in files} == {3}
    chance, missed, blamed, trials = random.Random(0), [], [], 0
    for _ in range(volume(60, 500, 10_000)):
        one, two = chance.sample(range(4), 2)
        which = chance.randrange(3)
        target, kind = files[one][which], chance.choice(KINDS)
        whole = target.read_bytes()
        if damage(kind, target, chance, files[two][which]):
            trials += 1
            standing = [RunFolder(folder).is_intact for folder in folders]
            if standing[one]:
                missed.append((kind, target))
            if sum(standing) < 3:
                blamed.append((kind, target))
        target.write_bytes(whole)
    print(missed, blamed)
    what = "bits flipped, files truncated, zeroed, emptied, swapped: seen, and of that run"
    tally("R8", what, trials, len(missed) + len(blamed))


def test_every_damage_to_a_document_or_a_checkpoint_is_seen(
    experiment_file, tmp_path, volume, tally, capsys
):
    file = experiment_file(train=TRAIN, measure="[perplexity]", seeds="1", variants="{}")
    store = grid(file, tmp_path)
    saved = tmp_path / "saved"
    saved.mkdir()
    checkpoint.save(saved, 5, {"step": 5, "numbers": [0.5] * 200})
    checkpoint.save(saved, 6, {"step": 6, "numbers": [0.5] * 200})
    (latest,) = saved.glob("checkpoint-6-*")
    reads = {
        store.plan_file: lambda: store.plan,
        store.root / "compute.json": lambda: read_compute(store),
        store.root / "protocol.json": lambda: store.protocol,
    }
    chance, missed, trials = random.Random(0), [], 0
    for _ in range(volume(60, 300, 3000)):
        target = chance.choice([*reads, latest])
        whole, kind = target.read_bytes(), chance.choice(KINDS[:4])
        if damage(kind, target, chance, None):
            trials += 1
            if target == latest:
                assert checkpoint.load(saved)["step"] == 5  # the one before is used
            else:
                missed += [(kind, target)] * (not refused(reads[target], target))
        target.write_bytes(whole)
    capsys.readouterr()
    print(missed)
    what = "plan, compute, protocol and checkpoints damaged in these ways"
    tally("R8", what, trials, len(missed))


def test_a_damaged_run_is_set_aside_and_trained_again_and_the_others_are_not(
    experiment_file, tmp_path
):
    file = experiment_file(train=TRAIN, measure="[perplexity]")
    reference = grid(file, tmp_path / "reference").root
    store = grid(file, tmp_path)
    folders = sorted(run.path for run in store.folders().values())
    before = [(f / "record.json").stat().st_mtime_ns for f in folders]
    damaged = folders[1] / "weights.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    (folders[2] / "record.json").write_text("{}")
    grid(file, tmp_path)
    assert not breaches(store.root, reference)
    after = [(f / "record.json").stat().st_mtime_ns for f in folders]
    assert [a == b for a, b in zip(after, before, strict=True)] == [True, False, False, True]
    kept = {path.name for path in (store.root / "damaged").iterdir()}
    assert kept == {f"{folders[1].name}--1", f"{folders[2].name}--1"}


def zero(pattern, of):
    """Overwrite the beginning of the files of tokens in a cache, in place."""
    files = list(of.glob(f"tokens/*/{pattern}"))
    assert files
    for file in files:
        with file.open("r+b") as opened:
            opened.write(bytes(2000))


@pytest.mark.parametrize("sums", [True, pytest.param(False, marks=pytest.mark.full)])
def test_tokens_that_are_damaged_between_two_runs_are_made_again(
    experiment_file, tmp_path, monkeypatch, sums
):
    monkeypatch.setenv("LLAMA_ABLATE_CACHE", str(tmp_path / "cache"))
    file = experiment_file(train=TRAIN, measure="[perplexity]")
    reference = grid(file, tmp_path / "reference")
    train, seen = worker.run, []

    def damaging(root, run):
        outcome = train(root, run)
        if not seen:
            zero("train.bin", tmp_path / "cache")
            if not sums:
                next(tmp_path.glob("cache/tokens/*/sums.json")).unlink()
        return seen.append(outcome)

    monkeypatch.setattr(worker, "run", damaging)
    store = grid(file, tmp_path)
    assert seen == ["ok"] * 4
    assert not breaches(store.root, reference.root)


@pytest.mark.parametrize("split", ["train", "validation"])
def test_a_run_whose_tokens_are_damaged_while_it_trains_is_an_error_and_tried_again(
    experiment_file, tmp_path, monkeypatch, split
):
    """The held-out text is looked at before the commit, and no checkpoint outlives the damage."""
    monkeypatch.setenv("LLAMA_ABLATE_CACHE", str(tmp_path / "cache"))
    file = experiment_file(train=TRAIN, measure="[perplexity]", seeds="1")
    reference = grid(file, tmp_path / "reference")
    batch, damaged = tokens.Tokens.batch, []

    def damaging(self, seed, k, size, context):
        if k == 4 and not damaged:
            damaged.append(zero(f"{split}.bin", tmp_path / "cache"))
        return batch(self, seed, k, size, context)

    monkeypatch.setattr(tokens.Tokens, "batch", damaging)
    store = grid(file, tmp_path)
    first, second = store.records()
    assert (first.outcome, second.outcome) == ("error", "ok")
    assert first.reason.endswith("since they were written: the next command makes them again")
    assert not list(store.working(first.id).glob("checkpoint-*"))
    grid(file, tmp_path)
    assert not breaches(store.root, reference.root)


def test_a_folder_that_cannot_be_used_is_told_in_one_line_before_anything_is_trained(
    experiment_file, tmp_path, tally, capsys
):
    file = experiment_file(train=TRAIN, measure="[perplexity]")
    wrong = []
    (tmp_path / "elsewhere").mkdir()
    links = {"a link inside": "tiny/runs"}
    files = {"a file": "", "a name in a file": "tiny/working"}
    for case, place in (links | files).items():
        results = tmp_path / case.replace(" ", "-")
        (results / place).parent.mkdir(parents=True, exist_ok=True)
        if case in links:
            (results / place).symlink_to(tmp_path / "elsewhere")
        else:
            (results / place).write_text("")
        with cpu_seconds(2):
            code = main(["run", str(file), "--results", str(results), "--device", "cpu"])
        said = capsys.readouterr().err
        if code != 2 or said.count("\n") != 1:
            wrong.append((case, code, said))
        if list((tmp_path / "elsewhere").iterdir()):
            wrong.append((case, "wrote through a link"))
    print(wrong)
    tally("R7", "a file or a link in the place of a folder", 3, len(wrong))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_a_folder_of_another_user_is_told_and_a_strict_umask_does_no_harm(
    experiment_file, tmp_path, tally
):
    for folder in [tmp_path, *tmp_path.parents][:4]:
        folder.chmod(0o755)
    (tmp_path / "theirs").mkdir(mode=0o755)

    def foreign():
        os.setuid(65534)
        Store(tmp_path / "theirs" / "x").prepare()

    def secretive():
        os.umask(0o077)
        grid(file, tmp_path)

    file = experiment_file(train=TRAIN, measure="[perplexity]", seeds="1")
    assert in_child(foreign) == 2
    assert in_child(secretive) == 0
    wrong = breaches(tmp_path / "tiny")
    assert (next(tmp_path.glob("tiny/runs/*/record.json")).stat().st_mode & 0o077) == 0
    tally("R7", "the folder of another user; umask 077", 2, len(wrong))


@pytest.mark.full
@pytest.mark.skipif(os.getuid() != 0, reason="mounting a file system takes root")
def test_a_disk_that_fills_up_ends_in_one_line_and_goes_on_when_there_is_room(
    experiment_file, tmp_path, launch, capsys, tally
):
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(place)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        train = TRAIN.replace("steps: 6", "steps: 300")
        file = experiment_file(train=train, measure="[perplexity]", seeds="4")
        reference = grid(file, tmp_path / "reference", Settings()).root
        (place / "filler").write_bytes(bytes((8 << 20) - (400 << 10)))
        capsys.readouterr()
        assert main(command(file, place)[3:]) == 2  # predicted to be too small
        error = capsys.readouterr().err
        assert "are free" in error
        assert error.count("\n") == 1
        (place / "filler").unlink()
        launcher = launch(command(file, place))
        begun(launcher, place, *AT_WORK)
        with suppress(OSError), (place / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
        error = launcher.communicate()[1]
        assert launcher.returncode == 2, error
        assert "Traceback" not in error
        assert "No space left on device" in error
        assert "what is finished is kept" in error
        finished = len(Store(place / "tiny").final_ids())
        (place / "filler").unlink()
        grid(file, place, Settings())
        assert finished < 8
        assert not breaches(place / "tiny", reference)
    finally:
        subprocess.run(["umount", str(place)], check=True)
    tally("R6", "a real file system of 8 MB that fills up during a grid", 1)


@pytest.mark.full
def test_a_folder_that_goes_away_under_a_grid_is_one_line(experiment_file, tmp_path, launch, tally):
    train = TRAIN.replace("steps: 6", "steps: 4000")
    file = experiment_file(train=train, measure="[perplexity]", seeds="1")
    launcher = launch(command(file, tmp_path / "r"))
    begun(launcher, tmp_path / "r", *AT_WORK)
    time.sleep(0.5)
    while (tmp_path / "r").exists():
        shutil.rmtree(tmp_path / "r", ignore_errors=True)
    error = launcher.communicate()[1]
    wrong = "Traceback" in error or launcher.returncode != 2
    print(error)
    tally("R7", "the results folder is removed during a grid", 1, int(wrong))


def test_a_new_plan_over_finished_runs_keeps_their_plan(experiment_file, tmp_path, capsys):
    file = experiment_file(train=TRAIN, measure="[perplexity]", seeds="1", variants="{}")
    store = grid(file, tmp_path)
    plan, before = store.plan, store.records()
    (table,), (run,) = plan.tables, plan.tables[0].runs
    other = table.model_copy(update={"runs": [run.model_copy(update={"id": "new"})]})
    store.create(plan.model_copy(update={"tables": [other]}), "")
    notes.left_out(store, {*store.plan.runs})
    (earlier,) = store.root.glob("plan-*.json")
    said = capsys.readouterr().err
    assert "1 finished runs" in said
    assert f"llama-ablate show '{earlier}'" in said
    assert Store.open(store.root).records() == []
    assert Store.open(earlier).records() == before
    assert Store.open(earlier).plan == plan
    assert main(["status", str(earlier)]) == 0
    assert {what.split(" ", 2)[2] for _, _, what in fsck.check(store.root)} == {"has 0 commits"}


def unseal(file, **changes):
    """Write a document again without its seal, with some of its keys changed or, by None, gone."""
    values = json.loads(file.read_text("utf-8")) | {"sha256": None} | changes
    kept = {key: value for key, value in values.items() if value is not None}
    file.write_text(json.dumps(kept, indent=1) + "\n", "utf-8")


def test_documents_without_their_seal_are_damage_to_product_and_checker(
    experiment_file, tmp_path, unsealed
):
    file = experiment_file(train=TRAIN, measure="[perplexity]", seeds="1", variants="{}")
    store = grid(file, tmp_path)
    variant = store.plan.tables[0].variants[0]
    with store.alone("measure") as lease:
        store.add_metric(
            lease, store.variant_folder(variant.label, variant.id), "speed", measured(speed=1.0)
        )
    (folder,) = (run.path for run in store.folders().values())
    reads = {
        "plan.json": lambda now: now.plan,
        "compute.json": read_compute,
        "protocol.json": lambda now: now.protocol,
        "record.json": lambda now: now.records(),
        "metrics/speed.json": lambda now: now.metrics_of([variant.id])[variant.id],
    }
    for name, read in reads.items():
        (document,) = [p for p in store.root.rglob("*.json") if p.as_posix().endswith(f"/{name}")]
        whole = document.read_bytes()
        unseal(document)
        assert refused(lambda read=read: read(Store(store.root)), document), name
        found = [path for _, path, what in breaches(store.root) if what == "bears no seal"]
        assert found == [str(document.relative_to(store.root))]
        document.write_bytes(whole)
    assert not breaches(store.root)
    record = unsealed(folder / "record.json")
    del record["files"]
    place = (folder / "record.json").relative_to(store.root).as_posix()
    (folder / "record.json").write_bytes(sealed(record, place))
    assert not RunFolder(folder).is_intact


def test_a_process_is_known_by_more_than_its_number(monkeypatch):
    name = leases.myself()
    assert leases.alive(name) is True
    boot, namespace, pid, began, drawn = name.split(" ")
    assert leases.alive(f"{boot} {namespace} {pid} {int(began) + 1} {drawn}") is False
    assert leases.alive(f"another {namespace} {pid} {int(began) + 1} {drawn}") is None
    assert leases.alive(f"{boot} pid:[1] {pid} {int(began) + 1} {drawn}") is None
    assert leases.alive("") is None
    for unreadable in ("_boot", "_namespace"):  # who cannot tell where it runs takes none for dead
        with monkeypatch.context() as patch:
            patch.setattr(leases, unreadable, lambda: "")
            boot, namespace, pid, began, drawn = leases.myself().split(" ")
            assert leases.alive(f"{boot} {namespace} {pid} {int(began) + 1} {drawn}") is None


def test_the_checker_tells_any_damage_as_a_breach(experiment_file, tmp_path):
    file = experiment_file(train=TRAIN, measure="[perplexity]", seeds="1", variants="{}")
    store = grid(file, tmp_path)
    assert fsck.check(store.root, store.root) == []
    folder = store.folder(next(iter(store.plan.runs))).relative_to(store.root)
    damages = {
        folder / "curve.csv": os.remove,
        folder / "record.json": lambda file: file.write_bytes(b"\xff" + file.read_bytes()),
        "plan.json": lambda file: file.write_text("[]"),
    }
    for number, (name, spoil) in enumerate(damages.items()):
        root = shutil.copytree(store.root, tmp_path / str(number))
        spoil(root / name)
        assert "I2" in {what for what, _path, _said in fsck.check(root, root)}, name
