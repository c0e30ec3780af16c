"""The law of the token cache: whatever happens to a file in it, a fingerprint stands for one text.

A text is tokenised in many chunks, stopped in the middle, and something in the cache is changed.
The command that goes on ends with the bytes of one that was never stopped, or in an error.
"""

import copy
import hashlib
import json
import os
import random
import shutil
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from llama_ablate.data import texts
from llama_ablate.data import tokens as store
from llama_ablate.data.corpus import CORPORA
from llama_ablate.data.tokenizer import TOKENIZERS
from llama_ablate.errors import ConfigError
from tests.reliability.fuzzing import at, paths
from tests.reliability.harness import crash_at, in_child


class Cache:
    """A token cache in memory, written to a folder again before each trial."""

    def __init__(self, folder, corpus, tokenizer):
        self.folder, self._corpus, self._tokenizer = folder, corpus, tokenizer
        self.files = {}

    def prepare(self):
        store.prepare(self._corpus, self._tokenizer, self.folder)
        return self.now("tokens/*/*")

    def now(self, pattern="**/*"):
        files = (path for path in sorted(self.folder.glob(pattern)) if path.is_file())
        # Times of files differ from one cache to the next.
        files = (path for path in files if pattern == "**/*" or path.name != "states.json")
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in files}

    def keep(self):
        self.files = self.now()

    def restore(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        for name, content in self.files.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_bytes(content)

    def gone_on(self):
        """Return the tokens that are made now; None where that is refused in a line."""
        with suppress(ConfigError, OSError):
            return self.prepare()
        return None


@pytest.fixture
def quick(monkeypatch):
    """Make chunks of a document, and leave flushing to the system."""
    monkeypatch.setattr(texts, "_BLOCK", 20)
    monkeypatch.setattr("llama_ablate.data.readers.RECENT_S", 0.0)
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def whole(tmp_path, quick):  # noqa: ARG001
    """A cache whose tokens are all made."""
    lines = (json.dumps({"text": f"{i} " * 6}) for i in range(10, 24))
    (tmp_path / "x.jsonl").write_text("\n".join(lines), "utf-8")
    entry = {"name": "files", "path": str(tmp_path / "x.jsonl"), "splits": [0.6, 0.2, 0.2]}
    cache = Cache(tmp_path / "cache", CORPORA.resolve(entry), TOKENIZERS.resolve("chars"))
    cache.prepare()
    cache.keep()
    return cache


@pytest.fixture
def reference(whole):
    return whole.now("tokens/*/*")


def others(value):
    """Return what might stand in the place of a value."""
    if isinstance(value, int):
        return [value + 1, value ^ 64]
    if isinstance(value, str):
        return [value[:-1], value[::-1]]
    if isinstance(value, dict):
        return [dict([*value.items()][:-1])]
    return [value[1:], value[:-1]] if isinstance(value, list) else []


def variations(content):
    """Yield what is changed in a document, and the whole of it then, without its seal."""
    values = json.loads(content)
    values.pop("sha256", None)
    for path in paths(values):
        for other in others(at(values, path)):
            changed = copy.deepcopy(values)
            at(changed, path[:-1])[path[-1]] = other
            yield path, changed


def test_a_changed_field_of_a_note_changes_no_token(whole, reference, tally):
    wrong, trials = [], 0
    for name, content in whole.files.items():
        if not name.endswith(".json") or name.endswith("tokenizer.json"):
            continue
        for path, values in variations(content):
            whole.restore()
            (whole.folder / name).write_text(json.dumps(values), "utf-8")
            trials += 1
            if whole.gone_on() not in (reference, None):
                wrong.append((name, path))
    assert trials > 20
    tally("R27", "damage: a field of what a tokenisation is gone on with from", trials, len(wrong))


def test_no_changed_byte_of_the_cache_changes_a_token(whole, reference, volume, tally):
    wrong, trials = [], 0
    chance = random.Random(0)
    for name, content in whole.files.items():
        for i in range(0, len(content), volume(19, 1, 1)):
            whole.restore()
            flipped = content[i] ^ 1 << chance.randrange(8)
            (whole.folder / name).write_bytes(content[:i] + bytes([flipped]) + content[i + 1 :])
            trials += 1
            if whole.gone_on() not in (reference, None):
                wrong.append((name, i))
    assert trials > 40
    tally("R27", "damage: a bit of the cache of texts and tokens", trials, len(wrong))


def fifo(path):
    os.mkfifo(path)


def folder(path):
    (path / "inner").mkdir(parents=True)


@pytest.mark.row("R27", "damage: a pipe or a folder in the place of each file of the cache")
@pytest.mark.timeout(120)  # a hang, not a slow machine
@pytest.mark.parametrize("make", [fifo, folder])
def test_what_is_no_file_hangs_nothing_and_is_made_again_or_refused(make, whole, reference):
    folders = {str(Path(name).parent) for name in whole.files}
    for name in [*whole.files, *folders]:
        whole.restore()
        path = whole.folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        make(path)
        made = whole.gone_on()
        assert made == reference or (name in folders and made is None), name


def resealed(folder, **changes):
    """Write another manifest, and the sums of a program that meant it."""
    manifest = json.loads((folder / "manifest.json").read_text()) | changes
    (folder / "manifest.json").write_text(json.dumps(manifest))
    sums = json.loads((folder / "sums.json").read_text())
    sums["manifest.json"] = hashlib.sha256((folder / "manifest.json").read_bytes()).hexdigest()
    (folder / "sums.json").write_text(json.dumps(sums))


@pytest.mark.row("R27", "damage: a manifest with other counts, and the sums that go with them")
def test_a_manifest_that_counts_other_tokens_than_its_files_hold_is_not_believed(whole, reference):
    (folder,) = (whole.folder / "tokens").iterdir()
    for changes in ({}, {"lost": None}):
        resealed(folder, **changes)
        store.load(folder)
    counts = json.loads((folder / "manifest.json").read_text())["counts"]
    resealed(folder, counts={**counts, "train": counts["train"] + 1000})
    with pytest.raises(store.DamagedError):
        store.load(folder)
    assert whole.prepare() == reference


@pytest.mark.row("R27", "skew: tokens of another text under this one's fingerprint")
def test_tokens_in_the_place_of_others_are_not_believed(whole):
    (folder,) = (whole.folder / "tokens").iterdir()
    other = shutil.copytree(folder, folder.with_name("0123456789abcdef"))
    with pytest.raises(store.DamagedError, match="the tokens of another text or tokenizer"):
        store.load(other)


@pytest.mark.row("R27", "skew: the note of the same file, split elsewhere")
def test_a_note_of_another_corpus_is_not_believed(whole, tmp_path):
    """Of the same file in the same state, split elsewhere."""
    entry = {"name": "files", "path": str(tmp_path / "x.jsonl"), "splits": [0.4, 0.3, 0.3]}
    other = Cache(tmp_path / "other", CORPORA.resolve(entry), TOKENIZERS.resolve("chars"))
    expected = other.prepare()
    (note,) = other.folder.glob("texts/*")
    other.folder = whole.folder
    shutil.copy(next(whole.folder.glob("texts/*")), whole.folder / "texts" / note.name)
    assert expected.items() <= other.prepare().items()


def test_a_tokenisation_that_is_killed_at_any_change_of_the_disk_ends_alike(
    whole, reference, volume, tally
):
    """Also half way into a write."""

    def killed_at(number):
        shutil.rmtree(whole.folder)
        crash_at(number).install()  # in the child, for good
        whole.prepare()

    calls, killed = 1, -signal.SIGKILL
    step = volume(9, 1, 1)
    while killed == -signal.SIGKILL:
        killed = in_child(killed_at, calls)
        assert whole.prepare() == reference, calls
        calls += step
    assert killed == 0
    assert calls > 50
    tally("R27", "kill: a tokenisation, before every call that changes the disk", calls // step)
