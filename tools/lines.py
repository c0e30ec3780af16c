"""Count lines of code by folder, without comments, docstrings and blank lines.

    python tools/lines.py             # lines of code of each folder, and their limit
    python tools/lines.py CHECKOUT    # also the lines of code in another checkout

A limit is the number of lines at the time when it was set, plus 2%. The commit that raises a limit
states the reason for the growth.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = "llama_ablate"
#: Limits to the lines of code of each folder of the package, of the modules directly in it, of the
#: tests, of all scripts, and of the whole package. `tests/test_size.py` fails above them.
LIMITS = {
    "llama_ablate/commands": 2_203,
    "llama_ablate/config": 1_679,
    "llama_ablate/data": 2_400,
    "llama_ablate/design": 1_471,
    "llama_ablate/evidence": 738,
    "llama_ablate/files": 340,
    "llama_ablate/findings": 3_533,
    "llama_ablate/interop": 1_399,
    "llama_ablate/launch": 1_507,
    "llama_ablate/measure": 885,
    "llama_ablate/model": 2_876,
    "llama_ablate/report": 2_938,
    "llama_ablate/results": 1_814,
    "llama_ablate/track": 200,
    "llama_ablate/training": 1_377,
    "llama_ablate/*.py": 468,
    "tests": 19_871,
    "scripts": 4_827,
    "package": 25_828,
}
#: Patterns of script files, outside package and tests.
SCRIPTS = (
    "analysis/**/*.py",
    "benchmarks/**/*.py",
    "docs/*.py",
    "tools/*.py",
    "experiments/**/*.py",
)
_NO_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
)


def code_lines(source: str) -> int:
    """Return the number of lines of code in a module's source.

    Docstrings, comments and blank lines are not counted.
    """
    docstrings = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docstrings |= set(range(first.lineno, (first.end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - docstrings)


def count(root: Path = ROOT) -> dict[str, int]:
    """Count the lines of code of each part of a checkout with a limit."""
    package = root / PACKAGE
    folders = sorted(path for path in package.iterdir() if any(path.glob("*.py")))
    parts = {f"{PACKAGE}/{folder.name}": sorted(folder.rglob("*.py")) for folder in folders}
    parts |= {
        f"{PACKAGE}/*.py": sorted(package.glob("*.py")),
        "tests": sorted((root / "tests").rglob("*.py")),
        "scripts": [path for pattern in SCRIPTS for path in sorted(root.glob(pattern))],
    }
    return {
        name: sum(code_lines(path.read_text("utf-8")) for path in files)
        for name, files in parts.items()
    }


def package_lines(counts: dict[str, int]) -> int:
    """Return the total number of lines of code of the package."""
    return sum(lines for name, lines in counts.items() if name.startswith(PACKAGE))


def rows(checkouts: list[Path]) -> Iterator[str]:
    """Yield a line per part: lines of code, limit, and lines in other checkouts."""
    here, others = count(), [count(checkout) for checkout in checkouts]
    total = {"package": package_lines(here)}
    for name, lines in (here | total).items():
        limit = f"of {LIMITS[name]:,}" if name in LIMITS else ""
        elsewhere = [(other | {"package": package_lines(other)}).get(name, 0) for other in others]
        yield f"{name:24} {lines:7,} {limit:10}" + "".join(f"{n:10,}" for n in elsewhere)


if __name__ == "__main__":
    print("\n".join(rows([Path(at) for at in sys.argv[1:]])))
