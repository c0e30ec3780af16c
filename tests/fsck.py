"""Check the stored results of an experiment; imports nothing of the package.

    python tests/fsck.py results/quickstart
    python tests/fsck.py results/quickstart --against elsewhere/quickstart

Checks the results of a finished grid against six invariants, and prints a line for each breach. For
a grid that was stopped, the breaches show what is left to do:

I1  every run of the plan has exactly one folder, and every folder is that of a finished run; with
    looks or a race, whose results decide which runs are needed, at most one
I2  every file is as it was written, by the records and the seals
I3  weights, curves and metrics equal those of another folder bit for bit (--against)
I4  nothing is left of work in progress: no temporary file, no lease, no process
I5  every learning curve has each of its steps once, in order
I6  every JSON file is strict: UTF-8, no NaN or Infinity, no key twice

A file that is not one of the results, such as `.DS_Store` in a run's folder, is no breach. A pack
is unpacked to a temporary folder, and checked there as any other results.

Exit codes: 0 all hold, 1 some do not, 2 there is nothing to check.
"""

import argparse
import csv
import hashlib
import io
import json
import lzma
import re
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

#: Bytes that a pack may unpack to.
MOST = 1 << 30
PACK = "results.tar.xz"
SEAL = re.compile(rb',\n "sha256": "([0-9a-f]{64})"\n}\n\Z')
TOP = re.compile(r"experiment\.yaml|(plan|plan-[0-9a-f]{8}|compute|pace|protocol|pages)\.json")
RUN = re.compile(r"(?P<label>[a-z0-9-]+?)--s(?P<seed>\d+)--(?P<id>[0-9a-z]+)(--(?P<number>\d+))?")
FINAL = ("ok", "diverged", "collapsed")
ROWS = 100  # of a curve
#: Numbers of a clock or of the machine's memory: no two runs share them.
TIMED = {"train_s", "peak_memory_bytes"}
#: What reading raises where documents are not as they were written.
UNREADABLE = (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError, RecursionError)
UNREADABLE += (lzma.LZMAError, tarfile.TarError, csv.Error)
Found = tuple[str, Path, str]  # invariant, path, what is wrong
Breach = tuple[str, str, str]  # with the path in the folder


def check(root: Path, against: Path | None = None) -> list[Breach]:
    """Return every breach of the invariants in a results folder or a pack."""
    found: list[Breach] = []
    packed = (root / PACK).is_file()
    if packed:
        left = sorted(root.glob(".partial-*"))
        found += [("I4", path.name, "is left of packing that was stopped") for path in left]
    try:
        with unpacked(root) as folder, unpacked(against) if against else nullcontext() as other:
            for name, digest in document(folder / "pages.json").items() if packed else ():
                page = (root / name).read_bytes() if (root / name).is_file() else b""
                if name != "sha256" and hashlib.sha256(page).hexdigest() != digest:
                    found.append(("I2", name, "is not what was packed"))
            for name, path, what in breaches(folder, other):
                found.append((name, str(path.relative_to(folder)), what))
    except UNREADABLE as error:
        found.append(("I2", PACK if packed else ".", f"cannot be read: {error!r}"))
    return found


def breaches(root: Path, against: Path | None) -> Iterator[Found]:
    """Yield every breach of the invariants in a results folder."""
    yield from leftovers(root)
    yield from documents(root)
    plan = document(root / "plan.json")
    planned = {run["id"]: run for table in plan.get("tables", []) for run in table["runs"]}
    if not planned:
        yield "I1", root / "plan.json", "plans no run"
        return
    seeds = plan["experiment"].get("seeds")
    looks = isinstance(seeds, dict) and seeds.get("looks")
    yield from commits(root, planned, bool(looks or plan["experiment"].get("race")))
    yield from files(root)
    yield from curves(root, planned)
    if against:
        yield from differences(root, against, planned)


@contextmanager
def unpacked(root: Path) -> Iterator[Path]:
    """Yield the folder of results; of a pack, a temporary one to which it is unpacked."""
    if not (root / PACK).is_file():
        yield root
        return
    with tempfile.TemporaryDirectory() as folder, lzma.open(root / PACK) as file:
        raw = file.read(MOST + 1)  # to its end, where the check sums stand
        with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as archive:
            members = {member.name: member for member in archive if member.isreg()}
            if len(members) < len(archive.getmembers()):
                raise ValueError("it holds other than files, each once")
            if max(len(raw), sum(member.size for member in members.values())) > MOST:
                raise ValueError(f"it has more than {MOST >> 20} MiB")
            archive.extractall(folder, filter="data")
        yield Path(folder)


