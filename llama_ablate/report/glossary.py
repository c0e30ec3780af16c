"""Glossary of report terms, for the HTML page and docs/glossary.md.

The entries are read from `glossary.txt`: a term, a colon, and its meaning. Continuation lines of an
entry are indented.
"""

import re
from importlib import resources

_TEXT = resources.files("llama_ablate.report").joinpath("glossary.txt").read_text("utf-8")
#: Meanings by term, in the order in which a reader of a report meets the terms.
GLOSSARY = dict(
    " ".join(entry.split()).split(": ", 1) for entry in re.split(r"\n(?! )", _TEXT.strip())
)
