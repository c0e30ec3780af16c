"""Small checkpoints as other projects write them, and what those projects compute with them.

python -m tests.interop.checkpoints checkpoint

writes one in Meta's layout with a tokenizer in Llama 3's format, for results/reference/systems.md.
"""

import base64
import json
import struct
import sys
from pathlib import Path

import torch

from llama_ablate.model.decoder import new_model

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 500.0,
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
GPT2_SIZES = {
    "vocab_size": 61,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "initializer_range": 0.3,
}
#: name: class in transformers, configuration
FAMILIES = {
    "llama-1": ("Llama", SIZES | {"num_key_value_heads": 4, "rms_norm_eps": 1e-6}),
    "llama-2": ("Llama", SIZES | {"rms_norm_eps": 1e-5}),
    "llama-3.1": ("Llama", SIZES | {"rope_parameters": LLAMA3_ROPE}),
    "llama-3.2, tied": (
        "Llama",
        SIZES | {"rope_parameters": LLAMA3_ROPE, "tie_word_embeddings": True},
    ),
    "llama, linear scaling": (
        "Llama",
        SIZES | {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}},
    ),
    "llama, yarn": ("Llama", SIZES | {"rope_parameters": YARN_ROPE}),
    "llama, biases": ("Llama", SIZES | {"attention_bias": True, "mlp_bias": True}),
    "llama, wide heads, mqa": ("Llama", SIZES | {"head_dim": 16, "num_key_value_heads": 1}),
    "mistral, window": ("Mistral", SIZES | {"sliding_window": 7}),
    "qwen2": ("Qwen2", SIZES),
    "qwen3": ("Qwen3", SIZES | {"head_dim": 16}),
    "qwen3, yarn without rounding": (
        "Qwen3",
        SIZES
        | {
            "head_dim": 16,
            "rope_parameters": YARN_ROPE | {"beta_fast": 4.0, "beta_slow": 0.5, "truncate": False},
        },
    ),
    "gpt2": ("GPT2", GPT2_SIZES),
    "gpt2, untied": ("GPT2", GPT2_SIZES | {"tie_word_embeddings": False, "n_inner": 40}),
}


def transformers_model(name, seed=0):
    """Return a randomly initialised model of transformers, biases and gains too."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    kind, sizes = FAMILIES[name]
    config = getattr(transformers, f"{kind}Config")(**sizes)
    head = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
    torch.manual_seed(seed)
    model = getattr(transformers, head)(config).eval()
    for parameter in model.parameters():
        if parameter.dim() == 1:  # norms and biases start at ones and zeros: all alike
            parameter.data.uniform_(0.5, 1.5)
    return model


def tokens(vocab=61, batch=2, length=20):
    return torch.randint(0, vocab, (batch, length), generator=torch.Generator().manual_seed(3))


#: Entries of Llama 3's own list of ranks, enough for the examples of its walk-through.
LLAMA3_RANKS = {
    "the": 1820,
    " answer": 4320,
    " to": 311,
    " the": 279,
    " ultimate": 17139,
    " question": 3488,
    " of": 315,
    " life": 2324,
    " universe": 15861,
    " and": 323,
    " everything": 4395,
    " is": 374,
    "hello": 15339,
    " world": 1917,
    "42": 2983,
    "user": 882,
    "assistant": 78191,
    "system": 9125,
    "\n\n": 271,
}


def llama3_ranks():
    """Return a list of 128,000 ranks in tiktoken's format, of which those above are Llama 3's own.

    Single bytes stand where they do in the original. The beginnings of words, which merging passes
    through, have ranks that the original gives to something else; the rest is filler.
    """
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    order = printable + [b for b in range(256) if b not in printable]
    ranks = {bytes([b]): rank for rank, b in enumerate(order)}
    ranks |= {text.encode(): rank for text, rank in LLAMA3_RANKS.items()}
    free = iter(sorted(set(range(128_000)) - set(ranks.values())))
    starts = {word.encode()[:n] for word in LLAMA3_RANKS for n in range(2, len(word))}
    for start in sorted(starts - ranks.keys(), key=lambda s: (len(s), s)):
        ranks[start] = next(free)
    ranks |= {b"\xff\xfe" + rank.to_bytes(4, "big"): rank for rank in free}
    by_rank = sorted(ranks.items(), key=lambda item: item[1])
    return b"".join(base64.b64encode(t) + b" %d\n" % r for t, r in by_rank)


def write_llama3(folder):
    """Write a checkpoint in the layout of Llama 3, tokenizer and all, with random weights."""
    params = META_PARAMS | {"vocab_size": 128_256}
    write_meta(folder, meta_tensors(vocab=128_256), params=params)
    (folder / "tokenizer.model").write_bytes(llama3_ranks())
    return folder


META_PARAMS = {
    "dim": 32,
    "n_layers": 2,
    "n_heads": 4,
    "n_kv_heads": 2,
    "vocab_size": 61,
    "multiple_of": 16,
    "ffn_dim_multiplier": 1.3,
    "norm_eps": 1e-05,
    "rope_theta": 500000.0,
}
META_WIDTH = 16 * -(-int(1.3 * int(8 * 32 / 3)) // 16)


def meta_tensors(seed=0, vocab=61):
    """Return weights under Meta's names, in the order of its own file."""
    generator = torch.Generator().manual_seed(seed)

    def drawn(*shape):
        return torch.randn(shape, generator=generator) * 0.3

    state = {"tok_embeddings.weight": drawn(vocab, 32)}
    for i in range(2):
        at = f"layers.{i}."
        state |= {
            at + "attention.wq.weight": drawn(32, 32),
            at + "attention.wk.weight": drawn(16, 32),
            at + "attention.wv.weight": drawn(16, 32),
            at + "attention.wo.weight": drawn(32, 32),
            at + "feed_forward.w1.weight": drawn(META_WIDTH, 32),
            at + "feed_forward.w3.weight": drawn(META_WIDTH, 32),
            at + "feed_forward.w2.weight": drawn(32, META_WIDTH),
            at + "attention_norm.weight": 1 + drawn(32),
            at + "ffn_norm.weight": 1 + drawn(32),
        }
    return state | {"norm.weight": 1 + drawn(32), "output.weight": drawn(vocab, 32)}


