"""R6, R7 and R8: damaged files, folders that cannot be used, and a disk that is full."""

import os
import random
import shutil
import subprocess
import time
from contextlib import suppress

import pytest

from llama_ablate.commands.cli import main
from llama_ablate.data import tokens
from llama_ablate.launch import worker
from llama_ablate.results import Store, leases
from llama_ablate.results.run import RunFolder
from llama_ablate.training import checkpoint
from tests.commands import command
from tests.quiet import cpu_seconds

from .conftest import TRAIN
from .harness import CONTENT, Settings, begun, breaches, damage, gone_on, grid, in_child


def test_every_damage_to_a_finished_run_is_seen_and_no_healthy_run_is_blamed(
    four, tmp_path, volume, tally
):
    store = grid(four, tmp_path)
    folders = sorted(run.path for run in store.folders().values())
    files = [[p for p in sorted(f.rglob("*")) if p.is_file()] for f in folders]
    assert {len(of) for of in files} == {3}
    chance, missed, blamed, trials = random.Random(0), [], [], 0
    for _ in range(volume(60, 500, 10_000)):
        one, two = chance.sample(range(4), 2)
        which = chance.randrange(3)
        target, kind = files[one][which], chance.choice(CONTENT)
        whole = target.read_bytes()
        if damage(kind, target, chance, files[two][which]):
            trials += 1
            standing = [RunFolder(folder).is_intact for folder in folders]
            checked = trials % 20 or "I2" in {what for what, *_ in breaches(store.root)}
            missed += [(kind, target)] * (standing[one] or not checked)
            blamed += [(kind, target)] * (sum(standing) < 3)
        target.write_bytes(whole)
    print(missed, blamed)
    what = "bits flipped, files truncated, zeroed, emptied, swapped: seen, and of that run"
    tally("R8", what, trials, len(missed) + len(blamed))


def test_a_damaged_checkpoint_is_not_used_and_the_one_before_it_is(tmp_path):
    for step in (5, 6):
        checkpoint.save(tmp_path, step, {"step": step, "numbers": [0.5] * 200})
    (latest,) = tmp_path.glob("checkpoint-6-*")
    whole, chance = latest.read_bytes(), random.Random(0)
    for kind in [*CONTENT[:4] * 10, "remove"]:
        latest.write_bytes(whole)
        if damage(kind, latest, chance, None):
            assert checkpoint.load(tmp_path)["step"] == 5, kind


def zero(pattern, of):
    """Overwrite the beginning of the files of tokens in a cache, in place."""
    files = list(of.glob(f"tokens/*/{pattern}"))
    assert files
    for file in files:
        with file.open("r+b") as opened:
            opened.write(bytes(2000))


@pytest.mark.parametrize("when", ["between two runs", "train", "validation"])
def test_tokens_that_are_damaged_during_a_grid_are_made_again_and_no_run_is_of_them(
    four, tmp_path, monkeypatch, when
):
    """The held-out text is looked at before the commit, and no checkpoint outlives the damage."""
    monkeypatch.setenv("LLAMA_ABLATE_CACHE", str(tmp_path / "cache"))
    reference = grid(four, tmp_path / "reference").root
    batch, train, damaged = tokens.Tokens.batch, worker.run, []

    def before_a_batch(self, seed, k, size, context):
        if k == 4 and not damaged:
            damaged.append(zero(f"{when}.bin", tmp_path / "cache"))
        return batch(self, seed, k, size, context)

    def after_a_run(root, run):
        outcome = train(root, run)
        if not damaged:
            damaged.append(zero("train.bin", tmp_path / "cache"))
        return outcome

    if when == "between two runs":
        monkeypatch.setattr(worker, "run", after_a_run)
    else:
        monkeypatch.setattr(tokens.Tokens, "batch", before_a_batch)
    store = grid(four, tmp_path)
    outcomes = [record.outcome for record in store.records()]
    assert damaged
    assert sorted(outcomes) == ["error"] * (when != "between two runs") + ["ok"] * (
        4 if when == "between two runs" else 3
    )
    assert not list(store.root.glob("working/*/checkpoint-*"))
    assert gone_on(four, tmp_path, reference) == []


