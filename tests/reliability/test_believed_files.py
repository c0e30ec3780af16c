"""docs/believed_files.yaml lists what commands read; a damage to any of it is found or harmless."""

import random
import shutil
from itertools import islice

import pytest

from docs.believed_files import KINDS
from llama_ablate.commands.cli import main
from llama_ablate.data import texts
from llama_ablate.data import tokens as store
from llama_ablate.files.disk import PARTIAL
from llama_ablate.training import checkpoint
from tests.in_process import in_process
from tests.reliability.harness import CONTENT, PLACE, breaches, damage
from tests.reliability.watched import changes

#: What a story has in its folder, and the kinds of files of each.
ROOTS = {"results/tiny": KINDS["results"], "pack": KINDS["pack"], "cache": KINDS["cache"]}
encode, save = store.encode, checkpoint.save


def some_chunks(*arguments):
    """Encode some of a text, and stop as by Ctrl-C."""
    yield from islice(encode(*arguments), 5)
    raise KeyboardInterrupt


def one_checkpoint(*arguments):
    """Save a checkpoint, and stop as by Ctrl-C."""
    save(*arguments)
    raise KeyboardInterrupt


class Story:
    """A grid whose text is tokenised in two commands and whose runs are trained in two more.

    What lies on the disk after each of them is kept.
    """

    def __init__(self, file, folder, monkeypatch):
        self.file, self.folder, self._monkeypatch = file, folder, monkeypatch
        self._run = ["run", file, "--results", folder / "results", "--device", "cpu"]
        self._found = set()
        self._tell()

    def _tell(self):
        with self._monkeypatch.context() as patch:
            patch.setattr(store, "encode", some_chunks)
            assert self.do("plan", self.file) == 130
        self._keep("text")
        with self._monkeypatch.context() as patch:
            patch.setattr(checkpoint, "save", one_checkpoint)
            assert self.do(*self._run, "--checkpoint-every", "1e-9") == 130
        self._keep("checkpoint")
        assert self.do("plan", self.file) == 0
        assert self.do(*self._run) == 0
        assert self.run() == 0
        assert self.do("pack", self.folder / "results/tiny", "--out", self.folder / "pack") == 0
        (earlier,) = self.folder.glob("results/tiny/plan-*.json")
        assert self.do("status", earlier) == 0
        assert self.do("report", self.folder / "pack") == 0
        self._keep("end")

    def do(self, *words):
        with changes(reading=True) as found:
            code = main([str(word) for word in words])
        self._found |= {*found}
        return code

    def run(self):
        return self.do(*self._run, "--set", "seeds=1")

    def read(self, root):
        """Return the names of all files below a root that were read so far."""
        place = self.folder / root
        names = (file.relative_to(place) for file in self._found if place in file.parents)
        # What a command writes and reads before it is renamed is believed by no later one.
        return {str(name) for name in names if not any(p.startswith(PARTIAL) for p in name.parts)}

    def _keep(self, when):
        for root in ROOTS:
            if (self.folder / root).is_dir():
                shutil.copytree(self.folder / root, self.folder / "kept" / when / root)

    def find(self, root, kind):
        """Put back what was on the disk when there was a file of a kind, and return that file."""
        for when in ("end", "checkpoint", "text"):
            kept = self.folder / "kept" / when
            for path in sorted(path for path in (kept / root).rglob("*") if path.is_file()):
                if kind.holds(str(path.relative_to(kept / root))):
                    for each in ROOTS:
                        shutil.rmtree(self.folder / each, ignore_errors=True)
                    shutil.copytree(kept, self.folder, dirs_exist_ok=True)
                    return self.folder / path.relative_to(kept)
        raise AssertionError(f"there was none of {kind.files} in {root}")


@pytest.fixture
def story(experiment_file, tmp_path, monkeypatch):
    monkeypatch.setenv("LLAMA_ABLATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("llama_ablate.data.readers.RECENT_S", 0.0)
    monkeypatch.setattr(texts, "_BLOCK", 1000)
    monkeypatch.setattr(texts, "_MAX_DOCUMENT", 2000)
    file = experiment_file(measure="[perplexity, kv_cache]", variants="{}")
    with in_process(figures=True):
        yield Story(file, tmp_path, monkeypatch)


def test_every_file_that_commands_read_is_listed_and_every_listed_one_is_read(story):
    for root, kinds in ROOTS.items():
        assert not [name for name in story.read(root) if not any(k.holds(name) for k in kinds)]
    unread = [
        kind.files
        for root, kinds in ROOTS.items()
        for kind in kinds
        if bool(kind.unread) == any(map(kind.holds, story.read(root)))
    ]
    assert unread == []


def shown(story, file, root, capsys):
    """Show results; return the exit code, what is printed, and what is told beside."""
    what = root if file is None or not file.name.startswith("plan-") else file
    capsys.readouterr()
    code = story.do("show", what, "--json")
    return code, *capsys.readouterr()


@pytest.mark.full
@pytest.mark.timeout(3600)
def test_any_damage_to_a_listed_file_is_found_or_harmless(story, capsys, volume, tally):
    """In a line or by doing it again; the numbers shown and those of the end are the same."""
    chance, trials, wrong = random.Random(0), 0, []
    reference = story.folder / "kept" / "end" / "results" / "tiny"
    listed = [(root, kind) for root, kinds in ROOTS.items() for kind in kinds if not kind.unread]
    for root, kind in listed:
        for how in [*CONTENT * volume(1, 1, 5), *PLACE]:
            file = story.find(root, kind)
            place = story.folder / ("results/tiny" if root == "cache" else root)
            whole, before = file.read_bytes(), shown(story, file, place, capsys)
            if not damage(how, file, chance, story.file):
                continue
            trials += 1
            case = how, file.relative_to(story.folder).as_posix()
            code, out, told = shown(story, file, place, capsys)
            if (code, out) != before[:2] and file.name not in told and file.parent.name not in told:
                wrong.append((*case, "shown", code, out, told))
            if root == "pack" or file.name.startswith("plan-"):
                continue  # which `run` neither reads nor mends
            damaged = file.read_bytes() if how in CONTENT else None
            code = story.run()
            told = capsys.readouterr().err
            if code:
                wrong += [(*case, "run", code, told)] * ("Traceback" in told or code != 2)
                shutil.rmtree(file, ignore_errors=True)
                file.unlink(missing_ok=True)
                file.write_bytes(whole)
                code = story.run()
            elif damaged and kind.reaction == "again" and file.is_file():
                wrong += [(*case, "believed")] * (file.read_bytes() == damaged)
            wrong += [(*case, *found) for found in breaches(place, reference)]
            wrong += [(*case, "not gone on with", code)] * bool(code)
    print(*wrong, sep="\n")
    tally("R8", "any file that is read damaged, or another thing in its place", trials, len(wrong))
