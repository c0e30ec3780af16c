"""Faults to seed in a copy of the package, each with the tests that are to catch it."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]


class Mutant(NamedTuple):
    """A fault: what is wrong, in which file, and what stands where something else stood once."""

    what: str
    file: str
    stands: str
    instead: str
    #: The tests that are to catch it, those that catch it soonest first.
    caught_by: list[str]

    def spoiled(self) -> str:
        """Return the source of the file with the fault."""
        source = (ROOT / "llama_ablate" / self.file).read_text("utf-8")
        times = source.count(self.stands)
        assert times == 1, f"'{self.what}': `{self.stands}` stands {times} times in {self.file}"
        return source.replace(self.stands, self.instead)


#: What is wrong, where, the tests that are to catch it; what stands there, and what instead.
_TABLE = """
files are not flushed | files/disk.py | reliability/test_power_loss.py
    os.fsync(self._handle) -> pass
folders are not flushed | files/disk.py | reliability/test_power_loss.py
    os.fsync(handle) -> pass
documents are written in place | files/disk.py | test_results.py
    (aside or path.parent) / f"{PARTIAL}{secrets.token_hex(8)}" -> (remove(path), path)[1]
an error of the disk is swallowed | files/disk.py | test_results.py
    with contextlib.closing(file): -> with contextlib.closing(file), contextlib.suppress(OSError):
a lease can be had twice | results/leases.py | reliability/test_races.py
    os.O_CREAT | os.O_EXCL -> os.O_CREAT
a lease that was broken counts as held | results/leases.py | reliability/test_races.py
    (there.st_ino, there.st_dev) == (ours.st_ino, ours.st_dev) -> bool(there)
a process of another boot is taken for dead | results/leases.py | reliability/test_damage.py
    (boot, namespace) != (_boot(), _namespace()) -> namespace != _namespace()
hashes are not looked at | results/run.py | test_results.py reliability/test_damage.py
    self.manifest.get(name, {}).get("sha256") != digest -> not digest
a damaged checkpoint is believed | training/checkpoint.py | reliability/test_damage.py
    not path.name.endswith(f"-{digest[:32]}.pt") -> not digest
a path in a pack may lead out of it | results/archive.py | test_pack.py
    not _is_safe(member.name) -> not member.name
"""


def _faults() -> Iterator[Mutant]:
    lines = _TABLE.strip().splitlines()
    for told, change in zip(lines[::2], lines[1::2], strict=True):
        what, file, tests = told.split(" | ")
        stands, instead = change.strip().split(" -> ")
        yield Mutant(what, file, stands, instead, [f"tests/{test}" for test in tests.split()])


#: R23: faults that lose a run, believe a damaged one, lease one twice, or let a pack out.
FAULTS = tuple(_faults())
