"""Write the generated parts of the documentation again, from registries and reference results.

    python docs/generate.py

A test fails while a page holds anything else.
"""

import importlib.util
import json
from pathlib import Path
from types import ModuleType

import yaml

from llama_ablate.commands import summaries
from llama_ablate.commands.catalogue import markdown
from llama_ablate.evidence.intervals import wilson
from llama_ablate.report import claimed, tables, tested
from llama_ablate.results import Store

ROOT = Path(__file__).parents[1]
REFERENCE = ROOT / "results" / "reference"


def pages() -> dict[Path, str]:
    """Return every page that has generated parts, with those parts as they are now."""
    readme, systems = ROOT / "README.md", ROOT / "docs" / "systems.md"
    claims = ROOT / "docs" / "claims.md"
    parts = {
        readme: {"components": markdown(), "summary": _summary()},
        systems: {"compared": _compared(), "benches": _benches()},
        claims: _claims(),
        ROOT / "docs" / "reliability.md": {"torture": _torture()},
    }
    return {page: _filled(page.read_text("utf-8"), found) for page, found in parts.items()}


def _filled(text: str, parts: dict[str, str]) -> str:
    for name, content in parts.items():
        begin, end = f"<!-- {name}: begin -->\n", f"<!-- {name}: end -->\n"
        before, rest = text.split(begin)
        text = before + begin + content + end + rest.split(end)[1]
    return text


def _summary() -> str:
    spec, about = summaries.of_preset("llama3-8b")
    values = summaries.summarize("llama3-8b", spec, batch=16)
    shown = summaries.text(values, about)
    return f"```text\n$ llama-ablate summary llama3-8b --batch 16\n{shown}\n```\n"


def _compared() -> str:
    script = _script(ROOT / "analysis" / "said_and_measured.py")
    said = yaml.safe_load((ROOT / "docs" / "said.yaml").read_text("utf-8"))
    lines = []
    for name in said:
        store = Store(REFERENCE / "systems" / name)
        if store.plan_file.is_file():
            lines += [f"**{name}**: {store.plan['question']}", ""]
            lines += [tables.markdown(script.table(said[name], store)).rstrip(), ""]
    return "\n".join(lines)


_DOCUMENTS = {
    "000": "Llama 2 by hand",
    "001": "From Transformer to GPT",
    "002": "LLaMA 1 to 3",
    "003": "Llama 3 from scratch",
    "004": "LLM Foundry architecture guide",
}


def _claims() -> dict[str, str]:
    """Return the verdict on every claim, how many have which, and the experiments behind them."""
    stated = yaml.safe_load((ROOT / "experiments/claims/ledger.yaml").read_text("utf-8"))
    folder = REFERENCE / "claims"
    found = claimed.findings(folder)
    ledger = claimed.ledger(stated, found)
    lines = []
    for document, title in _DOCUMENTS.items():
        of = ledger[ledger["id"].str.startswith(document)]
        lines += [f"### {document}: {title}", ""]
        lines += [claimed.markdown(of, "../results/reference/claims"), ""]
    counts = claimed.counted(ledger)
    total = sum(counts.values())
    decided = total - counts.get("undecided", 0) - counts.get("no verdict", 0)
    said = ", ".join(f"{n} {word}" for word, n in sorted(counts.items()))
    headline = f"Of {total} empirical claims {decided} are decided: {said}.\n"
    return {"counts": headline, "ledger": "\n".join(lines), "experiments": _experiments(folder)}


def _experiments(folder: Path) -> str:
    lines = ["| experiment | question | controls | report |", "|---|---|---|---|"]
    for place in sorted(folder.iterdir()):
        link = f"[report](../results/reference/claims/{place.name}/report"
        inquiry = place / "inquiry.json"
        if inquiry.is_file():
            values = json.loads(inquiry.read_text("utf-8"))
            lines.append(
                f"| {values['name']} | {values['question']} | in the check itself | {link}.md) |"
            )
        elif (place / "plan.json").is_file():
            store = Store(place)
            hold = [tested.believed(table)[0] for table in store.tables]
            said = f"hold in {sum(hold)} of {len(hold)}" if len(hold) > 1 else "hold"
            lines.append(
                f"| {store.plan['experiment']['name']} | {store.plan['question']} | "
                f"{said if any(hold) else 'fail'} | {link}/report.md) |"
            )
    return "\n".join(lines) + "\n"


def _benches() -> str:
    lines = []
    for file in sorted((REFERENCE / "bench").glob("*.json")):
        values = json.loads(file.read_text("utf-8"))
        setup, where = values["setup"], values["environment"]
        lines += [
            f"`llama-ablate bench {values['bench']}` on {setup['device']}, "
            f"{setup['threads']} thread, {setup['dtype']}, torch {where['packages']['torch']}",
            "",
            "| claim | source said | measured |",
            "|---|---|---|",
            *(f"| {s['claim']} | {s['said']} | {s['measured']} |" for s in values["said"]),
            "",
        ]
    return "\n".join(lines)


def _torture() -> str:
    """Return what `make torture` found last, with the bound that each count gives."""
    file = REFERENCE / "torture.jsonl"
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    rows.sort(key=lambda row: (int(row["row"][1:]), row["test"]))
    lines = [
        "| row | what was tried | trials | failures | chance of one, 95% |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        high = wilson(row["failures"], row["trials"])[1]
        bound = 1 - 0.05 ** (1 / row["trials"]) if not row["failures"] else high
        link = f"[{row['row']}](../{row['test'].partition('::')[0]})"
        lines.append(
            f"| {link} | {row['what']} | {row['trials']:,} | {row['failures']} | "
            f"< {100 * bound:.2g}% |"
        )
    took = sum({row["test"]: row["seconds"] for row in rows}.values())
    return (
        "\n".join(lines)
        + f"\n\nTogether {took / 60:.0f} minutes of tests, two at a time, on two cores shared with "
        "others.\n"
    )


def _script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    for page, text in pages().items():
        page.write_text(text, "utf-8")
