"""Table of reliability tests and their failures, for results/reference/reliability.md."""

from collections import Counter, defaultdict

from llama_ablate.evidence.rates import share
from tests import tally


def table() -> str:
    """Return Markdown tables of reliability tests, and of the tested versions.

    The last column but one bounds the probability of a failure per trial, at 95% confidence.
    """
    lines = [
        "| row | what was tried | trials | failures | chance of one, 95% | version |",
        "|---|---|---|---|---|---|",
    ]
    found, took, versions = tally.rows(), 0.0, Counter[tuple[str, str, str]]()
    cases = defaultdict(list)
    for line in found:
        cases[line["row"], line["what"], line["test"].partition("[")[0]].append(line)
        took += line["seconds"]
        versions[line["date"], line["commit"], line["code"]] += 1
    for (row, what, test), same in cases.items():
        trials, failures = (sum(line[key] for line in same) for key in ("trials", "failures"))
        high = share(failures, trials)[1] if failures else 1 - 0.05 ** (1 / trials)
        commits = ", ".join(sorted({f"`{line['commit'][:7]}`" for line in same}))
        lines.append(
            f"| [{row}](../../{test.partition('::')[0]}) | {what} | {trials:,} | {failures} | "
            f"< {100 * high:.2g}% | {commits} |"
        )
    lines += ["", "| version | date | `llama_ablate/` (git's hash of its content) | results |"]
    lines += ["|---|---|---|---|"]
    lines += [
        f"| `{commit[:7]}` | {date} | `{code[:12]}` | {count} |"
        for (date, commit, code), count in sorted(versions.items())
    ]
    together = f"Together {took / 60:.0f} minutes of tests, several at a time, on two shared cores."
    return "\n".join([*lines, "", together, ""])
