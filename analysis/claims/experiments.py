"""What trained experiments and audit files found of the claims, from a folder of results."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from analysis.claims import findings
from analysis.claims.ledger import HERE, Evidence
from llama_ablate.config.experiment import Hypothesis
from llama_ablate.config.validation import Keys
from llama_ablate.errors import ConfigError
from llama_ablate.evidence import simultaneous, verdict, written
from llama_ablate.files.slugs import slug
from llama_ablate.findings import contrasts, controls, hypotheses
from llama_ablate.findings.frames import Frames, TableFrames
from llama_ablate.findings.hypotheses import HypothesisRow
from llama_ablate.findings.tasks import differences, samples, split_of
from llama_ablate.results import snapshot
from llama_ablate.results.plan_document import PlannedTable

_CONTRARY = {"supported": "refuted", "refuted": "supported"}
_NOT = "not "
_OF_NUMBERS = {"better": "lower", "worse": "higher"}


class Source(Keys):
    """What sources say of a hypothesis, and the claims that it tests."""

    variant: str
    #: Their ids; one that is the contrary of the hypothesis has "not " before it.
    claims: list[str] = Field(default_factory=list)
    source: str = ""
    said: str = ""
    #: Who puts the number on it: `ours` where the source gives none.
    bound: Literal["", "ours"] = ""


class FactorSource(Keys):
    """What sources say of a factor of a factorial experiment: that it changes the loss little.

    No hypothesis of the file, so it was not stated before the runs, and the statement says so.
    """

    factor: str
    #: Within how many nats its effect must lie.
    within: float = Field(gt=0)
    claims: list[str]
    source: str
    said: str
    bound: Literal["", "ours"] = ""


def experiments(folder: Path) -> dict[str, Frames]:
    """Return the results of every experiment in a folder, by its folder's name."""
    return {results.root.name: Frames.of(results) for results in snapshot.experiments(folder)}


def evidence(
    trained: Mapping[str, Frames],
    audits: Mapping[str, Mapping[str, Any]],
    sources: Mapping[str, Sequence[Mapping[str, Any]]],
) -> list[Evidence]:
    """Return what every hypothesis and every check found.

    `sources` says by experiment what its hypotheses test, as hypotheses.yaml does. Raises
    ConfigError where an experiment has other hypotheses.
    """
    found: list[Evidence] = []
    for name, frames in trained.items():
        of_hypotheses, of_factors = checked(sources.get(name, ()))
        found += _of_experiment(name, frames, of_hypotheses)
        found += _of_factors(name, frames, of_factors)
    for name, audit in audit_files().items():
        found += _of_audit(name, audit, audits[name]) if name in audits else []
    return found


def checked(
    entries: Sequence[Mapping[str, Any]],
) -> tuple[list[Source], list[FactorSource]]:
    """Return an experiment's entries of hypotheses.yaml: on its hypotheses, and on its factors."""
    factors = [FactorSource.check(dict(entry)) for entry in entries if "factor" in entry]
    return [Source.check(dict(entry)) for entry in entries if "factor" not in entry], factors


def audit_files() -> dict[str, findings.Audit]:
    """Return every audit file, by the name that its folder of results has."""
    audits = [findings.load(file)[0] for file in sorted((HERE / "audits").glob("*.yaml"))]
    return {slug(audit.name): audit for audit in audits}


def _of_experiment(name: str, frames: Frames, sources: Sequence[Source]) -> Iterator[Evidence]:
    """Yield what each hypothesis of an experiment found, and its contrary where a claim is that."""
    experiment = frames.plan.experiment
    check_variants(name, [entry.variant for entry in experiment.hypotheses], sources)
    tested = hypotheses.results(frames)
    for row, source, lengths in zip(tested, sources, by_length(frames), strict=True):
        where = f" ({row.table})" if row.table else ""
        for denied in (False, True):
            claims = [id_ for id_ in source.claims if id_.startswith(_NOT) is denied]
            if not claims:
                continue
            words = {key: _of_claim(one.result, denied=denied) for key, one in lengths.items()}
            end = _of_claim(row.result, denied=denied)
            yield Evidence(
                experiment=name,
                statement=("it is not so that " if denied else "") + row.hypothesis + where,
                measured=row.of_difference(),
                finding=end,
                claims=tuple(id_.removeprefix(_NOT) for id_ in claims),
                why=row.why,
                ours=source.bound == "ours",
                bias=row.bias,
                by_length=_lengths(lengths, words, end),
            )


