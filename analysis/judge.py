"""Judge candidate changes one after another against the best so far, under one error budget.

    python analysis/judge.py session.yaml --ledger ledger

`docs/loop.md` has a session file. A candidate is accepted if it is better than the best at each
gate, by the interval at the level that LORD++ grants: of all acceptances at most the stated share
is then expected to be false. An acceptance is false if the candidate does not help on the text that
was tested. The ledger is a file of JSON lines to which lines are only added, one a candidate; after
an interruption the same command continues, and repeats no finished run.

The code of a candidate runs with the rights of the user, and must be trusted.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

import llama_ablate as la
from llama_ablate.config.marked_yaml import load
from llama_ablate.errors import ConfigError

MAX_LEVEL = 0.025  # of a gate, one-sided
MAX_SEEDS = 1000  # of a gate
#: What each verdict of a comparison means for a candidate; all others are inconclusive.
VERDICTS = {
    "better": "accepted",
    "worse": "rejected",
    "equivalent": "rejected",
    "diverged": "rejected",
    "collapsed": "rejected",
}
#: Function that compares a candidate with the best at a gate, and returns the candidate's row of a
#: comparison whose intervals have a two-sided level.
Compare = Callable[[int, float], Mapping[str, Any]]


def weights(most: int) -> list[float]:
    """Compute the error shares of `most` successive tests, with a sum of 1.

    The shares fall as log(n) / (n exp(sqrt(log n))) (Javanmard & Montanari 2018, eq. 31).
    """
    falling = [
        math.log(max(n, 2)) / (n * math.exp(math.sqrt(math.log(n)))) for n in range(1, most + 1)
    ]
    total = sum(falling)
    return [term / total for term in falling]


def lord(
    test: int, accepted: Sequence[int], shares: Sequence[float], error: float, wealth: float
) -> float:
    """Compute the level of a test by LORD++, which bounds the false discovery rate by `error`.

    `accepted` holds the numbers of the accepted tests; each adds error for later tests, distributed
    by `shares`. `wealth`, below `error`, is the error available before the first acceptance. The
    theorem needs fresh runs of the baseline for each test (Ramdas, Yang, Wainwright & Jordan 2017,
    arXiv:1710.00499).
    """
    since = [test - at for at in accepted if at < test]
    earned = error * sum(shares[tests - 1] for tests in since)
    # The first acceptance adds only `error - wealth`: `wealth` was available before.
    first = shares[max(since) - 1] if since else 0.0
    return wealth * (shares[test - 1] - first) + earned


def merge(best: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Add changes to the best; a changed component drops earlier changes of its options."""
    kept = {key: best[key] for key in best if {key, key.partition(".")[0]}.isdisjoint(changes)}
    return {**kept, **changes}


@dataclass(frozen=True)
class Terms:
    """Terms of a session: the `judge` section of its file.

    Raises ConfigError for terms that cannot be tested.
    """

    #: Largest number of candidates, and number of seeds of each gate.
    candidates: int
    seeds: int = 8
    #: Share of false acceptances that is expected at most.
    error: float = 0.05
    #: Changes of `model` for a second gate; without them there is one gate.
    size: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 < self.seeds <= MAX_SEEDS or self.candidates < 1 or not 0 < self.error < 1:
            limits = f"1 candidate or more, 2 to {MAX_SEEDS} seeds, an error between 0 and 1"
            raise ConfigError(f"judge: needs {limits}")

    def level(self, test: int, accepted: Sequence[int]) -> float:
        """Compute the one-sided level of each gate of a test.

        The gates have different seeds, so that a change that helps at neither passes all of them
        with at most the product of their levels: each of two gates has the root.
        """
        granted = lord(test, accepted, weights(self.candidates), self.error, self.error / 2)
        return min(granted ** (0.5 if self.size else 1.0), MAX_LEVEL)

    def test(self, number: int, accepted: Sequence[int], compare: Compare) -> dict[str, Any]:
        """Test a candidate at each gate until one does not accept it; return the outcome."""
        level = self.level(number, accepted)
        for gate in (1, 2) if self.size else (1,):
            row = compare(gate, 2 * level)
            verdict = VERDICTS.get(row["verdict"], "inconclusive")
            if verdict != "accepted":
                break
        numbers = {key: float(row[key]) for key in ("difference", "low", "high")}
        outcome = {"verdict": verdict, "why": row["verdict"], "gate": gate, "level": level}
        return {**outcome, "n": int(row["n"]), **numbers}


