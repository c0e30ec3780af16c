"""The code has a size that a reader can hold: it grows by decision, never by the way."""

import importlib.util
from pathlib import Path

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
