"""Where damaged files and folders of the results are kept, for people to look at."""

from itertools import count
from pathlib import Path

from llama_ablate.files import disk


def set_aside(root: Path, path: Path) -> Path:
    """Move something of the results to `damaged/`, under a new name; return where it is now."""
    parts = path.relative_to(root).parts
    name = "--".join(parts[1:] or parts)  # what kind of folder it was in does not matter any more
    disk.make(root / "damaged")
    places = (root / "damaged" / f"{name}--{n}" for n in count(1))
    place = next(place for place in places if not place.exists())
    disk.move(path, place)
    return place