def write_meta(folder, state, shards=1, embedding_axis=0, params=META_PARAMS):
    """Write a checkpoint cut as Meta's model-parallel layers cut it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "params.json").write_text(json.dumps(params), "utf-8")
    for rank in range(shards):
        part = {}
        for name, tensor in state.items():
            axis = 1 if name.endswith(("wo.weight", "w2.weight")) else 0
            axis = embedding_axis if name.startswith("tok_emb") else axis
            whole = tensor.dim() == 1
            part[name] = tensor if whole else tensor.chunk(shards, axis)[rank].clone()
        torch.save(part, folder / f"consolidated.{rank:02d}.pth")
    return folder


@torch.no_grad()
def meta_logits(state, ids, theta=500000.0, eps=1e-5):
    """Llama as Meta's own code writes it: complex rotation of neighbours, repeated keys."""

    def norm(x, gain):
        return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * gain

    length = ids.shape[1]
    freqs = 1.0 / theta ** (torch.arange(0, 8, 2).float() / 8)
    angles = torch.outer(torch.arange(length).float(), freqs)
    turn = torch.polar(torch.ones_like(angles), angles)[None, :, None]

    def rotate(x):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turn).flatten(3)

    h = state["tok_embeddings.weight"][ids]
    for i in range(2):
        w = {k.split(".", 2)[2]: v for k, v in state.items() if k.startswith(f"layers.{i}.")}
        x = norm(h, w["attention_norm.weight"])
        q = rotate((x @ w["attention.wq.weight"].T).view(*ids.shape, 4, 8)).transpose(1, 2)
        k = rotate((x @ w["attention.wk.weight"].T).view(*ids.shape, 2, 8)).transpose(1, 2)
        v = (x @ w["attention.wv.weight"].T).view(*ids.shape, 2, 8).transpose(1, 2)
        k, v = (t.repeat_interleave(2, dim=1) for t in (k, v))
        scores = q @ k.transpose(2, 3) / 8**0.5
        scores = scores + torch.full((length, length), float("-inf")).triu(1)
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
        h = h + mixed @ w["attention.wo.weight"].T
        x = norm(h, w["ffn_norm.weight"])
        gate, up = x @ w["feed_forward.w1.weight"].T, x @ w["feed_forward.w3.weight"].T
        h = h + (gate * torch.sigmoid(gate) * up) @ w["feed_forward.w2.weight"].T
    return norm(h, state["norm.weight"]) @ state["output.weight"].T


def write_llama2c(file, state, *, shared=False):
    """Write Meta's tensors as llama2.c's legacy export does: by kind, layer upon layer."""
    vocab = len(state["output.weight"])
    header = struct.pack("<7i", 32, META_WIDTH, 2, 4, 2, vocab if shared else -vocab, 64)
    order = [state["tok_embeddings.weight"]]
    for kind in (
        "attention_norm",
        "attention.wq",
        "attention.wk",
        "attention.wv",
        "attention.wo",
        "ffn_norm",
        "feed_forward.w1",
        "feed_forward.w2",
        "feed_forward.w3",
    ):
        order += [state[f"layers.{i}.{kind}.weight"] for i in range(2)]
    order += [state["norm.weight"], torch.zeros(64, 4), torch.zeros(64, 4)]
    order += [] if shared else [state["output.weight"]]
    file.write_bytes(header + b"".join(t.float().numpy().tobytes() for t in order))
    return file


def llama2c_pieces(model):
    """Return a SentencePiece model as llama2.c's tokenizer.py does: each piece's text and score."""
    out = struct.pack("<i", 27)
    for i in range(model.get_piece_size()):
        text = model.id_to_piece(i)
        text = {"<s>": "\n<s>\n", "</s>": "\n</s>\n"}.get(text, text.replace("\u2581", " "))
        out += struct.pack("<fi", model.get_score(i), len(text.encode())) + text.encode()
    return out


def ours(spec, seed=0):
    return new_model(spec, seed)


if __name__ == "__main__":
    write_llama3(Path(sys.argv[1]))
