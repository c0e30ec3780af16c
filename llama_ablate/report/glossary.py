"""Glossary of report terms, for the page and docs/glossary.md.

They stand in `glossary.txt`, an entry each: the word, a colon, what it means. Further lines of an
entry are indented.
"""

import re
from importlib import resources

_TEXT = resources.files("llama_ablate.report").joinpath("glossary.txt").read_text("utf-8")
#: A word as a report writes it, and what it means. In the order in which a reader meets them.
GLOSSARY = dict(
    " ".join(entry.split()).split(": ", 1) for entry in re.split(r"\n(?! )", _TEXT.strip())
)
