"""R24: whatever a stranger's pack or folder holds, to read it writes nothing outside of it."""

import copy
import csv
import hashlib
import json
import math
import shutil
import tarfile
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO

import pytest

import llama_ablate as la
from llama_ablate.commands.cli import main
from llama_ablate.errors import ConfigError
from llama_ablate.files import strict_json
from llama_ablate.results import Results
from llama_ablate.results.archive import PACK, archived, write_pack
from tests import filled
from tests.in_process import in_process
from tests.reliability.fuzzing import at, paths
from tests.reliability.harness import content
from tests.reliability.watched import changes, outside

SOME = ("status", "show", "compare", "report", "la.open")  # of the commands
#: Variants of the results here; of others, where they have none, a line says so.
ARMS = "rope", "variant 1"
#: What a string may say to leave its folder, to be no name at all, or to be too much of one.
PAYLOADS = ("../../../decoy/x", "{decoy}/x", "..", "a/../../b", "x\0y", "x" * 5000)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory):
    """A pack and a folder of the same results, and a home that is none of their business."""
    place = tmp_path_factory.mktemp("stranger")
    store = filled.store(place / "folder", variants=3, seeds=2)
    pages = dict.fromkeys(("experiment.yaml", "report.md", "runs.csv", "effects.png"), b"page")
    write_pack(place / "pack", Results.open(store.root).packable(), pages)
    (place / "decoy" / "x").mkdir(parents=True)
    for name in ("photo.png", "photo.svg", "x/thesis.tex", "report.md"):
        (place / "decoy" / name).write_text("mine")
    return place


class Parts:
    """The documents of a pack by their paths, to be changed and sealed again as a stranger can.

    A learning curve is one by column.
    """

    def __init__(self, root):
        self.root, self.documents, self._others = root, {}, {}
        with tarfile.open(root / PACK) as packed:
            files = {member.name: packed.extractfile(member).read() for member in packed}
        for name, raw in files.items():
            if name.endswith(".json"):
                self.documents[name] = json.loads(raw)
                self.documents[name].pop("sha256", None)
            elif name.endswith(".csv"):
                rows = [*csv.reader(raw.decode().splitlines())]
                self.documents[name] = dict(zip(rows[0], zip(*rows[1:], strict=True), strict=True))
            else:
                self._others[name] = raw

    def write(self, root):
        """Write the pack to a folder, with sums and seals that hold."""
        if not root.exists():
            shutil.copytree(self.root, root)
        files = {name: self._text(name) for name in sorted(self.documents)}
        (root / PACK).write_bytes(archived((self._others | files).items()))
        return root

    def _text(self, name):
        document = self.documents[name]
        if name.endswith(".csv"):
            columns = [own if isinstance(own, list | tuple) else [own] for own in document.values()]
            rows = [[*document], *zip(*columns, strict=False)]
            return "\n".join(",".join(map(str, row)) for row in rows).encode("utf-8", "replace")
        if name.endswith("/record.json") and isinstance(files := document.get("files"), dict):
            folder = name.removesuffix("record.json")
            for file in files.keys() & {"curve.csv"}:
                files[file] = hashlib.sha256(self._text(folder + file)).hexdigest()
        # A lone surrogate is escaped, as other programs may write it.
        text = strict_json.to_json(document).removesuffix("\n}").encode("utf-8", "backslashreplace")
        return text + strict_json._SEAL.format(strict_json._digest(text, name)).encode()

    def some(self):
        """Return the plan, the protocol, and the documents of one run and of one variant."""
        run = self.documents["plan.json"]["tables"][0]["runs"][0]["id"]
        measured = [n.rpartition("/")[0] for n in self.documents if n.startswith("variants/")]
        kinds = ("plan.json", "protocol.json", *measured[:1])
        chosen = [n for n in self.documents if n.startswith(kinds) or f"--{run}/" in n]
        return {name: self.documents[name] for name in chosen}

    def changed(self, path, value):
        """Return a copy in which a string, or a key, is another one."""
        other = copy.copy(self)
        other.documents = copy.deepcopy(self.documents)
        put(other.documents, path, value)
        return other


