"""Check the stored results of an experiment; imports nothing of the package.

    python tests/fsck.py results/quickstart
    python tests/fsck.py results/quickstart --against elsewhere/quickstart --json

Checks the results of a finished grid against six invariants, and prints a line for each breach. For
a grid that was stopped, the breaches show what is left to do:

I1  every run of the plan has exactly one folder, and every folder is that of a finished run; with
    looks or a race, whose results decide which runs are needed, at most one
I2  every file is as it was written, by the manifests and the seals
I3  weights, curves and metrics equal those of another folder bit for bit (--against)
I4  nothing is left of work in progress: no temporary file, no lease, no process
I5  every learning curve has each of its steps once, in order
I6  every JSON file is strict: UTF-8, no NaN or Infinity, no key twice

A file that is not one of the results, such as `.DS_Store` in a run's folder, is a note, no breach.
A pack is unpacked to a temporary folder, and checked there as any other results.

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
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

#: Bytes that a pack may unpack to.
MOST = 1 << 30
PACK = "results.tar.xz"
SEAL = re.compile(rb',\n "sha256": "([0-9a-f]{64})"\n}\n\Z')
TOP = re.compile(r"experiment\.yaml|(plan|plan-[0-9a-f]{8}|compute|pace|protocol)\.json")
RUN = re.compile(r"(?P<label>[a-z0-9-]+?)--s(?P<seed>\d+)--(?P<id>[0-9a-z]+)(--(?P<number>\d+))?")
FINAL = ("ok", "diverged", "collapsed")
ROWS = 100  # of a curve
#: Numbers of a clock or of the machine's memory: no two runs share them.
TIMED = {"train_s", "peak_memory_bytes"}
Breach = tuple[str, str, str]  # invariant, path, what is wrong


class DamagedError(Exception):
    """A pack that cannot be unpacked, and why."""


def check(root: Path, against: Path | None = None) -> list[Breach]:
    """Return every breach of the invariants in a results folder or a pack."""
    left = [("I4", path.name, "is left of packing that was stopped") for path in partial(root)]
    with ExitStack() as opened:
        try:
            folder = opened.enter_context(unpacked(root))
            other = opened.enter_context(unpacked(against)) if against else None
        except DamagedError as error:
            return [*left, ("I2", PACK, str(error))]
        return [*left, *checked(folder, other)]


def checked(root: Path, against: Path | None) -> list[Breach]:
    """Return every breach of the invariants in a results folder."""
    plan = document(root / "plan.json")
    planned = planned_runs(plan)
    breaches = [
        *([] if planned else [("I1", str(root / "plan.json"), "plans no run")]),
        *commits(root, planned, is_staged(plan)),
        *documents(root),
        *files(root),
        *leftovers(root),
        *curves(root, planned),
    ]
    if against:
        breaches += differences(root, against, planned)
    return [(name, str(Path(path).relative_to(root)), what) for name, path, what in breaches]


def is_pack(root: Path) -> bool:
    """Return whether a folder holds packed results."""
    return (root / PACK).is_file()


def partial(root: Path) -> list[Path]:
    """Return the temporary files beside the archive of a pack."""
    return sorted(root.glob(".partial-*")) if is_pack(root) else []


@contextmanager
def unpacked(root: Path) -> Iterator[Path]:
    """Yield the folder of results; of a pack, a temporary one to which it is unpacked.

    Raises DamagedError where that cannot be done.
    """
    if not is_pack(root):
        yield root
        return
    with tempfile.TemporaryDirectory() as folder:
        try:
            unpack(root / PACK, Path(folder))
        except (OSError, EOFError, ValueError, lzma.LZMAError, tarfile.TarError) as error:
            raise DamagedError(f"cannot be unpacked: {error}") from None
        yield Path(folder)


def unpack(pack: Path, folder: Path) -> None:
    """Unpack an archive. Raises ValueError for one of other than files, or of too much."""
    with lzma.open(pack) as file:  # to its end, where the check sums stand
        raw = file.read(MOST + 1)
    with tarfile.open(fileobj=io.BytesIO(raw), mode="r:") as archive:
        members = archive.getmembers()
        if max(len(raw), sum(member.size for member in members)) > MOST:
            raise ValueError(f"it has more than {MOST >> 20} MiB")
        if others := [member.name for member in members if not member.isreg()]:
            raise ValueError(f"{others[0]!r} is no file")
        if len({member.name for member in members}) < len(members):
            raise ValueError("a file is there twice")
        archive.extractall(folder, filter="data")


def planned_runs(plan: dict[str, Any]) -> dict[str, Any]:
    """Return the runs of a plan by id."""
    tables = [mapping(table) for table in listed(plan.get("tables"))]
    runs = [mapping(run) for table in tables for run in listed(table.get("runs"))]
    return {run["id"]: run for run in runs if isinstance(run.get("id"), str)}


def is_staged(plan: dict[str, Any]) -> bool:
    """Return whether results decide which of the planned runs are needed: by looks or a race."""
    experiment = mapping(plan.get("experiment"))
    return bool(mapping(experiment.get("seeds")).get("looks") or experiment.get("race"))


def commits(root: Path, planned: dict[str, Any], staged: bool) -> Iterator[Breach]:
    """I1."""
    ids: Counter[str] = Counter()
    for parts, folder in named(root / "runs"):
        if parts["number"]:
            yield "I1", str(folder), "is not the folder of a final run"
            continue
        ids[parts["id"]] += 1
        record = written(folder)
        if (record.get("id"), str(record.get("seed"))) != (parts["id"], parts["seed"]):
            yield "I1", str(folder), "holds the record of another run"
        if record.get("outcome") not in FINAL:
            yield "I1", str(folder), f"is not final: {record.get('outcome')}"
    for run in planned:
        if ids[run] != 1 and not (staged and ids[run] == 0):
            yield "I1", str(root / "plan.json"), f"run {run} has {ids[run]} commits"
    for parts, folder in named(root / "failed"):
        if ids[parts["id"]]:
            yield "I1", str(folder), "is of a run that was finished since"


def documents(root: Path) -> Iterator[Breach]:
    """I6, and I2 of what bears a seal."""
    for path in sorted(root.rglob("*")):
        if path.is_symlink() and root / "track" not in path.parents:
            yield "I2", str(path), "is a link"
    for path in sorted(own(root)):
        if path.suffix != ".json" or not path.is_file():
            continue
        try:
            strict(path.read_bytes())
        except ValueError as error:
            yield "I6", str(path), f"is no strict JSON: {error}"
        if path.name == "record.json":
            continue  # the manifest vouches for it
        holds = sealed(root, path)
        if holds is False:
            yield "I2", str(path), "is not what its seal says"
        if holds is None:
            yield "I2", str(path), "bears no seal"


def sealed(root: Path, path: Path) -> bool | None:
    """Return whether a document's seal fits its text and its place; None where it has none."""
    raw = path.read_bytes() if path.is_file() else b""
    seal = SEAL.search(raw)
    if seal is None:
        return None
    text = path.relative_to(root).as_posix().encode() + b"\n" + raw[: seal.start()]
    return hashlib.sha256(text).hexdigest() == seal[1].decode()


