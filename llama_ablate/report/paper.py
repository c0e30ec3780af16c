"""A paper's files: tables, figures of its columns' widths, a paragraph of methods, references.

    paper.tex           a document that shows every other file, to take from
    NAME-comparison.tex a table for a column, and `-wide` one for the page; so with other sections
    NAME-effects.pdf    a figure for a column, and `-wide` one for the page
    NAME-methods.tex    what was trained and compared, how, and what was not tested
    references.bib      this tool, and the components that took part

`NAME` is that of the experiment: labels of several in one paper differ. Of several experiments
`all-comparison.tex` has the rows of all.
"""

import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pandas as pd

from llama_ablate import __version__
from llama_ablate.config.experiment import slug
from llama_ablate.config.registry import entry_text
from llama_ablate.errors import ConfigError
from llama_ablate.files import disk
from llama_ablate.files.strict_json import read_json, sealed
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.findings.union import remarks, union
from llama_ablate.report import plots, tables
from llama_ablate.report.headline import computed
from llama_ablate.report.latex import escaped
from llama_ablate.report.section import Section
from llama_ablate.report.sections import FIGURES, sections
from llama_ablate.report.warnings import warnings
from llama_ablate.terminal import listed, plural

#: Inches of a column and of the page of a conference's paper, by the ending of a figure's file.
WIDTHS = {"": 3.25, "-wide": 6.75}
ALL = "all"
_LIST = "paper.json"
_KEYWORDS = re.compile(r"^  keywords = \{(.*)\}$", re.MULTILINE)
_DOCUMENT = r"""% Made by `llama-ablate report --paper`; shows every file beside it, to take from.
\documentclass[10pt,twocolumn]{article}
\usepackage[T1]{fontenc}
\usepackage{booktabs,array,adjustbox,graphicx}
\setlength{\textwidth}{6.75in}\setlength{\oddsidemargin}{-0.125in}\setlength{\columnsep}{0.25in}
\emergencystretch=3em
\begin{document}
CONTENT
\bibliographystyle{plain}
\bibliography{references}
\end{document}
"""
Value = TypeVar("Value")


class _Table(NamedTuple):
    """A table of a paper: its part of a file's name and of a label, and what stands in it."""

    name: str
    cells: pd.DataFrame
    caption: str
    short: int
    note: str


def write(experiments: Sequence[Frames], folder: Path) -> list[str]:
    """Write the paper of some experiments to a folder; return the names of its files.

    An earlier paper's files are replaced as they were written. Raises ConfigError, before anything
    is written, where a file of another origin, or one changed since, has the name of one.
    """
    contents = files(experiments)
    sums = {name: sha256(content).hexdigest() for name, content in contents.items()}
    disk.make(folder)
    with disk.locked(folder):
        index, known = disk.below(folder, _LIST), dict[str, Any]()
        with suppress(FileNotFoundError):
            known = read_json(index, _LIST)
        for name in contents:
            with suppress(FileNotFoundError):
                found = sha256(disk.read(disk.below(folder, name))).hexdigest()
                if found not in (sums[name], *known.get(name, ())):
                    raise ConfigError(
                        f"'{folder / name}' is not as `report --paper` wrote it: move it away, or "
                        "name another folder with --out"
                    )
        # Both sums stand there first: a command that is killed now is repeated.
        ours = {name: sorted({sum_, *known.get(name, ())}) for name, sum_ in sums.items()}
        disk.replace(index, sealed({**known, **ours}, _LIST))
        for name, content in contents.items():
            disk.replace(folder / name, content)
        disk.replace(index, sealed({**known, **{k: [v] for k, v in sums.items()}}, _LIST))
    return [*contents]


def files(experiments: Sequence[Frames]) -> dict[str, bytes]:
    """Return the files of a paper by name."""
    made: dict[str, bytes] = {}
    shown: list[str] = []
    names = _unique([frames.plan.experiment.name for frames in experiments])
    keys, references = _references(experiments)

    def show(name: str, every: Iterable[_Table]) -> None:
        for table in every:
            base = f"{name}-{table.name}"
            for end, text in tables.in_latex(table.cells, table.caption, base, *table[3:]).items():
                made[f"{base}{end}.tex"] = text.encode()
                shown.append(rf"\input{{{base}{end}}}")

    if len(experiments) > 1:
        show(ALL, _of_all(experiments))
    for name, frames in zip(names, experiments, strict=True):
        printed = [section for section in sections(frames) if section.printed]
        made[f"{name}-methods.tex"] = methods(frames, printed, keys).encode()
        shown.append(rf"\input{{{name}-methods}}")
        show(name, (_table(frames, section) for section in printed))
        for one in FIGURES.make(frames):
            if one.part.section not in {section.key for section in printed}:
                continue
            about = f"{one.about.partition('. ')[0].rstrip('.')}. {one.part.note}"
            caption = escaped(f"{about} {scope(_tables_of(frames, one.table))}")
            base = "-".join(filter(None, (name, slug(one.name), one.table and _ascii(one.table))))
            for end, width in WIDTHS.items():
                made[f"{base}{end}.pdf"] = plots.for_paper(one.part, width)
                figure = "figure*" if end else "figure"
                shown += [
                    rf"\begin{{{figure}}}\centering\includegraphics{{{base}{end}}}",
                    rf"\caption{{{caption}}}\label{{fig:{base}{end}}}\end{{{figure}}}",
                ]
        shown.append(r"\clearpage")
    made["references.bib"] = references.encode()
    made["paper.tex"] = _DOCUMENT.replace("CONTENT", "\n".join(shown)).encode()
    return made


