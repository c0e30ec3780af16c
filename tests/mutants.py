"""Faults to seed in a copy of the package, each with the tests that are to catch it."""

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
    caught_by: tuple[str, ...]

    def spoil(self, copy: Path) -> str:
        """Write the fault into a copy of the sources; return what stood there before."""
        path = copy / "llama_ablate" / self.file
        before = path.read_text("utf-8")
        times = before.count(self.stands)
        assert times == 1, f"'{self.what}': `{self.stands}` stands {times} times in {self.file}"
        path.write_text(before.replace(self.stands, self.instead), "utf-8")
        return before


DISK, LEASES, RUN = "files/disk.py", "results/leases.py", "results/run.py"
RESULTS, PACKS = "tests/test_results.py", "tests/test_pack.py"
POWER, DAMAGE, RACES = (
    f"tests/reliability/test_{name}.py" for name in ("power_loss", "damage", "races")
)

#: R23: faults that lose a run, believe a damaged one, lease one twice, or let a pack out.
FAULTS = (
    Mutant("files are not flushed", DISK, "os.fsync(self._handle)", "pass", (POWER,)),
    Mutant("folders are not flushed", DISK, "os.fsync(handle)", "pass", (POWER,)),
    Mutant(
        "documents are written in place",
        DISK,
        '(aside or path.parent) / f"{PARTIAL}{secrets.token_hex(8)}"',
        "(remove(path), path)[1]",
        (RESULTS, POWER),
    ),
    Mutant(
        "an error of the disk is swallowed",
        DISK,
        "remove(path)\n        raise\n",
        "remove(path)\n",
        (RESULTS,),
    ),
    Mutant("a lease can be had twice", LEASES, " | os.O_EXCL", "", (RACES,)),
    Mutant(
        "a lease that was broken counts as held",
        LEASES,
        "(there.st_ino, there.st_dev) == (ours.st_ino, ours.st_dev)",
        "bool(there)",
        (RACES,),
    ),
    Mutant(
        "a process of another boot is taken for dead",
        LEASES,
        "(boot, namespace) != (_boot(), _namespace())",
        "namespace != _namespace()",
        (DAMAGE,),
    ),
    Mutant(
        "hashes are not looked at",
        RUN,
        'self.manifest.get(name, {}).get("sha256") != digest',
        "not digest",
        (RESULTS, DAMAGE),
    ),
    Mutant(
        "a damaged checkpoint is believed",
        "training/checkpoint.py",
        'not path.name.endswith(f"-{digest[:32]}.pt")',
        "not digest",
        (DAMAGE,),
    ),
    Mutant(
        "a path in a pack may lead out of it",
        "results/archive.py",
        "not _is_safe(member.name)",
        "not member.name",
        (PACKS,),
    ),
)
