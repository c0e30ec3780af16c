"""The files that a later step believes: what tells a changed one, and what happens then.

The table of results/reference/reliability.md. tests/reliability/test_believed_files.py watches
which files are read by commands, changes one of each kind, and fails where this list says
otherwise.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Literal

#: What a command does that meets a changed file: it goes on and makes what was changed again; it
#: says so in one line and exits with code 2; it takes no notice.
Reaction = Literal["again", "line", "none"]


@dataclass(frozen=True)
class Believed:
    """Files of one kind, by their names below a results folder, a pack or the cache."""

    files: tuple[str, ...]
    checksum: str
    then: str
    reaction: Reaction
    #: Why a small grid on one machine does not read them; "" where it does.
    unread: str = ""

    def holds(self, name: str) -> bool:
        """Return whether a name is one of these: `*` stands for a part of one level."""
        path = PurePosixPath(name)
        return any(
            len(path.parts) == pattern.count("/") + 1 and path.match(pattern)
            for pattern in self.files
        )


_SEAL = "seal"
_TRAINED = "the run is moved to `damaged/` and trained again"
_MEASURED = "moved to `damaged/` and measured again"

RESULTS = (
    Believed(("plan.json",), _SEAL, "refused; `run` moves it away and makes another", "line"),
    Believed(("plan-*.json",), _SEAL, "refused", "line"),
    Believed(("protocol.json",), _SEAL, "refused: it cannot be made again", "line"),
    Believed(("compute.json",), _SEAL, _MEASURED, "again"),
    Believed(("pace.json",), _SEAL, _MEASURED, "again", "of budgets in seconds"),
    Believed(("runs/*/manifest.json",), _SEAL, _TRAINED, "again"),
    Believed(("runs/*/metrics/*.json",), _SEAL, _TRAINED, "again"),
    Believed(
        tuple(f"runs/*/{name}" for name in ("record.json", "curve.csv", "weights.safetensors")),
        "SHA-256 in `manifest.json`",
        _TRAINED,
        "again",
    ),
    Believed(
        ("failed/*/*", "failed/*/metrics/*"), "as in `runs/`", _TRAINED, "again", "of failures"
    ),
    Believed(("variants/*/metrics/*.json",), _SEAL, _MEASURED, "again"),
    Believed(
        ("working/*/checkpoint-*.pt",),
        "SHA-256 in its name",
        "the checkpoint before it is used, or the run starts again",
        "again",
    ),
    Believed(
        ("working/*/name",),
        "none: the label in the name of the run's folder",
        "another label stands in that name; one of another run or place is not used",
        "none",
        "of workers that were killed while they committed",
    ),
    Believed(
        ("working/*/lease-*",),
        "none: the process that holds it",
        "the process counts as one elsewhere, whose heartbeat is watched",
        "none",
        "while another process holds it",
    ),
    Believed(
        ("working/*/live.json", "working/*/log"),
        "none",
        "shown to who watches, nothing else",
        "none",
        "of runs at work, and of lost ones",
    ),
    Believed(
        ("experiment.yaml", "report/*", "report/*/*"),
        "none",
        "copies for readers: shown, and written again",
        "none",
    ),
)

PACK = (
    Believed(
        ("results.tar.xz",),
        "xz's check sums; the seals and SHA-256 of the files in it",
        "refused",
        "line",
    ),
    Believed(
        ("experiment.yaml", "runs.csv", "report.md", "effects*.png"),
        "none",
        "copies for people: read by no command",
        "none",
        "as no command reads them",
    ),
    Believed(
        ("report/*", "report/*/*"),
        "none",
        "copies for readers: written again",
        "none",
    ),
)

CACHE = (
    Believed(("texts/*.json", "working/*/text.json"), _SEAL, "the text is read again", "again"),
    Believed(
        ("working/*/text/*.txt",),
        "SHA-256 in `text.json`",
        "the text is read again",
        "again",
    ),
    Believed(
        ("working/*/progress.json",),
        "seal; its chunks are compared with those of the text",
        "the text is encoded from the beginning",
        "again",
    ),
    Believed(
        ("working/*/tokens/*.bin",),
        "SHA-256 and number of tokens in `progress.json`",
        "the split is encoded from the beginning",
        "again",
    ),
    Believed(
        ("working/*/tokens/tokenizer.json",),
        "SHA-256 in `progress.json`",
        "the tokenizer is made again, and all is encoded by it",
        "again",
    ),
    Believed(
        ("tokens/*/*.bin",),
        "SHA-256 in `sums.json`, number of tokens in `manifest.json`",
        "the text is encoded again",
        "again",
    ),
    Believed(
        ("tokens/*/manifest.json", "tokens/*/tokenizer.json"),
        "SHA-256 in `sums.json`",
        "the text is encoded again",
        "again",
    ),
    Believed(
        ("tokens/*/sums.json",),
        "compared with every file that it names",
        "the text is encoded again",
        "again",
    ),
)

ELSEWHERE = (
    Believed(
        ("tokenizers in the cache of Hugging Face",),
        "SHA-1 of git or SHA-256, in the name of its blob",
        "refused",
        "line",
    ),
    Believed(("tokenizers in the cache of tiktoken",), "tiktoken's own SHA-256", "refused", "line"),
    Believed(
        ("data sets in the cache of Hugging Face",),
        "none of ours",
        "it is another text, with another fingerprint",
        "none",
    ),
)

_HEADS = {
    "A results folder": RESULTS,
    "A pack": PACK,
    "The cache (`LLAMA_ABLATE_CACHE`)": CACHE,
    "Other libraries' caches": ELSEWHERE,
}


def unlisted(names: Iterable[str], kinds: Iterable[Believed]) -> set[str]:
    """Return the names that no kind holds."""
    kinds = list(kinds)
    return {name for name in names if not any(kind.holds(name) for kind in kinds)}


def table() -> str:
    """Return the table of results/reference/reliability.md."""
    lines = ["| file | checksum | where it does not match |", "|---|---|---|"]
    for head, kinds in _HEADS.items():
        lines.append(f"| **{head}** | | |")
        for kind in kinds:
            names = kind.files if kinds is ELSEWHERE else map("`{}`".format, kind.files)
            where = f" ({kind.unread})" if kind.unread else ""
            lines.append(f"| {', '.join(names)}{where} | {kind.checksum} | {kind.then} |")
    return "\n".join(lines) + "\n"