def test_a_folder_that_cannot_be_used_is_told_in_one_line_before_anything_is_trained(
    one, tmp_path, tally, capsys
):
    wrong = []
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    cases = {"a link inside": "tiny/runs", "a file": "", "a name in a file": "tiny/working"}
    for case, place in cases.items():
        results = tmp_path / case.replace(" ", "-")
        (results / place).parent.mkdir(parents=True, exist_ok=True)
        if case == "a link inside":
            (results / place).symlink_to(elsewhere)
        else:
            (results / place).write_text("")
        with cpu_seconds(2):
            code = main(command(one, results)[3:])
        said = capsys.readouterr().err
        if code != 2 or said.count("\n") != 1 or list(elsewhere.iterdir()):
            wrong.append((case, code, said))
    print(wrong)
    tally("R7", "a file or a link in the place of a folder", 3, len(wrong))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_a_folder_of_another_user_is_told_and_a_strict_umask_does_no_harm(one, tmp_path, tally):
    for folder in [tmp_path, *tmp_path.parents][:4]:
        folder.chmod(0o755)
    (tmp_path / "theirs").mkdir(mode=0o755)

    def foreign():
        os.setuid(65534)
        Store(tmp_path / "theirs" / "x").prepare()

    def secretive():
        os.umask(0o077)
        grid(one, tmp_path)

    assert in_child(foreign) == 2
    assert in_child(secretive) == 0
    wrong = breaches(tmp_path / "tiny")
    assert (next(tmp_path.glob("tiny/runs/*/record.json")).stat().st_mode & 0o077) == 0
    tally("R7", "the folder of another user; umask 077", 2, len(wrong))


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 8 MB."""
    place = tmp_path / "small"
    place.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(place)]
    mounted = subprocess.run(words, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.mark.full
def test_a_disk_that_fills_up_ends_in_one_line_and_goes_on_when_there_is_room(
    experiment_file, tmp_path, small_disk, launch, capsys, tally
):
    train = TRAIN.replace("steps: 6", "steps: 300")
    file = experiment_file(train=train, measure="[perplexity]", seeds="4")
    reference = grid(file, tmp_path / "reference", Settings()).root
    filler = small_disk / "filler"
    filler.write_bytes(bytes((8 << 20) - (400 << 10)))
    capsys.readouterr()
    assert main(command(file, small_disk)[3:]) == 2  # predicted to be too small
    assert capsys.readouterr().err.count("\n") == 1
    filler.unlink()
    launcher = launch(command(file, small_disk))
    begun(launcher, small_disk, "tiny/working/*/lease-1", "tiny/plan.json")
    with suppress(OSError), filler.open("wb", buffering=0) as full:
        while True:
            full.write(bytes(4096))
    error = launcher.communicate()[1]
    assert launcher.returncode == 2, error
    assert "Traceback" not in error
    assert "No space left on device" in error
    finished = len(Store(small_disk / "tiny").final_ids())
    filler.unlink()
    wrong = gone_on(file, small_disk, reference)
    assert finished < 8
    tally("R6", "a real file system of 8 MB that fills up during a grid", 1, len(wrong))


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


def test_a_damaged_run_is_set_aside_and_trained_again_and_the_others_are_not(four, tmp_path):
    reference = grid(four, tmp_path / "reference").root
    store = grid(four, tmp_path)
    folders = sorted(run.path for run in store.folders().values())
    before = [(f / "record.json").stat().st_mtime_ns for f in folders]
    damaged = folders[1] / "weights.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    (folders[2] / "record.json").write_text("{}")
    grid(four, tmp_path)
    assert not breaches(store.root, reference)
    after = [(f / "record.json").stat().st_mtime_ns for f in folders]
    assert [a == b for a, b in zip(after, before, strict=True)] == [True, False, False, True]
    kept = {path.name for path in (store.root / "damaged").iterdir()}
    assert kept == {f"{folders[1].name}--1", f"{folders[2].name}--1"}


@pytest.mark.full
def test_a_folder_that_goes_away_under_a_grid_is_one_line(experiment_file, tmp_path, launch, tally):
    train = TRAIN.replace("steps: 6", "steps: 4000")
    file = experiment_file(train=train, measure="[perplexity]", seeds="1")
    launcher = launch(command(file, tmp_path / "r"))
    begun(launcher, tmp_path / "r", "tiny/working/*/lease-*")
    time.sleep(0.5)
    while (tmp_path / "r").exists():
        shutil.rmtree(tmp_path / "r", ignore_errors=True)
    error = launcher.communicate()[1]
    wrong = "Traceback" in error or launcher.returncode != 2
    print(error)
    tally("R7", "the results folder is removed during a grid", 1, int(wrong))
