"""Judge candidate changes one after another against the best so far, under one error budget.

    python analysis/judge.py session.yaml --ledger ledger

`docs/loop.md` has a session file. A candidate is accepted if it is better at each gate, by the
interval of the comparison at the level of the gate. LORD++ grants the levels, so that of all
acceptances at most the stated share is expected to be false. The ledger is a file of JSON lines to
which lines are only added; the same command goes on where an interrupted one stopped.

The code of a candidate runs with the rights of the user, and must be trusted.
"""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd

import llama_ablate as la
from llama_ablate.config import experiment, plugins
from llama_ablate.config.marked_yaml import load
from llama_ablate.design.plan import make
from llama_ablate.errors import ConfigError

TABLE_ERROR = 0.05  # two-sided error of a comparison table, of which a gate spends a share
MAX_LEVEL = TABLE_ERROR / 2  # of one gate, one-sided
SEEDS_APART = 1000  # distance between the first seeds of two gates
#: What each verdict of a comparison means for a candidate; all others are inconclusive.
VERDICTS = {
    "better": "accepted",
    "worse": "rejected",
    "equivalent": "rejected",
    "diverged": "rejected",
    "collapsed": "rejected",
}


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

    #: Seeds of each gate, and the largest number of candidates.
    seeds: int
    candidates: int
    #: Share of false acceptances that is expected at most.
    error: float = 0.05
    #: Changes of `model` for a second gate; without them there is one gate.
    size: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 < self.seeds <= SEEDS_APART or self.candidates < 1 or not 0 < self.error < 1:
            limits = f"2 to {SEEDS_APART} seeds, 1 candidate or more, an error between 0 and 1"
            raise ConfigError(f"judge: needs {limits}")

    @property
    def gates(self) -> tuple[int, ...]:
        """Numbers of the gates."""
        return (1, 2) if self.size else (1,)

    def level(self, test: int, accepted: Sequence[int]) -> float:
        """Compute the one-sided level of each gate of a candidate.

        The gates have different seeds, so that a change that helps at neither passes all of them
        with at most the product of their levels: each of two has the root.
        """
        granted = lord(test, accepted, weights(self.candidates), self.error, self.error / 2)
        return min(granted ** (1 / len(self.gates)), MAX_LEVEL)


class Ledger:
    """Ledger of a session: a file of JSON lines, each of which is an event."""

    def __init__(self, root: Path, stated: Mapping[str, Any]) -> None:
        """Open the ledger, or begin it.

        Raises ConfigError if the ledger began with another experiment or other terms.
        """
        self.root = root
        self._file = root / "ledger.jsonl"
        self.begun: dict[int, dict[str, Any]] = {}
        self.ended: dict[int, dict[str, Any]] = {}
        root.mkdir(parents=True, exist_ok=True)
        lines = self._file.read_text("utf-8").splitlines() if self._file.exists() else []
        events = [json.loads(line) for line in lines]
        if not events:
            self._append({"opened": dict(stated)})
        elif events[0]["opened"] != json.loads(json.dumps(stated)):
            raise ConfigError(f"'{root}' began with another experiment, or with other terms")
        for event in events[1:]:
            (self.ended if "verdict" in event else self.begun)[event["number"]] = event

    @property
    def accepted(self) -> list[int]:
        """Numbers of the accepted candidates."""
        return [n for n, event in self.ended.items() if event["verdict"] == "accepted"]

    @property
    def best(self) -> dict[str, Any]:
        """Changes of the best so far, from the baseline of the session, without other draws."""
        best: dict[str, Any] = {}
        for number in self.accepted:
            best = merge(best, self.begun[number]["changes"])
        return {key: value for key, value in best.items() if key != "draws"}

    def begin(self, event: dict[str, Any]) -> None:
        """Record that a candidate has begun, with its level."""
        self.begun[event["number"]] = event
        self._append(event)

    def end(self, event: dict[str, Any]) -> None:
        """Record the verdict on a candidate."""
        self.ended[event["number"]] = event
        self._append(event)

    def table(self) -> pd.DataFrame:
        """Return a row for each candidate."""
        rows = [{**event, **self.ended.get(n, {})} for n, event in self.begun.items()]
        columns = ["number", "label", "level", "verdict", "why", "n", "difference", "low", "high"]
        return pd.DataFrame(rows, columns=columns)

    def _append(self, event: Mapping[str, Any]) -> None:
        with self._file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(event) + "\n")


