"""Count lines of code: all but comments, docstrings and blanks.

    python tools/lines.py             # what stands here, and the most that may
    python tools/lines.py CHECKOUT    # beside it, what stands in another checkout

A change that raises a limit says why in its commit.
"""

import ast
import io
import sys
import tokenize
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
#: The most lines of code that each of these may hold; `tests/test_size.py` fails above them.
LIMITS = {("llama_ablate",): 32_046, ("llama_ablate", "analysis", "benchmarks"): 35_686}
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
    """Return how many lines of a module hold code: docstrings, comments and blanks are none."""
    docstrings = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docstrings |= set(range(first.lineno, (first.end_lineno or 0) + 1))
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _NO_CODE:
            held |= set(range(token.start[0], token.end[0] + 1))
    return len(held - docstrings)


def total(folders: Iterable[str], root: Path = ROOT) -> int:
    """Return the lines of code of all modules below some folders."""
    return sum(
        code_lines(path.read_text("utf-8"))
        for folder in folders
        for path in sorted((root / folder).rglob("*.py"))
    )


def main(arguments: list[str]) -> None:
    """Print the counts."""
    for folders, limit in LIMITS.items():
        there = "".join(f", {total(folders, Path(at)):,} in {at}" for at in arguments)
        print(f"{' + '.join(folders)}: {total(folders):,} of {limit:,}{there}")


if __name__ == "__main__":
    main(sys.argv[1:])
