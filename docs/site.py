"""Build the documentation site from the repository's Markdown pages.

    python -m docs.site

The site contains all pages and other files that README.md links to, directly or through other
pages. They are copied to build/pages in the layout of the repository, so that all links stay valid,
and MkDocs builds build/site from them. Warnings are errors.
"""

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"
_LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def reached(start: Path) -> set[Path]:
    """Return the page `start` and all files that it links to, directly or indirectly."""
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
    """Copy all pages of the site to build/pages, in the layout of the repository."""
    shutil.rmtree(PAGES, ignore_errors=True)
    for file in reached(ROOT / "README.md"):
        target = PAGES / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


if __name__ == "__main__":
    from mkdocs.__main__ import cli

    copy()
    cli(["build", "--strict", "--config-file", str(ROOT / "mkdocs.yml")])
