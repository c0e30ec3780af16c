"""Export of a tokenizer to files from which transformers' AutoTokenizer builds an equal tokenizer.

The exported tokenizer encodes a text like `Tokenizer.prompt`: the token that begins a text is
prepended, nothing is appended, and names of special tokens in the text are encoded as text (with
`split_special_tokens=False` the names are parsed).
"""

import json
from typing import Any

from llama_ablate.data.tokenizer import Tokenizer

Files = dict[str, dict[str, Any]]


def special_ids(tokenizer: Tokenizer | None) -> dict[str, int | None]:
    """Return the special token ids for a config.json.

    A missing id is an explicit null, since a family may have another default. The end-of-text id is
    the id of the document separator, even if the separator is a byte or a character.
    """
    kinds = {"bos_token_id": "bos", "eos_token_id": "separator", "pad_token_id": "pad"}
    return {key: getattr(tokenizer, kind, None) for key, kind in kinds.items()}


def generation_config(tokenizer: Tokenizer | None) -> dict[str, Any]:
    """Return the content of generation_config.json, with the ids that stop generation."""
    stops = sorted(tokenizer.stops) if tokenizer else []
    return special_ids(tokenizer) | {"eos_token_id": stops or None}


def tokenizer_files(tokenizer: Tokenizer, family: str, context: int) -> tuple[Files, list[str]]:
    """Build tokenizer.json and tokenizer_config.json, and notes on limitations of the files."""
    import tokenizers

    model = tokenizer.expressed()
    ids = special_ids(tokenizer)
    names = {k.removesuffix("_id"): model.id_to_token(i) for k, i in ids.items() if i is not None}
    before = [names["bos_token"]] if "bos_token" in names else []
    model.post_processor = tokenizers.processors.TemplateProcessing(
        single=[*before, "$A"],
        pair=[*before, "$A", *before, "$B"],
        special_tokens=[(name, tokenizer.bos) for name in before],
    )
    config = {
        # A family's own class would rebuild parts of the tokenizer, against tokenizer.json.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": context,
        "padding_side": "left",
        "split_special_tokens": True,
        **names,
    }
    notes = []
    if family == "qwen2":
        notes.append(
            "transformers' AutoTokenizer splits texts for qwen2 by rules of Qwen2's own, whatever "
            "the files say, so they become other ids; PreTrainedTokenizerFast follows the files"
        )
    if ids["bos_token_id"] is ids["eos_token_id"] is None:
        notes.append(
            "no token of this tokenizer begins or ends a text: lm-evaluation-harness' model hf "
            "needs prefix_token_id"
        )
    return {"tokenizer.json": json.loads(model.to_str()), "tokenizer_config.json": config}, notes
