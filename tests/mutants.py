"""Faults to seed in a copy of the package, each with the tests that are to catch it.

A fault names a function and an expression or statement in it. Both are compared as syntax trees, so
layout and comments do not matter; a fault whose place has changed is told by name.
"""

import ast
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Mutant:
    """A fault: what is wrong, in which function, and what stands where something else stood."""

    what: str
    file: str
    function: str
    stands: str
    instead: str
    #: The tests that are to catch it, those that catch it soonest first.
    caught_by: tuple[str, ...]

    def spoil(self, copy: Path) -> str:
        """Write the fault into a copy of the sources; return what stood there before."""
        path = copy / "llama_ablate" / self.file
        before = path.read_text("utf-8")
        tree, swap = ast.parse(before), _Swap(_tree(self.stands), _tree(self.instead))
        functions = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.name == self.function
        ]
        for function in functions:
            function.body = [swap.visit(statement) for statement in function.body]
        assert swap.swapped == 1, (
            f"tests/mutants.py: '{self.what}' cannot be seeded: `{self.stands}` stands "
            f"{swap.swapped} times in {self.function} of {self.file}"
        )
        path.write_text(ast.unparse(ast.fix_missing_locations(tree)), "utf-8")
        return before


class _Swap(ast.NodeTransformer):
    """Put one tree in the place of every tree that is equal to another."""

    def __init__(self, stands: ast.AST, instead: ast.AST) -> None:
        self._stands, self._instead, self.swapped = ast.dump(stands), instead, 0

    def visit(self, node: ast.AST) -> ast.AST:
        if ast.dump(node) == self._stands:
            self.swapped += 1
            return self._instead
        return self.generic_visit(node)


def _tree(source: str) -> ast.AST:
    """Return a statement, or an expression without the statement around it."""
    (statement,) = ast.parse(source).body
    return statement.value if isinstance(statement, ast.Expr) else statement


DISK, LEASES = "files/disk.py", "results/leases.py"
RESULTS = "tests/test_results.py"
POWER = "tests/reliability/test_power_loss.py"
DAMAGE = "tests/reliability/test_damage.py"
RACES = "tests/reliability/test_races.py"
CRASHES = "tests/reliability/test_crashes.py"
PACKS, LIVE = "tests/test_pack.py", "tests/test_live.py"
VERSIONS, STRANGERS = DAMAGE, "tests/reliability/test_strangers.py"
WORKING, TOKENS = "data/working.py", "tests/data/test_believed_tokens.py"