def _of_factors(name: str, frames: Frames, sources: Sequence[FactorSource]) -> Iterator[Evidence]:
    """Yield whether the effects of factors are as small as sources say of them."""
    effects = {row.factor: row for row in contrasts.factors(frames.table)}
    for source in sources:
        row = effects[source.factor]
        low, high = row.low, row.high
        outside = low > source.within or high < -source.within
        inside = -source.within < low and high < source.within
        seen = not inside and (low > 0 or high < 0)
        failing = controls.failing(frames.table.controls, seen_to_differ=seen)
        result = "supported" if inside else "refuted" if outside else "undecided"
        measured = written.interval(row.difference, low, high)
        yield Evidence(
            experiment=name,
            statement=(
                f"{row.effect} changes the loss by at most {source.within:g} nats (a factor's mean "
                "effect and a bound that were read off after the runs)"
            ),
            measured=f"{measured} nats",
            finding="no verdict" if failing else result,
            claims=tuple(source.claims),
            why=failing,
            ours=source.bound == "ours",
            bias="not bounded" if frames.table.bias.ends is None and not failing else "",
        )


def _of_claim(result: str, *, denied: bool) -> str:
    return _CONTRARY.get(result, result) if denied else result


def _of_audit(name: str, audit: findings.Audit, measured: Mapping[str, Any]) -> Iterator[Evidence]:
    """Yield what was measured of an audit file's findings as it states them now."""
    by_statement = {row["claim"]: row for row in measured["findings"]}
    for finding in audit.findings:
        if row := by_statement.get(finding.statement):
            row = findings.judged(finding, row, measured["tables"])
            yield Evidence(
                experiment=name,
                statement=finding.statement,
                measured=findings.written(row),
                finding=row["finding"],
                claims=tuple(finding.claims),
                why=row.get("why", ""),
                ours=finding.bound == "ours",
                at_scale=finding.at_scale,
            )


def check_variants(experiment: str, variants: Sequence[str], sources: Sequence[Source]) -> None:
    """Raise ConfigError where the hypotheses of an experiment are not those that sources name."""
    named = [source.variant for source in sources]
    if named != list(variants):
        raise ConfigError(
            f"hypotheses.yaml: {experiment} has hypotheses on {', '.join(variants) or 'nothing'}; "
            f"the file names {', '.join(named) or 'none'}"
        )


def by_length(frames: Frames) -> list[dict[int, HypothesisRow]]:
    """Return each hypothesis' test results at the branches of its runs, by training tokens.

    A branch is the run cooled down early, so each is the same comparison after fewer tokens. The
    hypotheses of one length are a family of their own: their intervals hold at once. The controls
    are judged at that length too, and where one fails that a result needs there is no verdict.
    Empty for a hypothesis
    on anything but the reported loss, and for runs without branches.
    """
    experiment = frames.plan.experiment
    stated = experiment.hypotheses
    results: list[dict[int, HypothesisRow]] = [{} for _ in stated]
    for tokens in sorted({t for table in frames.tables for t in table.branches()}):
        shorter = {
            i: short
            for i, entry in enumerate(stated)
            if (short := _at_length(entry, frames, tokens)) is not None
        }
        if not shorter:
            continue
        checks = {table.plan.name: _controls_at(table, tokens) for table in frames.tables}
        for i, row in zip(shorter, _tested(frames, list(shorter.values())), strict=True):
            tables_of = {part.table or frames.table.plan.name for part in stated[i].parts}
            small = stated[i].direction == "equivalent" and row.tested == "supported"
            seen = not small and (row.low > 0 or row.high < 0)
            failing = [controls.failing(checks[name], seen_to_differ=seen) for name in tables_of]
            results[i][tokens] = replace(row, result="no verdict" if any(failing) else row.tested)
    return results


