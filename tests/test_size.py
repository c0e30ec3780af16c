"""The code has a size that a reader can hold: it grows by decision, never by the way."""

from tools import lines


def test_each_folder_is_within_its_limit():
    counts = lines.count()
    counts["package"] = lines.package_lines(counts)
    assert counts.keys() == lines.LIMITS.keys()
    assert not {name: n for name, n in counts.items() if n > lines.LIMITS[name]}
