"""Texts of a plan: tokens, mixture sources, and overlaps of held-out with training text."""

import contextlib
from dataclasses import asdict

from llama_ablate.config.experiment import Data, Experiment
from llama_ablate.data import overlap, tokens
from llama_ablate.data.batches import Batches, DocumentStreams, TextMixture
from llama_ablate.data.corpus import CORPORA
from llama_ablate.data.tokenizer import TOKENIZERS
from llama_ablate.design import checks
from llama_ablate.design.variants import Change
from llama_ablate.errors import ConfigError, Where, under
from llama_ablate.results.plan_document import (
    PlanDocument,
    PlannedOverlap,
    PlannedText,
    PlannedVariant,
)


def plan_text(experiment: Experiment, data: Data, where: Where) -> PlannedText:
    """Tokenize the text of a `data` section at a path of the file, with its sources.

    Raises ConfigError for a text that cannot be read, or is too short for the experiment.
    """
    with under(where, ("data",)):
        prepared, sources, overlaps, left_out = _prepare(data)
    checks.check_size(experiment, prepared, where)
    return PlannedText(
        fingerprint=prepared.fingerprint,
        corpus=prepared.corpus,
        vocab=prepared.vocab,
        tokens=prepared.counts,
        bytes=prepared.bytes,
        documents=prepared.document_counts,
        lost=prepared.lost or "",
        overlaps={
            name: PlannedOverlap(**asdict(found))
            for name, found in overlaps.items()
            if found.documents or found.tokens or found.parts
        },
        left_out=left_out,
        source=data,
        where=where,
        separator=prepared.separator,
        opened={**sources, "corpus": prepared},
    )


def plan_own_text(
    experiment: Experiment, of_table: PlannedText, known: dict[str, PlannedText], change: Change
) -> PlannedText | None:
    """Tokenize a table's text with another tokenizer; return None if the tokens are equal.

    `change` is a variant's change of the tokenizer, and `known` caches the texts by `data` section.
    """
    data = of_table.source.model_copy(update={"tokenizer": change.value})
    with under(change.where, ("data", "tokenizer")):
        TOKENIZERS.resolve(change.value)
        key = data.model_dump_json()
        if key not in known:
            known[key] = plan_text(experiment, data, ("data",))
    return None if known[key].fingerprint == of_table.fingerprint else known[key]


def _prepare(
    data: Data,
) -> tuple[tokens.Tokens, dict[str, tokens.Tokens], dict[str, overlap.Overlap], int]:
    """Prepare the tokens of a text.

    Returns its tokens, those of its sources, the overlaps of its held-out text by name, and the
    number of held-out documents that were left out for them.
    """
    corpus = CORPORA.resolve(data.corpus, ("data", "corpus"))
    tokenizer = TOKENIZERS.resolve(data.tokenizer, ("data", "tokenizer"))
    prepared = tokens.prepare(corpus, tokenizer)
    sources = sources_of(data, prepared)
    overlaps = overlap.find_overlaps(prepared, sources)
    if data.overlap != "drop" or not any(found.tokens for found in overlaps.values()):
        return prepared, sources, overlaps, 0
    stands = overlap.find_repeated(prepared, sources)
    checks.check_droppable(prepared, stands)
    left_out = overlap.hashes_of(prepared, stands)
    prepared = tokens.prepare(corpus, tokenizer, like=prepared, left_out=left_out)
    sources["corpus"] = prepared
    dropped = sum(int(documents.sum()) for documents in stands.values())
    return prepared, sources, overlap.find_overlaps(prepared, sources), dropped


def sources_of(data: Data, own: tokens.Tokens) -> dict[str, tokens.Tokens]:
    """Return the tokens of each mixture source by name, tokenized like the main corpus.

    `own` are the tokens of the main corpus.
    """
    by_name = {"corpus": own}
    for name, entry in data.sources.items():
        with under(("data", "sources", name), None):
            corpus = CORPORA.resolve(entry)
            by_name[name] = tokens.prepare(corpus, TOKENIZERS.resolve(data.tokenizer), like=own)
    return by_name


def open_tokens(text: PlannedText) -> tokens.Tokens:
    """Open the tokens of a planned text; prepare damaged or missing tokens again.

    Raises ConfigError if the corpus has changed since the plan was made.
    """
    with contextlib.suppress(tokens.DamagedError):
        return tokens.load(tokens.cache_folder() / "tokens" / text.fingerprint)
    prepared, *_ = _prepare(text.source)
    if prepared.fingerprint != text.fingerprint:
        raise ConfigError(
            f"the corpus has changed since these runs were planned: its fingerprint is "
            f"{'; '.join([prepared.fingerprint, *prepared.notes])}; theirs {text.fingerprint}"
        )
    return prepared


def open_batches(
    plan: PlanDocument, text: PlannedText, variant: PlannedVariant, own: tokens.Tokens
) -> Batches:
    """Return the function that draws a variant's training batches.

    Raises ConfigError if a source of the variant's mixture has changed since the plan was made.
    """
    data = text.source.with_changes(variant.data)
    if data.order == "documents":
        return DocumentStreams(own, plan.experiment.model.context).batch
    if not variant.mixture:
        return own.batch
    known_sources = sources_of(text.source, own)
    for source in variant.mixture:
        if known_sources[source.name].fingerprint != source.fingerprint:
            what = f"the source '{source.name}' has changed since these runs were planned"
            raise ConfigError(what)
    return TextMixture([(known_sources[s.name], s.share, s.tokens) for s in variant.mixture]).batch