#: R23: faults of results, of what they hold, and of their readers.
FAULTS = (
    Mutant("files are not flushed", DISK, "close", "os.fsync(self._handle)", "None", (POWER,)),
    Mutant("folders are not flushed", DISK, "sync", "os.fsync(handle)", "None", (POWER,)),
    Mutant(
        "documents are written in place",
        DISK,
        "replace",
        "(aside or path.parent) / f'{PARTIAL}{secrets.token_hex(8)}'",
        "(remove(path), path)[1]",
        (RESULTS, POWER),
    ),
    Mutant("an error of the disk is swallowed", DISK, "write", "raise", "pass", (RESULTS, CRASHES)),
    Mutant(
        "a lease can be had twice",
        LEASES,
        "__init__",
        "os.O_WRONLY | os.O_CREAT | os.O_EXCL",
        "os.O_WRONLY | os.O_CREAT",
        (RACES,),
    ),
    Mutant(
        "a lease that was broken counts as held",
        LEASES,
        "held",
        "(there.st_ino, there.st_dev) == (ours.st_ino, ours.st_dev)",
        "bool(there)",
        (RACES,),
    ),
    Mutant(
        "a lease is never renewed",
        LEASES,
        "_renew",
        "os.utime(self._handle, ns=(0, beat * 10**9))",
        "None",
        (RACES,),
    ),
    Mutant(
        "a beat is the time of the clock",
        LEASES,
        "_renew",
        "(0, beat * 10**9)",
        "(0, int(time.time()) * 10**9)",
        (RACES,),
    ),
    Mutant(
        "a lease is counted by the clock",
        LEASES,
        "waits",
        "time.monotonic()",
        "time.time()",
        (RACES,),
    ),
    Mutant(
        "the process of a lease is known by its number alone",
        "results/leases.py",
        "alive",
        "_began(int(pid)) == began",
        "_began(int(pid)) != ''",
        (DAMAGE,),
    ),
    Mutant(
        "a process of another boot is taken for dead",
        "results/leases.py",
        "alive",
        "(boot, namespace) != (_boot(), _namespace())",
        "namespace != _namespace()",
        (DAMAGE,),
    ),
    Mutant(
        "hashes are not looked at",
        "results/run.py",
        "_compare",
        "self.manifest.get(name, {}).get('sha256') != digest",
        "self.manifest.get(name, {}).get('sha256') == 'never'",
        (RESULTS, DAMAGE),
    ),
    Mutant(
        "a failed run among the finished ones is believed",
        "results/run.py",
        "is_intact",
        "final == (self.path.parent.name == RUNS)",
        "True",
        (RESULTS, DAMAGE),
    ),
    Mutant(
        "a damaged checkpoint is believed",
        "training/checkpoint.py",
        "load",
        "not path.name.endswith(f'-{digest[:32]}.pt')",
        "not digest",
        (DAMAGE, "tests/training/test_loop.py"),
    ),
    Mutant(
        "the optimizer's state is not restored",
        "training/loop.py",
        "_resume",
        "optimizer.load_state_dict(values['optimizer'])",
        "values['optimizer']",
        ("tests/reliability/test_resume.py",),
    ),
    Mutant(
        "a note of a tokenisation is believed without its seal",
        WORKING,
        "recall",
        "read_json(file, _place(file))",
        "read_json(file)",
        (TOKENS,),
    ),
    Mutant(
        "a note of one text is believed of another",
        WORKING,
        "_place",
        "'/'.join(file.parts[-2:])",
        "''",
        (TOKENS,),
    ),
    Mutant(
        "a manifest may count other tokens than there are",
        "data/tokens.py",
        "_check",
        "before[0] != size",
        "False",
        (TOKENS,),
    ),
    Mutant(
        "a run that has ended meanwhile is leased",
        "results/store.py",
        "lease",
        "lease and self.is_final(run)",
        "False",
        (RESULTS,),
    ),
    Mutant(
        "a failed attempt ends its lease, checkpoints and all",
        "results/store.py",
        "commit",
        "record.outcome in FINAL and folder",
        "folder",
        (RESULTS,),
    ),
    Mutant(
        "the last window is never drawn",
        "data/tokens.py",
        "batch",
        "len(ids) - context",
        "len(ids) - context - 1",
        ("tests/data/test_tokens.py",),
    ),
    Mutant(
        "tokens of another text are believed",
        "data/tokens.py",
        "load",
        "tokens.fingerprint != folder.name",
        "False",
        (TOKENS,),
    ),
    Mutant(
        "a pack may unpack to any size",
        "results/archive.py",
        "_unpacked",
        "len(content) > MAX_BYTES",
        "False",
        (PACKS,),
    ),
    Mutant(
        "a path in a pack may lead out of it",
        "results/archive.py",
        "_contents",
        "_is_safe(member.name)",
        "True",
        (PACKS,),
    ),
    Mutant(
        "a pack takes the place of another experiment's",
        "commands/pack.py",
        "_refuse_target",
        "there != name",
        "False",
        (PACKS,),
    ),
    Mutant(
        "two commands pack into one place",
        "results/archive.py",
        "write_pack",
        "disk.locked(target)",
        "disk._handle_of(target)",
        (PACKS,),
    ),
    Mutant(
        "a stored hypothesis of a form that is gone is judged without its key",
        "config/stored.py",
        "_place",
        "where[0] in _WHOLE_ENTRIES",
        "False",
        (PACKS,),
    ),
    Mutant(
        "a later format is read as ours",
        "results/plan_document.py",
        "validated",
        "number != FORMAT",
        "False",
        (VERSIONS, PACKS),
    ),
    Mutant(
        "another version's plan counts as damaged",
        "results/plan_document.py",
        "sound_plan",
        "raise",
        "return None",
        (VERSIONS, RESULTS),
    ),
    Mutant(
        "a note of how far a run is may be anything",
        "results/live.py",
        "read",
        "(OSError, ConfigError, ValidationError)",
        "OSError",
        (LIVE, STRANGERS),
    ),
    Mutant(
        "the pace of a run that has not begun is known",
        "results/live.py",
        "seconds_left",
        "not self.tokens_per_s or not self.step",
        "False",
        (LIVE, STRANGERS),
    ),
)
