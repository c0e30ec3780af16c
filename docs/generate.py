"""Write the generated parts of the README again: the component table, from the registries.

    python docs/generate.py

A test fails while the README holds anything else.
"""

from pathlib import Path

from llama_ablate.catalogue import markdown

README = Path(__file__).parents[1] / "README.md"
BEGIN, END = "<!-- components: begin -->\n", "<!-- components: end -->\n"


def generated(text: str) -> str:
    """Return the README's text with its component table as the registries have it now."""
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    return before + BEGIN + markdown() + END + after


if __name__ == "__main__":
    README.write_text(generated(README.read_text("utf-8")), "utf-8")