def _tested(frames: Frames, stated: Sequence[Hypothesis]) -> list[HypothesisRow]:
    """Return the test results of other hypotheses than the experiment's own."""
    other = frames.plan.experiment.model_copy(update={"hypotheses": list(stated)})
    plan = frames.plan.model_copy(update={"experiment": other})
    return hypotheses.results(replace(frames, plan=plan))


def _controls_at(table: TableFrames, tokens: int) -> dict[controls.Kind, controls.Check]:
    """Return whether a table's positive control was seen after fewer tokens."""
    loss = table.branches().get(tokens)
    harmed = [variant.label for variant in table.plan.variants if variant.role == "positive"]
    if loss is None or not harmed:
        return {}
    base, own = (samples(table, name, loss) for name in (table.plan.baseline.label, harmed[0]))
    interval = simultaneous({"": list(differences(own, base, relative=False).values())})[""]
    row = next(row for row in table.comparison if row.label == harmed[0])
    word = verdict(interval, table.margin)
    then = replace(
        row, difference=interval.mean, low=interval.low, high=interval.high, verdict=word
    )
    return {"positive": controls.seen(then, table.margin)}


def _at_length(entry: Hypothesis, frames: Frames, tokens: int) -> Hypothesis | None:
    """Return a hypothesis on a loss as one on the loss after fewer tokens."""
    if not (split := split_of(frames.named(entry.table), entry.measure)):
        return None
    names = [frames.named(name).branches(split) for name in {part.table for part in entry.parts}]
    if any(tokens not in one for one in names):
        return None
    negated, word = entry.direction.startswith("not "), entry.direction.removeprefix("not ")
    direction = ("not " if negated else "") + _OF_NUMBERS.get(word, word)
    return entry.model_copy(update={"measure": names[0][tokens], "direction": direction})


def _lengths(lengths: Mapping[int, HypothesisRow], words: Mapping[int, str], end: str) -> str:
    """Write what a hypothesis gave at shorter lengths, and up to which it gave the contrary."""
    listed = "; ".join(
        f"{tokens / 1e6:.1f}M tokens {row.of_difference()} ({words[tokens]})"
        for tokens, row in lengths.items()
    )
    contrary = [tokens for tokens, word in words.items() if word == _CONTRARY.get(end)]
    return listed + (f". It turned after {max(contrary) / 1e6:.1f}M tokens" if contrary else "")


def scale_of(frames: Frames) -> str:
    """Write at what scale an experiment was measured: parameters, tokens, text, seeds, machine.

    Seeds are those of the arm that has most.
    """
    plans = [table.plan for table in frames.tables]
    sizes = sorted({plan.baseline.non_embedding for plan in plans})
    lengths = sorted({plan.tokens_per_run for plan in plans})
    texts = ", ".join(dict.fromkeys(plan.text.source.name or _corpus(plan) for plan in plans))
    seeds = max(len(by_seed) for table in frames.tables for by_seed in table.losses.values())
    return (
        f"{_span(sizes)} parameters, {_span(lengths)} tokens of {texts}, {seeds} seeds, "
        f"{machine(frames.environment)}"
    )


def _corpus(table: PlannedTable) -> str:
    corpus = table.text.source.corpus
    return corpus if isinstance(corpus, str) else str(corpus["name"])


def _span(numbers: Sequence[int]) -> str:
    """Write the ends of a sorted list in millions."""
    return " to ".join(f"{n / 1e6:.2g}M" for n in dict.fromkeys((numbers[0], numbers[-1])))


def machine(environment: Mapping[str, Any] | None) -> str:
    """Write what computed: the GPU where there was one, else the processor."""
    if not environment:
        return "not run"
    return str(environment.get("gpu") or environment["processor"])
