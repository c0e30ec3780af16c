"""Which modules may change the disk: one, files/disk.py, and those that say here why not by it."""

import ast
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "llama_ablate"
#: Calls that write, make, rename or remove, whatever they are methods of.
_CHANGES = {
    *("write_text", "write_bytes", "mkdir", "makedirs", "touch", "symlink_to", "hardlink_to"),
    *("unlink", "rmdir", "rmtree", "removedirs", "mkdtemp", "copytree", "copyfile", "truncate"),
    "save_file",
}
#: The same of `os` alone; strings and frames have methods of these names.
_OF_OS = {"rename", "replace", "remove", "open", "write", "link", "symlink", "chmod", "utime"}

#: Modules that change the disk by calls of their own, and why: none takes a name from a file of
#: results for a path.
ALLOWED = {
    "files/disk.py": "the calls themselves",
    "results/leases.py": "lease files, which are created exclusively and renamed",
    "results/live.py": "a note that nothing depends on, and that is never flushed",
    "data/texts.py": "writes texts of the cache while they are read",
    "commands/init.py": "a file of the user's own name, which it never replaces",
    "commands/cli.py": "closed standard streams lead to /dev/null",
    "interop/huggingface.py": "an export, to a folder that the user names and that is new",
    "launch/slurm.py": "submitit's folder, which only its owner may read",
    "launch/ray.py": "what Ray prints leads to /dev/null",
}


def changes(file):
    """Yield the lines of a module that change the disk, with what they call."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        name = getattr(called, "attr", getattr(called, "id", ""))
        owner = getattr(getattr(called, "value", None), "id", "")
        modes = [a.value for a in node.args if isinstance(a, ast.Constant)]
        modes += [k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)]
        opens = name == "open" and any(
            isinstance(m, str) and 0 < len(m) < 4 and {*m} & {*"wax+"} and {*m} <= {*"rwaxbt+"}
            for m in modes
        )
        moves = name in ("rename", "replace") and len(node.args) == 1 and not node.keywords
        moves = moves and owner != "disk" and not isinstance(node.args[0], ast.Constant)
        moves = moves and not isinstance(called, ast.Name)  # dataclasses.replace
        changes = name in _CHANGES and not (name == "write_text" and isinstance(called, ast.Name))
        if (owner != "disk" and (changes or (owner == "os" and name in _OF_OS))) or opens or moves:
            yield node.lineno, name


def test_only_these_modules_change_the_disk_by_calls_of_their_own():
    files = PACKAGE.rglob("*.py")
    found = {file.relative_to(PACKAGE).as_posix(): [*changes(file)] for file in files}
    others = {name: lines for name, lines in found.items() if lines and name not in ALLOWED}
    assert others == {}, "use llama_ablate.files.disk, and disk.below for names from files"
    assert [name for name in ALLOWED if not found[name]] == [], "these need no permission"