class Ledger:
    """Ledger of a session: a file of JSON lines, the terms first, then a line a candidate."""

    def __init__(self, root: Path, stated: Mapping[str, Any]) -> None:
        """Open the ledger, or begin it. An incomplete last line is removed.

        Raises ConfigError if the ledger began with another experiment or other terms.
        """
        self.root, self._file = root, root / "ledger.jsonl"
        root.mkdir(parents=True, exist_ok=True)
        content = self._file.read_bytes() if self._file.exists() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if content != whole:
            sys.stderr.write(f"note: {self._file} ended in half a line, which is removed\n")
            os.truncate(self._file, len(whole))
        try:
            first, *self.lines = map(json.loads, whole.splitlines()) if whole else [{}]
        except ValueError as error:
            raise ConfigError(f"{self._file}: damaged, some line is not JSON ({error})") from None
        if not whole:
            self._write(stated)
        elif first != json.loads(json.dumps(stated)):
            raise ConfigError(f"'{root}' began with another experiment, or with other terms")

    @property
    def accepted(self) -> list[int]:
        """Numbers of the accepted candidates."""
        return [line["number"] for line in self.lines if line["verdict"] == "accepted"]

    @property
    def best(self) -> dict[str, Any]:
        """Changes of the best so far, from the baseline of the session."""
        best: dict[str, Any] = {}
        for number in self.accepted:
            best = merge(best, self.lines[number - 1]["changes"])
        return best

    @property
    def plugins(self) -> list[str]:
        """Files of code of the accepted candidates."""
        return [file for number in self.accepted for file in self.lines[number - 1]["plugins"]]

    def add(self, line: dict[str, Any]) -> None:
        """Add the line of a candidate."""
        self._write(line)
        self.lines.append(line)

    def table(self) -> pd.DataFrame:
        """Return a row for each candidate."""
        columns = ["number", "label", "verdict", "why", "gate", "level", "n"]
        return pd.DataFrame(self.lines, columns=[*columns, "difference", "low", "high"])

    def _write(self, line: Mapping[str, Any]) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
            file.flush()
            os.fsync(file.fileno())


def judge(file: Path, root: Path, workers: int | None = None, device: str = "auto") -> Ledger:
    """Judge the candidates of a session file that have no verdict yet; return the ledger.

    Raises ConfigError for a mistake in the file, which spends no error, and for a candidate that
    differs from the one that the ledger has in its place.
    """
    stated = dict(load(file).values)
    candidates = [_read(candidate) for candidate in stated.pop("candidates", [])]
    try:
        terms = Terms(**stated.pop("judge"))
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{file}: needs 'judge' with its candidates: {error}") from None
    ledger = Ledger(root, {"experiment": stated, "terms": asdict(terms)})
    for number, candidate in enumerate(candidates[: terms.candidates], 1):
        if number <= len(ledger.lines):
            known = ledger.lines[number - 1]
            if any(known[key] != candidate[key] for key in candidate):
                what = f"candidate {number} was '{known['label']}': add new ones at the end"
                raise ConfigError(f"{file}: {what}")
            continue
        compare = partial(
            _compare, stated, terms, ledger, candidate, workers=workers, device=device
        )
        outcome = terms.test(number, ledger.accepted, compare)
        ledger.add({"number": number, **candidate, **outcome})
    return ledger


def _read(candidate: Mapping[str, Any]) -> dict[str, Any]:
    """Return label, changes and plug-ins of a candidate."""
    changes = {key: candidate[key] for key in candidate if key not in ("label", "plugin")}
    label = candidate.get("label") or ", ".join(f"{key}={value}" for key, value in changes.items())
    plugins = [candidate["plugin"]] if "plugin" in candidate else []
    return {"label": str(label)[:80], "changes": changes, "plugins": plugins}


def _compare(
    stated: Mapping[str, Any],
    terms: Terms,
    ledger: Ledger,
    candidate: Mapping[str, Any],
    gate: int,
    level: float,
    **machine: Any,
) -> Mapping[str, Any]:
    """Train the best and a candidate on the seeds of a gate; return the candidate's row."""
    number = len(ledger.lines) + 1
    first = MAX_SEEDS * (2 * number + gate)
    changed = {"label": candidate["label"], **merge(ledger.best, candidate["changes"])}
    entries = [{"label": "best", **ledger.best}, changed]
    experiment = {
        "controls": {"aa": []},
        **stated,
        "name": f"{number:04d} gate {gate}",
        "model": {**stated.get("model", {}), **(terms.size if gate > 1 else {})},
        "variants": {
            **stated.get("variants", {}),
            "design": "list",
            "baseline": "best",
            "entries": entries,
        },
        "seeds": [*range(first, first + terms.seeds)],
    }
    code = [*ledger.plugins, *candidate["plugins"]]
    opened = la.run(experiment, results=ledger.root / "runs", plugins=code, **machine)
    rows = opened.comparison(level=level)
    row: Mapping[str, Any] = rows[rows["variant"] == candidate["label"]].iloc[0]
    return row


def main() -> None:
    """Judge the candidates of a session file, and print the ledger."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("session", type=Path, help="YAML: an experiment, 'judge' and 'candidates'")
    parser.add_argument("--ledger", type=Path, default=Path("ledger"), help="folder of the ledger")
    parser.add_argument("--workers", type=int, help="concurrent runs")
    parser.add_argument("--device", default="auto", help="cpu, cuda, mps or auto")
    options = parser.parse_args()
    try:
        ledger = judge(options.session, options.ledger, options.workers, options.device)
    except ConfigError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    except KeyboardInterrupt:
        parser.exit(130, f"{parser.prog}: interrupted; the same command goes on from here\n")
    print(ledger.table().to_string(index=False, float_format="{:.4g}".format, na_rep=""))
    best = ", ".join(f"{key}={value}" for key, value in ledger.best.items())
    print(f"best: the baseline{' with ' if best else ''}{best}")


if __name__ == "__main__":
    main()
