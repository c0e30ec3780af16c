"""R24: whatever a stranger's pack or folder holds, to read it writes nothing outside of it."""

import copy
import gzip
import hashlib
import json
import math
import os
import shutil
import signal
import tracemalloc
from contextlib import contextmanager, nullcontext, redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path

import pytest

import llama_ablate as la
from llama_ablate.commands.cli import main
from llama_ablate.errors import ConfigError
from llama_ablate.files.strict_json import sealed
from llama_ablate.results import Results, Store, live
from llama_ablate.results import pack as packs
from llama_ablate.results.layout import PACK
from llama_ablate.results.pack_writer import pack
from llama_ablate.track import SINKS
from tests import filled
from tests.in_process import in_process
from tests.reliability.watched import changes, outside

#: What a string may say to leave its folder, to be no name at all, or to be too much of one.
REFERENCE = Path(__file__).parents[2] / "results" / "reference"
SOME = ("status", "show", "compare", "report", "la.open")  # of the commands
#: Variants of the results here; of others, where they have none, a line says so.
ARMS = "rope", "variant 1"
PAYLOADS = ("../../../decoy/x", "{decoy}/x", "..", "a/../../b", "x\0y", "x" * 5000)


#: Of real experiments, with metrics that the results here lack.
PACKS = ("wikitext2", "prose-small")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """A pack and a folder of the same results, and a home that is none of their business."""
    place = tmp_path_factory.mktemp("stranger")
    store = filled.store(place / "folder", variants=3, seeds=2)
    pack(Results.open(store.root), place / "pack", {"report.md": b"# x\n", "effects.png": b"png"})
    (place / "decoy" / "x").mkdir(parents=True)
    for name in ("photo.png", "photo.svg", "x/thesis.tex", "report.md"):
        (place / "decoy" / name).write_text("mine")
    return place


def tree(folder):
    """Return everything below a folder, with its content."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


class Parts:
    """The documents of a pack, to be changed and sealed again as a stranger can."""

    def __init__(self, root):
        self.root = root
        self.document = json.loads((root / PACK).read_text("utf-8"))
        del self.document["sha256"]
        lines = gzip.decompress((root / packs.RUNS).read_bytes()).splitlines()
        self.runs = [json.loads(line) for line in lines]

    def write(self, root, raw=None):
        """Write the pack to a folder, with seals that hold; `raw` in place of the runs' file."""
        if raw is None:
            raw = gzip.compress("".join(json.dumps(run) + "\n" for run in self.runs).encode(), 1)
        sha256 = hashlib.sha256(raw).hexdigest()
        if isinstance(self.document.get("files"), dict):
            self.document["files"][packs.RUNS] = [len(raw), sha256]
        elif isinstance(self.document.get("runs"), dict):  # of format 3
            self.document["runs"]["sha256"] = sha256
        shutil.copytree(self.root, root, dirs_exist_ok=True)
        (root / packs.RUNS).write_bytes(raw)
        (root / PACK).write_bytes(sealed(self.document, PACK))
        return root

    def leaves(self):
        """Yield the path of every string in the documents, and of every key of a mapping."""
        yield from leaves({"document": self.document, "runs": self.runs[:1]})

    def changed(self, path, value):
        """Return a copy in which a string, or a key, is another one."""
        other = copy.copy(self)
        whole = {"document": copy.deepcopy(self.document), "runs": copy.deepcopy(self.runs)}
        put(whole, path, value)
        other.document, other.runs = whole["document"], whole["runs"]
        return other


def leaves(value, path=()):
    if isinstance(value, dict):
        # Of many variants or runs by their ids, two.
        for key, inner in [*value.items()][: 2 if {*map(len, value)} == {8} else None]:
            if path:
                yield (*path, (key,))
            yield from leaves(inner, (*path, key))
    elif isinstance(value, list):
        for at, inner in enumerate(value[:2]):
            yield from leaves(inner, (*path, at))
    elif isinstance(value, str):
        yield path


def put(whole, path, value):
    """Set a string at a path; of a path that ends with a tuple, rename that key."""
    *way, last = path
    for key in way:
        whole = whole[key]
    if isinstance(last, tuple):
        whole[value] = whole.pop(last[0])
    else:
        whole[last] = value


def read(root):
    """Read all that a pack or a folder holds."""
    results = Results.open(root)
    _ = results.plan, results.protocol, results.statuses, results.experiment_text
    for run in results.finished:
        results.record(run)
        results.curve(run)
    for variant in {v.id for table in results.plan.tables for v in table.variants}:
        results.variant_metrics(variant)


@contextmanager
def quietly():
    """Keep what commands print; yield it."""
    said = StringIO()
    with redirect_stderr(said), redirect_stdout(said):
        yield said