def strings(document):
    """Yield the path of every string, and of every key: that ends with a tuple."""
    for path in paths(document):
        if len(path) > 1 and isinstance(path[-1], str):
            yield (*path[:-1], (path[-1],))
        if isinstance(at(document, path), str):
            yield path


def put(document, path, value):
    """Set a value at a path; of a path that ends with a tuple, rename that key."""
    *way, last = path
    inside = at(document, way)
    if isinstance(last, tuple):
        inside[value] = inside.pop(last[0])
    else:
        inside[last] = value


def read(root):
    """Read all that a pack or a folder holds."""
    results = Results.open(root)
    _ = results.plan, results.protocol, results.statuses, results.experiment_text
    for run in results.finished:
        results.record(run)
        results.curve(run)
    for variant in {v.id for table in results.plan.tables for v in table.variants}:
        results.variant_metrics[variant]


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
        "compare": ["show", root, *ARMS],
        "report": ["report", root],
        "pack": ["pack", root, "--out", out / "packed"],
        "tensorboard": ["track", root, "--to", "tensorboard"],
        "measure": ["measure", root, "kv_cache"],
    }
    of_commands = {name: partial(main, [*map(str, line)]) for name, line in words.items()}
    return {**of_commands, "la.open": lambda: la.open(root).comparison()}


def tried(root, place, out, names=None):
    """Use results in every way; return what went wrong: what was written elsewhere, a traceback."""
    wrong, before = [], content(place / "decoy")
    uses = commands(root, out)
    for name in names or uses:
        with quietly() as said, changes() as written, in_process(figures=True):
            try:
                uses[name]()
            except (ConfigError, OSError):
                pass
            except Exception as error:  # noqa: BLE001  told by what it is
                wrong.append((name, repr(error)[:200]))
        wrong += [(name, "raised")] * ("Traceback" in said.getvalue())
        wrong += [(name, path) for path in outside(written, root, out)]
    wrong += [("decoy", "changed")] * (content(place / "decoy") != before)
    return wrong


def free(parts, payload, place, every):
    """Return the strings that may be a payload, and what went wrong where they may not.

    Nothing is written in reading any of them. Of all strings every n-th is tried.
    """
    accepted, wrong = [], []
    for path in [*strings(parts.some())][::every]:
        root = parts.changed(path, payload).write(place)
        try:
            with changes() as written:
                read(root)
            accepted.append(path)
        except ConfigError as error:
            wrong += [(path, str(error))] * ("\n" in str(error))
        wrong += [(path, file) for file in written]
    return accepted, wrong


def test_no_string_of_a_pack_does_harm_in_any_command(stranger, tmp_path, volume, tally):
    """Each is refused where it is read, or is text; all such text at once does no harm, nor one."""
    parts = Parts(stranger / "pack")
    trials, wrong, every = 0, [], volume(5, 1, 1)
    for payload in PAYLOADS[: volume(1, None, None)]:
        text = payload.format(decoy=stranger / "decoy")
        accepted, found = free(parts, text, tmp_path / "one", every)
        trials, wrong = trials + len([*strings(parts.some())][::every]), wrong + found
        if payload != PAYLOADS[0]:
            continue
        everywhere = parts
        for number, path in enumerate(accepted):
            if not isinstance(path[-1], tuple):
                everywhere = everywhere.changed(path, f"{text} {number}")
        alone = [parts.changed(path, text) for path in volume([], accepted, accepted)]
        for changed in (everywhere, *alone):
            shutil.rmtree(tmp_path / "one")
            root = changed.write(tmp_path / "one")
            used = tried(root, stranger, tmp_path / f"out{trials}")
            wrong += [(text, *how) for how in used]
            trials += len(commands(root, tmp_path))
    assert trials >= volume(60, 300, 300)
    print(wrong)
    tally("R24", "hostile strings of a pack, in every command and sink", trials, len(wrong))


