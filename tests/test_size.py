"""The code has a size that a reader can hold: it grows by decision, never by the way."""

import importlib.util
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location(
    "lines", Path(__file__).parents[1] / "tools" / "lines.py"
)
assert _SPEC
assert _SPEC.loader
lines = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(lines)


def test_each_folder_is_within_its_limit():
    counts = lines.count()
    counts["package"] = lines.package_lines(counts)
    assert counts.keys() == lines.LIMITS.keys()
    assert not {name: n for name, n in counts.items() if n > lines.LIMITS[name]}


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("", 0),
        ('"""Docs.\n\nMore.\n"""\n\nx = 1  # why\n# why\n', 1),
        ('def f():\n    """Docs."""\n    return """a\n    b"""\n', 3),
        ("x = [\n    1,\n\n    # why\n    2,\n]\n", 4),
    ],
)
def test_docstrings_comments_and_blanks_are_no_code(source, count):
    assert lines.code_lines(source) == count