def commands(root, out):
    """Return all that reads results, by name; `out` is a folder for what it is asked to write."""
    words = {
        "status": ["status", root],
        "show": ["show", root],
        "compare": ["compare", root, *ARMS],
        "report": ["report", root],
        "pack": ["pack", root, "--out", out / "packed"],
        "tensorboard": ["track", root, "--to", "tensorboard"],
        "a plugin's": ["track", root, "--to", "kept"],
        "measure": ["measure", root, "kv_cache"],
    }
    of_commands = {name: partial(main, [*map(str, line)]) for name, line in words.items()}
    return {
        **of_commands,
        "la.open": lambda: _frames(la.open(root)),
        "la.report": lambda: la.report(root),
    }


def _frames(opened):
    _ = opened.runs, opened.curves, opened.metrics, opened.warnings, opened.headline
    opened.comparison()


class Kept:
    """A tracker's sink that keeps a file, by names that are given it."""

    package = ""

    def __init__(self, folder):
        self._folder = folder

    def open(self, run):
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / f"{run.id}.txt").write_text(run.name, "utf-8", "replace")
        return -1

    def log(self, step, values):
        pass

    def finish(self, outcome, metrics):
        pass


@pytest.fixture(autouse=True)
def kept_sink(monkeypatch):
    monkeypatch.setattr(SINKS, "_components", dict(SINKS._components))
    monkeypatch.setattr(SINKS, "_schemas", dict(SINKS._schemas))
    SINKS.register("kept")(Kept)


def tried(root, place, out, names=None):
    """Use results in every way; return what went wrong: what was written elsewhere, a traceback."""
    wrong, before = [], tree(place / "decoy")
    for name, use in commands(root, out).items():
        if names and name not in names:
            continue
        with quietly() as said, changes() as written, in_process(figures=True):
            try:
                use()
            except (ConfigError, OSError):
                pass
            except Exception as error:  # noqa: BLE001  told by what it is
                wrong.append((name, repr(error)[:200]))
        wrong += [(name, "raised")] * ("Traceback" in said.getvalue())
        wrong += [(name, path) for path in outside(written, root, out)]
    wrong += [("decoy", "changed")] * (tree(place / "decoy") != before)
    return wrong


def free(parts, payload, place):
    """Return the strings that may be a payload, and what went wrong where they may not.

    Nothing is written in reading any of them.
    """
    accepted, wrong = [], []
    for path in parts.leaves():
        root = parts.changed(path, payload).write(place)
        try:
            with changes() as written:
                read(root)
            accepted.append(path)
        except ConfigError as error:
            wrong += [(path, str(error))] * ("\n" in str(error))
        wrong += [(path, at) for at in written]
    return accepted, wrong


def test_no_string_of_a_pack_names_a_place_outside_of_it(stranger, tmp_path, tally):
    """Each alone is refused where it is read, or is text; all such text at once does no harm."""
    parts = Parts(stranger / "pack")
    accepted, wrong = free(parts, PAYLOADS[0], tmp_path / "one")
    trials, everywhere = len([*parts.leaves()]), parts
    for number, path in enumerate(accepted):
        if not isinstance(path[-1], tuple) and path[1] != "files":
            everywhere = everywhere.changed(path, f"{PAYLOADS[0]} {number}")
    root = everywhere.write(tmp_path / "all")
    read(root)
    used = tried(root, stranger, tmp_path / "out")
    trials += len(accepted) * len(commands(root, tmp_path))
    print(wrong, used)
    assert trials >= 500
    tally("R24", "hostile strings of packs, in every command and sink", trials, len(wrong + used))


@pytest.mark.full
@pytest.mark.parametrize(
    "source", ["", *(pytest.param(name, marks=pytest.mark.torture) for name in PACKS)]
)
def test_no_string_of_a_pack_alone_does_harm_in_any_command(stranger, tmp_path, tally, source):
    parts = Parts(REFERENCE / source if source else stranger / "pack")
    trials, wrong = 0, []
    for number, payload in enumerate(PAYLOADS):
        text = payload.format(decoy=stranger / "decoy")
        accepted, found = free(parts, text, tmp_path / "one")
        trials, wrong = trials + len([*parts.leaves()]), wrong + found
        for path in accepted if number == 0 else ():
            shutil.rmtree(tmp_path / "one")
            root = parts.changed(path, text).write(tmp_path / "one")
            used = tried(root, stranger, tmp_path / f"out{trials}", SOME if source else None)
            wrong += [(path, *how) for how in used]
            trials += len(commands(root, tmp_path))
    print(wrong)
    tally(
        "R24", f"hostile strings of a pack, each alone{source and ': '}{source}", trials, len(wrong)
    )


#: What no number or name is, in the place of any.
ODD = (1e308, 10**400, [], {}, None, -1, "x", True, math.nan, [["x"]])


