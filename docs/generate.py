"""Write the generated parts of the README again: component table, and the output of a command.

    python docs/generate.py

A test fails while the README holds anything else.
"""

from pathlib import Path

from llama_ablate import summary
from llama_ablate.catalogue import markdown

README = Path(__file__).parents[1] / "README.md"


def generated(text: str) -> str:
    """Return the README's text with its generated parts as they are now."""
    for name, content in {"components": markdown(), "summary": _summary()}.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        before, rest = text.split(begin)
        text = before + begin + content + end + rest.split(end)[1]
    return text


def _summary() -> str:
    spec, about = summary.of_preset("llama3-8b")
    values = summary.summarize("llama3-8b", spec, batch=16)
    shown = summary.text(values, about)
    return f"```text\n$ llama-ablate summary llama3-8b --batch 16\n{shown}\n```\n"


if __name__ == "__main__":
    README.write_text(generated(README.read_text("utf-8")), "utf-8")