def commits(root: Path, planned: dict[str, Any], staged: bool) -> Iterator[Found]:
    """I1."""
    ids: Counter[str] = Counter()
    for parts, folder in named(root / "runs"):
        if parts["number"]:
            yield "I1", folder, "is not the folder of a final run"
            continue
        ids[parts["id"]] += 1
        record = document(folder / "record.json")
        if (record.get("id"), str(record.get("seed"))) != (parts["id"], parts["seed"]):
            yield "I1", folder, "holds the record of another run"
        if record.get("outcome") not in FINAL:
            yield "I1", folder, f"is not final: {record.get('outcome')}"
    for run in planned:
        if ids[run] != 1 and not (staged and ids[run] == 0):
            yield "I1", root / "plan.json", f"run {run} has {ids[run]} commits"
    for parts, folder in named(root / "failed"):
        if ids[parts["id"]]:
            yield "I1", folder, "is of a run that was finished since"


def documents(root: Path) -> Iterator[Found]:
    """I6, and I2 of what bears a seal."""
    for path in sorted(root.rglob("*")):
        if path.is_symlink() and root / "track" not in path.parents:
            yield "I2", path, "is a link"
    for path in sorted(own(root)):
        if path.suffix != ".json" or not path.is_file():
            continue
        try:
            strict(path.read_bytes())
        except ValueError as error:
            yield "I6", path, f"is no strict JSON: {error}"
        if path.name == "record.json" and (path.parent / "manifest.json").is_file():
            continue  # version 0.2 sealed the manifest of a run
        if not (holds := sealed(root, path)):
            yield "I2", path, "bears no seal" if holds is None else "is not what its seal says"


def sealed(root: Path, path: Path) -> bool | None:
    """Return whether a document's seal fits its text and its place; None where it has none."""
    raw = path.read_bytes() if path.is_file() else b""
    seal = SEAL.search(raw)
    if seal is None:
        return None
    text = path.relative_to(root).as_posix().encode() + b"\n" + raw[: seal.start()]
    return hashlib.sha256(text).hexdigest() == seal[1].decode()


def own(root: Path) -> set[Path]:
    """Return the files that the results consist of: of a run, what its record lists."""
    found = {path for path in root.iterdir() if TOP.fullmatch(path.name)}
    found |= {*root.glob("variants/*/metrics/[!.]*.json"), *root.glob("tokenizers/*.json")}
    for folder in run_folders(root):
        listed = document(folder / "record.json").get("files", {})
        found |= {folder / name for name in ("record.json", "weights.dropped", *listed)}
        found |= {*folder.glob("metrics/[!.]*.json")}
    return found


def files(root: Path) -> Iterator[Found]:
    """I2 of what a record lists; a run of version 0.2 has a manifest, which is not looked at."""
    for folder in run_folders(root):
        if not (folder / "manifest.json").is_file():
            yield from listed_files(folder)


def listed_files(folder: Path) -> Iterator[Found]:
    """I2 of what a run's record lists."""
    listed = document(folder / "record.json").get("files", {})
    for name in sorted({"curve.csv", *listed}):
        raw = (folder / name).read_bytes() if (folder / name).is_file() else None
        if name not in listed:
            yield "I2", folder / name, "is not in the record"
        elif raw is not None and hashlib.sha256(raw).hexdigest() != listed[name]:
            yield "I2", folder / name, "is not what the record says"
        elif raw is None and not (
            name == "weights.safetensors" and (folder / "weights.dropped").is_file()
        ):
            yield "I2", folder / name, "is missing"


def differences(root: Path, against: Path, planned: dict[str, Any]) -> Iterator[Found]:
    """I3."""
    ours, theirs = by_id(root), by_id(against)
    for run in (run for run in planned if run in ours or run in theirs):
        if run not in ours or run not in theirs:
            yield "I3", root / "plan.json", f"run {run} is not in both folders"
            continue
        one, other = repeated(ours[run]), repeated(theirs[run])
        for what in one.keys() | other.keys():
            if one.get(what) != other.get(what):
                yield "I3", ours[run], f"has another {what} than {theirs[run].name}"