def caption(frames: Frames, section: Section) -> str:
    """Return a table's caption: the question, what its numbers are, and of which models."""
    of = _tables_of(frames, section.table)
    question = frames.plan.experiment.question or f"{frames.plan.experiment.name}."
    about = section.note.partition(". ")[0].rstrip(".")
    base = ", ".join(dict.fromkeys(table.plan.baseline.label for table in of))
    told = [question, f"{section.title}: {about}." if about else f"{section.title}."]
    return " ".join([*told, f"The baseline is {base}.", scope(of)])


def scope(tables: Sequence[TableFrames]) -> str:
    """Say of which models some tables are: their size, training, text and seeds."""
    plans = [table.plan for table in tables]
    texts = listed([*dict.fromkeys(_text(plan.text.source) for plan in plans)])
    seeds = tables[0].experiment.looks[-1]
    return (
        f"{_span([plan.baseline.parameters for plan in plans], plots.short)} parameters, trained "
        f"on {_span([plan.tokens_per_run for plan in plans], plots.short)} tokens of {texts}; "
        f"{seeds} {plural(seeds, 'seed')}."
    )


def methods(frames: Frames, shown: Sequence[Section], keys: Sequence[str]) -> str:
    """Return a paragraph in LaTeX: what was trained and compared, how, and what was not tested."""
    experiment, plans = frames.plan.experiment, [table.plan for table in frames.tables]
    train, base = experiment.train, plans[0].baseline
    size = ", ".join(f"{_span([p.size[k] for p in plans], str)} {k}" for k in plans[0].size)
    others = len(plans[0].variants) - 1
    ratios = [plan.tokens_per_run / plan.baseline.parameters for plan in plans]
    passes = [plan.tokens_per_run / plan.text.tokens["train"] for plan in plans]
    tuned = f"{listed([*experiment.tune])} tuned for each variant" if experiment.tune else ""
    tests = [section.note for section in shown if section.key in ("factors", "comparison")]
    tokenizer = entry_text(plans[0].text.source.tokenizer, options=False)
    made = frames.environment or {}
    machine = made.get("gpu") or made.get("processor")
    seeds = experiment.looks[-1]
    told = [
        f"We compare {others} {plural(others, 'variant')} with the baseline {base.label}, a "
        f"decoder of {_span([p.baseline.parameters for p in plans], plots.short)} parameters "
        f"({size}, context {experiment.model.context}); variants are "
        f"{listed([*dict.fromkeys(plan.matching for plan in plans)])}.",
        f"A run takes {_span([plan.steps for plan in plans], '{:,}'.format)} steps of "
        f"{train.batch} sequences, {_span([p.tokens_per_run for p in plans], plots.short)} tokens "
        f"({_span(ratios, '{:.2g}'.format)} a parameter, "
        f"{_span(passes, '{:.2g}'.format)} passes over the training text), of "
        f"{listed([*dict.fromkeys(_text(plan.text.source) for plan in plans)])}, with the "
        f"tokenizer {tokenizer} of {plans[0].text.vocab:,} tokens.",
        f"The optimizer is {entry_text(train.optimizer)}, the learning rate {train.lr:g} with the "
        f"schedule {entry_text(train.schedule)}; {tuned or 'nothing is tuned for each variant'}.",
        f"Each variant is trained from {seeds} {plural(seeds, 'seed')}. {' '.join(tests)}",
        computed(frames) + (f" The machine: {machine}." if machine else ""),
        f"Not tested: {listed(_untested(frames))}.",
    ]
    limits = [f"% {line}" for text in warnings(frames) for line in textwrap.wrap(text, 98)]
    cited = rf"Components are those of \cite{{{','.join(keys[1:])}}}; " if keys[1:] else ""
    written = [escaped(" ".join(told)), f"{cited}the comparison is by \\cite{{{keys[0]}}}."]
    return "\n".join(["% What limits the comparison:"] * bool(limits) + limits + written) + "\n"