#: What no number or name is, in the place of any.
ODD = (1e308, 10**400, [], {}, None, -1, "x", True, math.nan, [["x"]])


def levels(number):
    """A document of so many levels."""
    value = {}
    for _ in range(number):
        value = {"a": value}
    return value


TABLE = ("plan.json", "tables", 0)
VARIANT = (*TABLE, "variants", 1)
RECORD, CURVE = (f"runs/rope--s0--00000000/{name}" for name in ("record.json", "curve.csv"))
MEASURED = (RECORD, "metrics", "perplexity", "rows", 0)
#: What only a report computes with, the first of them in the fast tier.
REPORTED = [
    ((*VARIANT, "model", "norm"), {"name": {}}),
    ((*VARIANT, "train"), {"lr": None}),
    ((*VARIANT, "train"), {"lr": levels(200)}),
    ((*VARIANT, "label"), "x" * 100_000),
    ((*TABLE, "runs", 0, "tuned"), {"lr": 1}),
    (("protocol.json", "versions", 0, "stated", "hypotheses"), None),
    (("plan.json", "experiment", "hypotheses"), {}),
    ((*TABLE, "text", "source", "corpus"), {}),
    ((RECORD, "environment", "extra"), "\ud800"),
    ((CURVE, "step"), ["NaN"] * 5),
    ((*MEASURED, "value"), "Infinity"),
    ((*MEASURED, "coordinates"), {"layer": 1}),
    ((RECORD, "id"), "00000001"),
    (("plan.json", "experiment", "variants", "match"), "x"),
    ((*VARIANT, "flops_per_token"), None),
]


def test_a_pack_of_any_other_shape_is_read_or_is_one_line(stranger, tmp_path, volume, tally):
    parts, wrong = Parts(stranger / "pack"), []
    reported = REPORTED[: volume(5, None, None)]
    places = [path for path in paths(parts.some()) if len(path) > 1][:: volume(4, 1, 1)]
    cases = [
        (path, odd)
        for number, path in enumerate(places)
        for odd in volume(ODD[number % len(ODD) :][:1], ODD, ODD)
    ]
    for number, (path, odd) in enumerate([*reported, *cases]):
        root = parts.changed(path, odd).write(tmp_path / "one")
        try:
            read(root)
        except ConfigError as error:
            wrong += [(path, odd, str(error))] * ("\n" in str(error))
            continue
        if number < len(reported) or volume(False, True, True):
            used = tried(root, stranger, tmp_path / f"out{number}", SOME)
            wrong += [(path, odd, *how) for how in used]
    print(wrong)
    tally("R24", "packs with values of another kind", len(reported) + len(cases), len(wrong))


LINKS = ["track/tensorboard", "report", "report/figures", "report/report.html", "runs.csv"]


@pytest.mark.row("R24", "links in the place of folders and files that are written")
@pytest.mark.parametrize("place", LINKS)
@pytest.mark.parametrize("kind", ["pack", "folder"])
def test_nothing_is_written_through_a_link(stranger, tmp_path, kind, place):
    root = shutil.copytree(stranger / kind, tmp_path / "x")
    (root / place).parent.mkdir(exist_ok=True)
    (root / place).unlink(missing_ok=True)
    leads = "photo.png" if "." in place else "x"
    (root / place).symlink_to(stranger / "decoy" / leads)
    for words in (["report", root], ["track", root, "--to", "tensorboard"], ["pack", root]):
        with quietly() as said, changes() as written:
            code = main([*map(str, words)])
        assert (code, said.getvalue().count("\n")) == (2, 1), (words, said.getvalue())
        assert outside(written, root, f"{root}-packed") == []
    assert content(stranger / "decoy")["photo.png"] == b"mine"