def leftovers(root: Path) -> Iterator[Found]:
    """I4."""
    for path in sorted(root.glob("working/*")):
        yield "I4", path, "is left of work in progress"
    for path in sorted(root.rglob(".partial-*")):
        yield "I4", path, "is a temporary file"
    here = str(root.resolve())
    for process in Path("/proc").glob("[0-9]*"):
        try:
            opened = [str(link.readlink()) for link in (process / "fd").iterdir()]
        except OSError:  # it has ended, or is not ours to look at
            continue
        if any(name.startswith(here + "/") for name in opened):
            yield "I4", root, f"process {process.name} has files open here"


def curves(root: Path, planned: dict[str, Any]) -> Iterator[Found]:
    """I5."""
    for run, folder in by_id(root).items():
        steps = [int(row["step"]) for row in rows(folder)]
        if steps != curve_steps(document(folder / "record.json"), planned.get(run)):
            yield "I5", folder / "curve.csv", f"has the steps {steps[:3]}...{steps[-3:]}"


def curve_steps(record: dict[str, Any], run: dict[str, Any] | None) -> list[int]:
    """Return the steps that a run's learning curve should have."""
    done = record["steps_done"]
    total = run["steps"] if run else done
    every = -(-total // ROWS)
    steps = [*range(every, done + 1, every)] if every > 0 else []
    if done and (not steps or steps[-1] != done) and done == total:
        steps.append(done)
    return steps


def strict(raw: bytes) -> Any:
    """Read strict JSON. Raises ValueError."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a key stands there twice")
        return dict(pairs)

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    return json.loads(raw.decode("utf-8"), object_pairs_hook=once, parse_constant=refuse)


def document(file: Path) -> dict[str, Any]:
    """Return the mapping that a file holds; empty where there is none that can be read."""
    return strict(file.read_bytes()) if file.is_file() else {}


def named(kind: Path) -> list[tuple[re.Match[str], Path]]:
    """Return the folders of a kind of runs that bear the name of one, and the parts of it."""
    found = sorted(path for path in kind.glob("*") if path.is_dir())
    return [(parts, folder) for folder in found if (parts := RUN.fullmatch(folder.name))]


def run_folders(root: Path) -> list[Path]:
    """Return the folders of all runs, the final ones and the failed ones."""
    return [folder for kind in ("runs", "failed") for _, folder in named(root / kind)]


def by_id(root: Path) -> dict[str, Path]:
    """Return the final runs by id."""
    return {parts["id"]: folder for parts, folder in named(root / "runs")}


def rows(folder: Path) -> list[dict[str, str]]:
    """Return a curve as it stands in the file."""
    file = folder / "curve.csv"
    text = file.read_text("utf-8", "replace") if file.is_file() else ""
    return list(csv.DictReader(io.StringIO(text)))


def repeated(folder: Path) -> dict[str, Any]:
    """Return what of a run repeats; of its weights the hash, so also of those dropped since."""
    record = document(folder / "record.json")
    found = {k: record.get(k) for k in ("outcome", "reason", "steps_done", "tokens_done", "data")}
    found["weights"] = record.get("files", {}).get("weights.safetensors")
    found["curve"] = [{k: v for k, v in row.items() if k not in TIMED} for row in rows(folder)]
    metrics = dict(record.get("metrics", {}))
    for file in sorted(folder.glob("metrics/[!.]*.json")):
        metrics[file.stem] = document(file)
    for metric, values in metrics.items():
        found[metric] = {name: value for name, value in values.items() if name != "sha256"}
    return found


def main() -> int:
    """Check the folders of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, help="the results of one experiment")
    parser.add_argument("--against", type=Path, help="results to be equal to, bit for bit")
    options = parser.parse_args()
    for folder in (options.folder, options.against or options.folder):
        if not any((folder / name).is_file() for name in (PACK, "plan.json")):
            parser.exit(2, f"fsck: '{folder}' holds no results\n")
    found = check(options.folder, options.against)
    for each in found:
        print("{}  {}: {}".format(*each))
    print(f"{options.folder}: {len(found)} breaches" if found else f"{options.folder}: sound")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
