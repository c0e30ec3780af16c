"""Build the documentation site from the repository's Markdown pages.

    python -m docs.site

The pages are those that README links to, those that these link to, and so on, with every other file
that they link to. They are copied to build/pages, laid out as in the repository, so that each link
means the same there, and MkDocs makes build/site of them. Warnings are errors.
"""

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def reached(start: Path) -> set[Path]:
    """Return the page `start` and every file that it links to, directly or through others."""
    found, waiting = {start}, [start]
    while waiting:
        page = waiting.pop()
        if page.suffix == ".md":
            targets = {
                (page.parent / target).resolve()
                for target in _LINK.findall(_CODE.sub("", page.read_text("utf-8")))
                if "://" not in target
            }
            new = {target for target in targets if target.is_file()} - found
            found |= new
            waiting += new
    return found


def copy() -> None:
    """Lay the pages out in build/pages."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for file in reached(ROOT / "README.md"):
        target = PAGES / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


if __name__ == "__main__":
    from mkdocs.__main__ import cli

    copy()
    cli(["build", "--strict", "--config-file", str(ROOT / "mkdocs.yml")])