@pytest.mark.parametrize("which", ["numbers", pytest.param("all", marks=pytest.mark.full)])
def test_a_pack_of_any_other_shape_is_read_or_is_one_line(stranger, tmp_path, tally, which):
    parts, trials, wrong = Parts(stranger / "pack"), 0, []
    places = [*places_of({"document": parts.document, "runs": parts.runs[:1]})][1:]
    for at, path in enumerate(places):
        for odd in ODD if which == "all" else ODD[at % len(ODD) :][:1]:
            root = parts.changed(path, odd).write(tmp_path / "one")
            trials += 1
            try:
                read(root)
            except ConfigError as error:
                wrong += [(path, odd, str(error))] * ("\n" in str(error))
                continue
            if which == "all":
                used = tried(root, stranger, tmp_path / f"out{trials}", SOME)
                wrong += [(path, odd, *how) for how in used]
    print(wrong)
    tally("R24", "packs with values of another kind", trials, len(wrong))


def levels(number):
    """A document of so many levels."""
    value = {}
    for _ in range(number):
        value = {"a": value}
    return value


VARIANT = ("document", "plan", "tables", 0, "variants", 1)
PLANNED = ("document", "plan", "tables", 0, "runs", 0)
MEASURED = ("runs", 0, "metrics", "perplexity", "rows", 0)


@pytest.mark.row("R24", "values of a pack that only a report computes with")
@pytest.mark.parametrize(
    ("path", "odd"),
    [
        ((*VARIANT, "model", "norm"), {"name": {}}),
        ((*VARIANT, "train"), {"lr": None}),
        ((*VARIANT, "train"), {"lr": levels(200)}),
        ((*VARIANT, "train"), {"lr": 10**400}),
        ((*VARIANT, "label"), "x" * 100_000),
        ((*PLANNED, "tuned"), {"lr": 1}),
        (("document", "plan", "tables", 0, "runs"), []),
        (("document", "plan", "experiment", "train", "optimizer"), {}),
        (("document", "protocol", 0, "stated", "hypotheses"), None),
        (("runs", 0, "environment", "extra"), "\ud800"),
        (("runs", 0, "environment", "extra"), levels(200)),
        (("runs", 0, "curve", "step"), ["NaN"] * 5),
        ((*MEASURED, "value"), 0),
        ((*MEASURED, "value"), -1),
        ((*MEASURED, "value"), "Infinity"),
        ((*MEASURED, "coordinates"), {"layer": 1}),
        ((*MEASURED, "unit"), "x" * 100_000),
        (("runs", 1, "id"), "00000000"),
    ],
)
def test_what_only_a_report_computes_with_is_refused_where_it_is_read_or_does_no_harm(
    stranger, tmp_path, path, odd
):
    root = Parts(stranger / "pack").changed(path, odd).write(tmp_path / "one")
    assert tried(root, stranger, tmp_path / "out", ("show", "compare", "report", "pack")) == []


def test_a_speed_of_decoding_at_no_batch_and_no_context_is_compared_with_nothing(
    stranger, tmp_path
):
    parts = Parts(stranger / "pack")
    at = {"cache": "cached", "context": "x"}
    row = {"name": "x", "value": 1.0, "quantity": "decode_speed", "coordinates": at}
    base = parts.document["plan"]["tables"][0]["variants"][0]["id"]
    measured = {base: {"decode_speed": {"rows": [row]}}}
    root = parts.changed(("document", "variants"), measured).write(tmp_path / "one")
    assert tried(root, stranger, tmp_path / "out", ("show", "report", "la.open")) == []


def test_a_file_of_many_gigabytes_is_a_line_at_once(stranger, tmp_path):
    """Sparse: it takes no room on the disk."""
    for kind, name in (("pack", "pack.json"), ("pack", "runs.jsonl.gz"), ("folder", "plan.json")):
        root = shutil.copytree(stranger / kind, tmp_path / name)
        with (root / name).open("r+b") as file:
            file.truncate(40 << 30)
        tracemalloc.start()
        with at_most(20), quietly() as said:
            assert main(["show", str(root)]) == 2
        assert tracemalloc.get_traced_memory()[1] < 1 << 28
        tracemalloc.stop()
        assert said.getvalue().count("\n") == 1


def places_of(value, path=()):
    """Yield the path of everything in a document but a path of one step."""
    if len(path) > 1:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value[:2])
    for key, inner in items if isinstance(value, dict | list) else ():
        if isinstance(inner, dict | list):
            yield from places_of(inner, (*path, key))
        elif path:
            yield (*path, key)