def own(root: Path) -> set[Path]:
    """Return the files that the results consist of: of a run, what its manifest lists."""
    found = {path for path in root.iterdir() if TOP.fullmatch(path.name)}
    found |= {*root.glob("variants/*/metrics/[!.]*.json")}
    for folder in run_folders(root):
        manifest = manifested(folder)
        names = {"manifest.json", "weights.dropped", *manifest} - {"metrics", "sha256"}
        found |= {folder / name for name in names}
        first = mapping(manifest.get("metrics"))  # a metric that was added later bears a seal
        found |= {
            path
            for path in folder.glob("metrics/[!.]*.json")
            if path.stem in first or sealed(root, path)
        }
    return found


def foreign(root: Path) -> list[str]:
    """Return the files that lie among the results and are none of them."""
    apart = {root / name for name in ("report", "damaged", "redone", "working")}
    left = {path for path in root.rglob("*") if path.is_file() and not apart & {*path.parents}}
    names = (path.relative_to(root) for path in left - own(root))
    return sorted(str(name) for name in names if not name.name.startswith(".partial-"))


def files(root: Path) -> Iterator[Breach]:
    """I2 of what a manifest lists."""
    for folder in run_folders(root):
        if not (folder / "manifest.json").is_file():
            yield "I2", str(folder), "has no manifest"
            continue
        manifest = manifested(folder)
        there = {path.name for path in folder.iterdir()}
        manifest.pop("sha256", None)
        dropped = "weights.dropped" in there
        metrics = {f"{name}.json" for name in mapping(manifest.pop("metrics", {}))}
        for name in sorted(metrics - {path.name for path in folder.glob("metrics/*")}):
            yield "I2", str(folder / "metrics" / name), "is missing"
        for name in sorted({"record.json", "curve.csv"} - set(manifest)):
            yield "I2", str(folder / name), "is not in the manifest"
        for name in sorted(set(manifest) - there):
            if name != "weights.safetensors" or not dropped:
                yield "I2", str(folder / name), "is missing"
        for name in sorted(there & set(manifest)):
            raw = (folder / name).read_bytes() if (folder / name).is_file() else b""
            said = mapping(manifest[name])
            sums = {"bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
            ended = {key: said[key] for key in ("outcome", "reason") if key in said}
            if {**sums, **ended} != said or not ended.items() <= written(folder).items():
                yield "I2", str(folder / name), "is not what the manifest says"


def differences(root: Path, against: Path, planned: dict[str, Any]) -> Iterator[Breach]:
    """I3."""
    ours, theirs = by_id(root), by_id(against)
    for run in (run for run in planned if run in ours or run in theirs):
        if run not in ours or run not in theirs:
            yield "I3", str(root / "plan.json"), f"run {run} is not in both folders"
            continue
        for what, of in (("weights", weights), ("curve", curve), ("metrics", metrics)):
            if of(ours[run]) != of(theirs[run]):
                yield "I3", str(ours[run]), f"has other {what} than {theirs[run].name}"


def leftovers(root: Path) -> Iterator[Breach]:
    """I4."""
    working = root / "working"
    for path in sorted(working.iterdir()) if working.is_dir() else []:
        yield "I4", str(path), "is left of work in progress"
    for path in sorted(root.rglob(".partial-*")):
        yield "I4", str(path), "is a temporary file"
    here = str(root.resolve())
    for process in Path("/proc").glob("[0-9]*"):
        try:
            opened = [str(link.readlink()) for link in (process / "fd").iterdir()]
        except OSError:  # it has ended, or is not ours to look at
            continue
        if any(name.startswith(here + "/") for name in opened):
            yield "I4", str(root), f"process {process.name} has files open here"


def curves(root: Path, planned: dict[str, Any]) -> Iterator[Breach]:
    """I5."""
    for run, folder in by_id(root).items():
        try:
            steps = [int(row["step"]) for row in rows(folder)]
        except (ValueError, KeyError, TypeError, csv.Error) as error:
            yield "I5", str(folder / "curve.csv"), f"cannot be read: {type(error).__name__}"
            continue
        if steps != curve_steps({**written(folder), "id": run}, planned):
            yield "I5", str(folder / "curve.csv"), f"has the steps {steps[:3]}...{steps[-3:]}"


def curve_steps(record: dict[str, Any], planned: dict[str, Any]) -> list[int]:
    """Return the steps that a run's learning curve should have."""
    done = number(record.get("steps_done"))
    run = planned.get(str(record.get("id")))
    total = number(run.get("steps")) if run else done
    every = -(-total // ROWS)
    steps = [*range(every, done + 1, every)] if every > 0 else []
    if done and (not steps or steps[-1] != done) and done == total:
        steps.append(done)
    return steps


def strict(raw: bytes, default: Any = None) -> Any:
    """Read strict JSON. Raises ValueError, or returns `default` where there is one."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) < len(pairs):
            raise ValueError("a key stands there twice")
        return dict(pairs)

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is no JSON")

    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=once, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        if default is None:
            raise ValueError(error) from None
        return default


def written(folder: Path) -> dict[str, Any]:
    """Return the record of a run's folder; empty where it has none that can be read."""
    return document(folder / "record.json")


def manifested(folder: Path) -> dict[str, Any]:
    """Return what a run's manifest lists; nothing where it cannot be read."""
    return document(folder / "manifest.json")


def document(file: Path) -> dict[str, Any]:
    """Return the mapping that a file holds; empty where there is none that can be read."""
    return mapping(strict(file.read_bytes(), default={}) if file.is_file() else {})


def mapping(value: Any) -> dict[str, Any]:
    """Return a value that should be a mapping; an empty one for anything else."""
    return dict(value) if isinstance(value, dict) else {}


def listed(value: Any) -> list[Any]:
    """Return a value that should be a list; an empty one for anything else."""
    return list(value) if isinstance(value, list) else []


def number(value: Any) -> int:
    """Return a value that should be a whole number; 0 for anything else."""
    return value if isinstance(value, int) else 0


def folders(kind: Path) -> list[Path]:
    """Return the folders of a kind of runs."""
    return sorted(path for path in kind.iterdir() if path.is_dir()) if kind.is_dir() else []


def named(kind: Path) -> list[tuple[re.Match[str], Path]]:
    """Return the folders of a kind of runs that bear the name of one, and the parts of it."""
    matches = [(RUN.fullmatch(folder.name), folder) for folder in folders(kind)]
    return [(parts, folder) for parts, folder in matches if parts]


def run_folders(root: Path) -> list[Path]:
    """Return the folders of all runs, the final ones and the failed ones."""
    return [folder for kind in ("runs", "failed") for _, folder in named(root / kind)]


def by_id(root: Path) -> dict[str, Path]:
    """Return the final runs by id."""
    return {parts["id"]: folder for parts, folder in named(root / "runs")}


def weights(folder: Path) -> str:
    """Return the hash of a run's weights as its manifest has it, so also of those dropped since."""
    return str(mapping(manifested(folder).get("weights.safetensors")).get("sha256"))


def rows(folder: Path) -> list[dict[str, str]]:
    """Return a curve as it stands in the file."""
    file = folder / "curve.csv"
    text = file.read_text("utf-8", "replace") if file.is_file() else ""
    return list(csv.DictReader(io.StringIO(text)))


def curve(folder: Path) -> list[dict[str, str]]:
    """Return what of a curve repeats, character for character."""
    return [{k: v for k, v in row.items() if k not in TIMED} for row in rows(folder)]


def metrics(folder: Path) -> dict[str, Any]:
    """Return what of a record and its metrics repeats."""
    record = written(folder)
    found = {k: record.get(k) for k in ("outcome", "reason", "steps_done", "tokens_done", "data")}
    for file in sorted(folder.glob("metrics/[!.]*.json")):
        values = document(file)
        found[file.stem] = {name: value for name, value in values.items() if name != "sha256"}
    return found


def main() -> int:
    """Check the folders of the command line."""
    lines = (__doc__ or "").splitlines()
    parser = argparse.ArgumentParser(
        description=lines[0],
        epilog="\n".join(lines[1:]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, help="the results of one experiment")
    parser.add_argument("--against", type=Path, help="results to be equal to, bit for bit")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    options = parser.parse_args()
    for folder in (options.folder, options.against or options.folder):
        if is_pack(folder):
            continue  # what is wrong with it is a breach
        try:
            strict((folder / "plan.json").read_bytes())
        except (OSError, ValueError) as error:
            parser.exit(2, f"fsck: '{folder}' holds no results (plan.json: {error})\n")
    found = check(options.folder, options.against)
    files_apart = [] if is_pack(options.folder) else foreign(options.folder)
    notes = [("note", path, "is not one of the results") for path in files_apart]
    if options.json:
        keys = ("invariant", "path", "what")
        print(json.dumps([dict(zip(keys, of, strict=True)) for of in [*found, *notes]], indent=1))
    else:
        for each in [*found, *notes]:
            print("{}  {}: {}".format(*each))
        print(f"{options.folder}: {len(found)} breaches" if found else f"{options.folder}: sound")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