def _untested(frames: Frames) -> list[str]:
    """Name what other experiments would have to show."""
    experiment, plans = frames.plan.experiment, [table.plan for table in frames.tables]
    measured = [one if isinstance(one, str) else one["name"] for one in experiment.measure]
    open_ = {
        "other sizes of the model": len({str(plan.size) for plan in plans}) == 1,
        "other texts": len({plan.text.identity for plan in plans}) == 1,
        "other lengths of training": not experiment.train.branches
        and len({plan.tokens_per_run for plan in plans}) == 1,
        "a learning rate for each variant": "lr" not in experiment.tune,
        "tasks": "cloze" not in measured,
        "a repeated baseline": any(table.bias.ends is None for table in frames.tables),
    }
    return [what for what, is_open in open_.items() if is_open] or ["other architectures"]


def _table(frames: Frames, section: Section) -> _Table:
    told = caption(frames, section)
    return _Table(_ascii(section.title), section.cells, told, section.short, section.note)


def _of_all(experiments: Sequence[Frames]) -> Iterator[_Table]:
    """Yield the comparison of several experiments: of all rows at once where they fit together."""
    try:
        joined = union(experiments)
    except ConfigError as error:
        parts = [
            (frames.plan.experiment.name, section)
            for frames in experiments
            for section in sections(frames)
            if section.key == "comparison"
        ]
        each = [_named(part, [name] * len(part.cells)) for name, part in parts]
        told = "Several experiments; each row is compared with the baseline of its own."
        note = f"Intervals hold at once over the rows of one experiment: {error}."
        cells = pd.concat(each, ignore_index=True).fillna("")
        yield _Table("comparison", cells, f"{told} {note}", 0, parts[0][1].note)
        return
    for section in (section for section in sections(joined) if section.key == "comparison"):
        table = joined.named(section.table or None)
        cells = _named(section, [*table.experiments.values()])
        told = f"{caption(joined.only(table), section)} {remarks(joined)[0]}"
        note = " ".join([section.note, *remarks(joined)])
        yield _Table(_ascii(section.title), cells, told, section.short + 1, note)


def _named(section: Section, experiments: Sequence[str]) -> pd.DataFrame:
    """Return a section's cells with the experiment of each row; n stands behind the verdict."""
    cells = section.cells.copy()
    cells.insert(1, "experiment", list(experiments))
    cells.insert(min(5, len(cells.columns) - 1), "n", cells.pop("n"))
    return cells


def _tables_of(frames: Frames, name: str) -> Sequence[TableFrames]:
    return [frames.named(name)] if name else frames.tables


def _text(source: Any) -> str:
    """Name a text: its file or data set, without the folders that lead there."""
    corpus = source.corpus
    where = "" if isinstance(corpus, str) else str(corpus.get("path") or "")
    return source.name or Path(where).name or entry_text(corpus, options=False)


def _span(values: Sequence[Value], form: Callable[[Value], str]) -> str:
    """Write the least and the most of some numbers; once, where they are written alike."""
    return " to ".join(dict.fromkeys((form(min(values)), form(max(values)))))  # type: ignore[type-var]


def _ascii(name: str) -> str:
    """Return a name for files and labels that every LaTeX takes."""
    return re.sub("[^a-z0-9-]+", "", slug(name, 120)).strip("-")


def _unique(names: Sequence[str]) -> list[str]:
    """Return a name for files and labels of each experiment, no two alike."""
    taken = [ALL]
    for name in map(_ascii, names):
        numbered = (f"{name}-{n}" for n in range(2, len(names) + 3))
        taken.append(next(one for one in (name, *numbered) if one not in taken))
    return taken[1:]


def _references(experiments: Sequence[Frames]) -> tuple[list[str], str]:
    """Return the keys of what is cited, this tool's first, and their BibTeX."""
    used = {"tool"}
    for plan in (frames.plan for frames in experiments):
        for table in plan.tables:
            for variant in table.variants:
                train = plan.experiment.train.with_changes(variant.train)
                source = table.text_of(variant).source
                used |= {
                    f"{slot}:{name}"
                    for part in (variant.model, train.model_dump(), source.model_dump())
                    for slot, entry in part.items()
                    for name in _components(entry)
                }
    text = resources.files("llama_ablate.report").joinpath("papers.bib").read_text("utf-8")
    cited = [
        entry
        for entry in text.split("\n\n")
        if (found := _KEYWORDS.search(entry)) and used & {*found[1].split(", ")}
    ]
    version = experiments[0].plan.version or __version__
    keys = [entry.partition("{")[2].partition(",")[0] for entry in cited]
    return keys, "\n\n".join(cited).replace("VERSION", version)


def _components(entry: Any) -> Iterator[str]:
    """Yield the names of components in an entry: one, a pattern's, or those of a list."""
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        for key in ("name", "pattern", "inner"):
            yield from _components(entry.get(key))
    elif isinstance(entry, list | tuple):
        for one in entry:
            yield from _components(one)