@pytest.mark.row("R24", "links in the place of folders and files that are written")
@pytest.mark.parametrize(
    "place",
    [
        "track",
        "track/tensorboard",
        "track/tensorboard.log",
        "report",
        "report/figures",
        "report/tables",
        "report/report.html",
        ".partial-pack",
    ],
)
@pytest.mark.parametrize("kind", ["pack", "folder"])
def test_nothing_is_written_through_a_link(stranger, tmp_path, kind, place):
    root = shutil.copytree(stranger / kind, tmp_path / "x")
    (root / place).parent.mkdir(exist_ok=True)
    leads = "photo.png" if "." in place[1:] else "x"
    (root / place).symlink_to(stranger / "decoy" / leads)
    for words in (["report", root], ["track", root, "--to", "tensorboard"], ["pack", root]):
        with quietly() as said, changes() as written:
            code = main([*map(str, words)])
        assert (code, said.getvalue().count("\n")) == (2, 1), (words, said.getvalue())
        assert "is a link" in said.getvalue()
        assert outside(written, root, f"{root}-packed") == []
    assert tree(stranger / "decoy")["photo.png"] == b"mine"


@contextmanager
def at_most(seconds):
    """Fail where the body waits for ever."""

    def late(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


FILES = [
    *("pack/pack.json", "pack/runs.jsonl.gz", "pack/experiment.yaml", "pack/report.md"),
    *("folder/plan.json", "folder/protocol.json", "folder/experiment.yaml"),
    *("folder/runs/*/record.json", "folder/runs/*/manifest.json", "folder/runs/*/curve.csv"),
    *("folder/runs/*/metrics/perplexity.json", "folder/variants/*/metrics/train_speed.json"),
    "folder/working/all/live.json",
]
#: What results cannot be read without; a protocol that is missing is a warning.
NEEDED = {*FILES} - {"pack/report.md", "folder/protocol.json", "folder/working/all/live.json"}


@pytest.mark.row("R24", "pipes and folders in the place of files")
@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_a_pipe_or_a_folder_in_the_place_of_a_file_is_a_line_at_once(
    stranger, tmp_path, name, make
):
    kind, _, pattern = name.partition("/")
    root = shutil.copytree(stranger / kind, tmp_path / kind)
    (root / "working" / "all").mkdir(parents=True, exist_ok=True)
    file = next(iter(root.glob(pattern)), root / pattern)
    file.unlink(missing_ok=True)
    make(file)
    with at_most(20), quietly() as said:
        code = main(["show", str(root)])
        assert live.read(root / "working" / "all") is None
        with pytest.raises(ConfigError) if name in NEEDED else nullcontext() as refused:
            read(root)
    assert (code, said.getvalue().count("\n")) == (2, 1) or code == 0
    assert name not in NEEDED or file.name in str(refused.value)


@pytest.mark.row("R24", "packs that unpack to far more")
def test_a_pack_that_unpacks_to_far_more_is_refused_as_it_is_read(stranger, tmp_path, monkeypatch):
    monkeypatch.setattr(packs, "_LINE", 1 << 16)
    monkeypatch.setattr(packs, "_LEAST", 1 << 18)
    read(stranger / "pack")
    parts = Parts(stranger / "pack")
    line = json.dumps(parts.runs[0]).encode()
    for bomb in (b" " * (1 << 24), b"\n".join([line[:-1] + b" " * 60_000 + b"}"] * 500)):
        root = parts.write(tmp_path / "x", gzip.compress(bomb))
        tracemalloc.start()
        with pytest.raises(ConfigError, match=r"far more than runs take|is no run"):
            read(root)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
        tracemalloc.stop()


@pytest.mark.row("R24", "live.json with numbers that are none")
@pytest.mark.parametrize(
    "values",
    [
        {"steps": 0},
        {"updated": "Infinity"},
        {"updated": "NaN"},
        {"updated": -1},
        {"step": 10**400},
        {"tokens_per_s": 1e308},
        {"tokens_per_s": 1e-300},
        {"train_loss": "NaN"},
        {"curve": [{"step": "x"}]},
        {"curve": [{"train_loss_nats": 1e308}]},
        {"step": -3},
    ],
)
def test_status_shows_a_note_of_a_run_or_takes_it_for_none(stranger, tmp_path, values):
    root = shutil.copytree(stranger / "folder", tmp_path / "x")
    store = Store(root)
    run = next(iter(store.plan.runs))
    shutil.rmtree(store.runs.folder(run))
    note = {"run": run, "step": 1, "steps": 4, "tokens": 32, "train_loss": 3.0, "curve": []}
    note |= {"tokens_per_s": 5.0, "updated": 1.0e9, **values}
    with store.lease(run) as lease:
        (lease.folder / live.LIVE).write_text(json.dumps(note), "utf-8")
        with quietly() as said:
            assert main(["status", str(root)]) == 0
    assert "1 running" in said.getvalue()