def judge(file: Path, root: Path, workers: int | None = None, device: str = "auto") -> Ledger:
    """Judge the candidates of a session file that have no verdict yet; return the ledger.

    Raises ConfigError for a mistake in the file, and for a candidate that differs from the one that
    the ledger has in its place. A mistake in a new candidate spends no error.
    """
    stated = load(file).values  # noqa: PD011  no frame's
    candidates = stated.pop("candidates", [])
    try:
        terms = Terms(**stated.pop("judge"))
    except (KeyError, TypeError) as error:
        raise ConfigError(f"{file}: needs 'judge' with seeds and candidates: {error}") from None
    ledger = Ledger(root, {"experiment": stated, "terms": asdict(terms)})
    code: list[str] = []  # plug-ins of the accepted candidates
    for number, candidate in enumerate(candidates[: terms.candidates], 1):
        begun = {"number": number, **_read(candidate)}
        known = ledger.begun.get(number, begun)
        if any(known[key] != begun[key] for key in begun):
            what = f"candidate {number} was '{known['label']}': add new ones at the end"
            raise ConfigError(f"{file}: {what}")
        files = [*code, *begun["plugins"]]
        if number not in ledger.ended:
            level = known.get("level", terms.level(number, ledger.accepted))
            gates = [_gate(stated, terms, ledger.best, begun, gate, level) for gate in terms.gates]
            if number not in ledger.begun:
                plugins.load([Path(name) for name in files])
                for gate in gates:
                    make(experiment.from_mapping(gate))  # raises for a mistake in the candidate
                ledger.begin({**begun, "level": level})
            for gate in gates:
                opened = la.run(
                    gate, results=root / "runs", workers=workers, device=device, plugins=files
                )
                found = _find(opened.comparison(), begun["label"])
                if found["verdict"] != "accepted":
                    break
            ledger.end({"number": number, "experiment": gate["name"], **found})
        if number in ledger.accepted:
            code = files
    return ledger


def _read(candidate: Mapping[str, Any]) -> dict[str, Any]:
    """Return label, changes and plug-ins of a candidate."""
    changes = {key: candidate[key] for key in candidate if key not in ("label", "plugin")}
    label = candidate.get("label") or ", ".join(f"{key}={value}" for key, value in changes.items())
    return {
        "label": str(label)[:80],
        "changes": changes,
        "plugins": [candidate["plugin"]] if "plugin" in candidate else [],
    }


def _gate(
    stated: Mapping[str, Any],
    terms: Terms,
    best: Mapping[str, Any],
    begun: Mapping[str, Any],
    gate: int,
    level: float,
) -> dict[str, Any]:
    """Return the experiment of a gate, which compares a candidate with the best on fresh seeds."""
    arms = [{"label": "best", **best}, {"label": begun["label"], **merge(best, begun["changes"])}]
    return {
        **stated,
        "name": f"{begun['number']:04d} gate {gate}",
        "model": {**stated.get("model", {}), **(terms.size if gate > 1 else {})},
        "variants": {
            **stated.get("variants", {}),
            "design": "list",
            "baseline": "best",
            "entries": arms,
        },
        "seeds": {
            "looks": [terms.seeds],
            "spend": [2 * level / TABLE_ERROR],
            "first": SEEDS_APART * (2 * begun["number"] + gate),
        },
        "controls": {"aa": []},
    }


def _find(rows: pd.DataFrame, label: str) -> dict[str, Any]:
    """Return the verdict on a candidate with its interval, from the rows of a gate."""
    (row,) = rows[rows["variant"] == label].to_dict("records")
    measured = {key: float(row[key]) for key in ("difference", "low", "high", "alpha")}
    verdict = VERDICTS.get(row["verdict"], "inconclusive")
    return {"verdict": verdict, "why": row["verdict"], "n": int(row["n"]), **measured}


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
    print(ledger.table().to_string(index=False, float_format="{:.4g}".format, na_rep=""))
    best = ", ".join(f"{key}={value}" for key, value in ledger.best.items())
    print(f"best: the baseline{' with ' if best else ''}{best}")


if __name__ == "__main__":
    main()
