"""Families of Hugging Face models: config.json and parameter names, in both directions.

A family's `model` turns a config.json into a `model` section, `config` a spec into a config.json.
Which specs a family can express is listed nowhere: a spec is written, read back, and compared.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from llama_ablate.config.spec import ModelSpec
from llama_ablate.errors import ConfigError
from llama_ablate.interop.canonical_spec import kv_heads_of, shared_heads
from llama_ablate.interop.stored_tensors import Entry, rename

Config = Mapping[str, Any]

_GATES = {"silu": "swiglu", "gelu": "geglu", "relu": "reglu"}
#: GPT-2's rates of dropout, and what we call them.
_PDROPS = {"embd_pdrop": "embedding", "attn_pdrop": "attention", "resid_pdrop": "sublayer"}
_ACTIVATIONS = {gated: activation for activation, gated in _GATES.items()}


class Family(Protocol):
    """One family's config.json and parameter names."""

    def model(self, config: Config) -> dict[str, Any]:
        """Return the `model` section that a config.json describes. Raises ConfigError."""
        ...

    def config(self, spec: ModelSpec) -> dict[str, Any]:
        """Return the config.json of a spec; what the family cannot express is left out."""
        ...

    def entries(self, ours: Iterable[str]) -> list[Entry]:
        """Return the stored tensors of our parameters, given our names."""
        ...


@dataclass(frozen=True)
class LlamaLike:
    """Llama and its relatives: RMSNorm, RoPE, gated feed-forward, pre-norm."""

    kind: str
    architecture: str
    qkv_bias: bool | None = None
    qk_norm: bool = False
    #: How a window is configured: not at all, by `sliding_window`, or by `sliding_window` where
    #: `use_sliding_window` is true.
    windows: Literal["", "always", "switched"] = ""

    def model(self, config: Config) -> dict[str, Any]:
        """Read sizes and options. Raises ConfigError for what our components cannot express."""
        heads = _need(config, "num_attention_heads")
        kv_heads = config.get("num_key_value_heads") or heads
        activation = config.get("hidden_act", "silu")
        if activation not in _GATES:
            _refuse("hidden_act", activation, _GATES)
        bias = bool(config.get("attention_bias"))
        if bias != bool(config.get("mlp_bias")):
            _refuse("attention_bias", f"{str(bias).lower()} and mlp_bias another", ["both alike"])
        options = {
            "qk_norm": self.qk_norm,
            "qkv_bias": self.qkv_bias,
            "window": self._window(config),
        }
        return {
            "dim": _need(config, "hidden_size"),
            "layers": _need(config, "num_hidden_layers"),
            "heads": heads,
            "head_dim": config.get("head_dim"),
            "context": config.get("max_position_embeddings", 2048),
            "vocab": _need(config, "vocab_size"),
            "bias": bias,
            "tie": config.get("tie_word_embeddings", False),
            "init_std": config.get("initializer_range", 0.02),
            "dropout": {"attention": config.get("attention_dropout", 0.0)},
            "norm": {"name": "rmsnorm", "eps": config.get("rms_norm_eps", 1e-6)},
            "position": _rope(config),
            "attention": shared_heads(heads, kv_heads, options),
            "feedforward": {
                "name": _GATES[activation],
                "width": _need(config, "intermediate_size"),
            },
            "block": "pre",
        }

    def _window(self, config: Config) -> int | None:
        kinds = set(config.get("layer_types") or [])
        if len(kinds) > 1:
            _refuse("layer_types", "of several kinds", ["one kind for all layers"])
        switched_off = self.windows == "switched" and not config.get("use_sliding_window")
        if not self.windows or switched_off or kinds == {"full_attention"}:
            return None
        if self.windows == "switched" and not kinds:
            # Windows begin at this layer; transformers' default is 28.
            first = config.get("max_window_layers", 28)
            if first >= _need(config, "num_hidden_layers"):
                return None
            if first > 0:
                _refuse("max_window_layers", first, ["0", "num_hidden_layers"])
        window: int | None = config.get("sliding_window", 4096)
        return window

    def config(self, spec: ModelSpec) -> dict[str, Any]:
        """Write what this family can express."""
        if self.kind == "llama" and spec.dim % spec.heads:  # transformers refuses it
            raise ConfigError(f"dim {spec.dim} with {spec.heads} heads, which do not divide it")
        layer = spec.layer(0)
        attention, rope = dict(layer.attention.options), dict(layer.position.options)
        config: dict[str, Any] = {
            "model_type": self.kind,
            "architectures": [self.architecture],
            "vocab_size": spec.vocab,
            "hidden_size": spec.dim,
            "intermediate_size": dict(layer.feedforward.options)["width"],
            "num_hidden_layers": spec.layers,
            "num_attention_heads": spec.heads,
            "num_key_value_heads": kv_heads_of(spec),
            "head_dim": spec.head_dim,
            "hidden_act": _ACTIVATIONS.get(layer.feedforward.name, "silu"),
            "max_position_embeddings": spec.context,
            "initializer_range": spec.init_std,
            "rms_norm_eps": dict(layer.norm.options).get("eps", 1e-6),
            "attention_dropout": spec.dropout.attention,
            "rope_theta": rope.get("theta", 10000.0),
            "tie_word_embeddings": spec.tie,
        }
        if rope.get("scaling") in ("linear", "llama3"):
            config["rope_scaling"] = _scaling(rope)
        if self.kind == "llama":
            config |= {"attention_bias": spec.bias, "mlp_bias": spec.bias}
        window = attention.get("window")
        if self.windows == "always" or (self.windows and window):
            config["sliding_window"] = window
        if self.windows == "switched" and window:
            config |= {"use_sliding_window": True, "max_window_layers": 0}
        return config

    def entries(self, ours: Iterable[str]) -> list[Entry]:
        """Return the names of transformers' LlamaForCausalLM."""
        return [Entry(rename(name, _LLAMA), (name,)) for name in ours]


@dataclass(frozen=True)
class GPT2:
    """GPT-2: LayerNorm with biases, learned positions, one joined projection, tied output."""

    architecture: str = "GPT2LMHeadModel"

    def model(self, config: Config) -> dict[str, Any]:
        """Read sizes. Raises ConfigError for GPT-2's rarer switches."""
        for key, value in {
            "activation_function": "gelu_new",
            "scale_attn_weights": True,
            "scale_attn_by_inverse_layer_idx": False,
            "add_cross_attention": False,
        }.items():
            if config.get(key, value) != value:
                _refuse(key, config[key], [str(value)])
        return {
            "dim": _need(config, "n_embd"),
            "layers": _need(config, "n_layer"),
            "heads": _need(config, "n_head"),
            "context": config.get("n_positions", 1024),
            "vocab": _need(config, "vocab_size"),
            "bias": True,
            "tie": config.get("tie_word_embeddings", True),
            "init_std": config.get("initializer_range", 0.02),
            "dropout": {of: config.get(key, 0.1) for key, of in _PDROPS.items()},
            "norm": {"name": "layernorm", "eps": config.get("layer_norm_epsilon", 1e-5)},
            "position": "learned",
            "attention": "mha",
            "feedforward": {
                "name": "gelu",
                "approximate": "tanh",
                "width": config.get("n_inner") or 4 * _need(config, "n_embd"),
            },
            "block": "pre",
        }

    def config(self, spec: ModelSpec) -> dict[str, Any]:
        """Write what GPT-2 can express."""
        return {
            "model_type": "gpt2",
            "architectures": [self.architecture],
            "vocab_size": spec.vocab,
            "n_positions": spec.context,
            "n_embd": spec.dim,
            "n_layer": spec.layers,
            "n_head": spec.heads,
            "n_inner": dict(spec.feedforward.at(0).options)["width"],
            "activation_function": "gelu_new",
            "layer_norm_epsilon": dict(spec.norm.at(0).options).get("eps", 1e-5),
            "initializer_range": spec.init_std,
            **{key: getattr(spec.dropout, of) for key, of in _PDROPS.items()},
            "tie_word_embeddings": spec.tie,
        }

    def entries(self, ours: Iterable[str]) -> list[Entry]:
        """Return the names of transformers' GPT2LMHeadModel; its matrices are transposed."""
        entries = []
        for name in ours:
            if ".attn.q." in name:
                joined = tuple(name.replace(".attn.q.", f".attn.{part}.") for part in "qkv")
                stored = rename(name.replace(".attn.q.", ".attn.c_attn."), _GPT2)
                entries.append(Entry(stored, joined, transposed=name.endswith(".weight")))
            elif ".attn.k." not in name and ".attn.v." not in name:
                matrix = name.startswith("blocks.") and name.endswith(".weight")
                entries.append(Entry(rename(name, _GPT2), (name,), transposed=matrix))
        return entries


_LLAMA = {
    r"^embedding\.": "model.embed_tokens.",
    r"^norm\.gain$": "model.norm.weight",
    r"^head\.": "lm_head.",
    r"^blocks\.": "model.layers.",
    r"\.attn\.(q|k|v)\.": r".self_attn.\1_proj.",
    r"\.attn\.out\.": ".self_attn.o_proj.",
    r"\.attn\.(q|k)_norm\.gain$": r".self_attn.\1_norm.weight",
    r"\.ffn\.(gate|up|down)\.": r".mlp.\1_proj.",
    r"\.attn_norm\.gain$": ".input_layernorm.weight",
    r"\.ffn_norm\.gain$": ".post_attention_layernorm.weight",
}
_GPT2 = {
    r"^embedding\.": "transformer.wte.",
    r"^position\.table\.": "transformer.wpe.",
    r"^norm\.": "transformer.ln_f.",
    r"^head\.": "lm_head.",
    r"^blocks\.": "transformer.h.",
    r"\.attn\.out\.": ".attn.c_proj.",
    r"\.ffn\.up\.": ".mlp.c_fc.",
    r"\.ffn\.down\.": ".mlp.c_proj.",
    r"\.attn_norm\.": ".ln_1.",
    r"\.ffn_norm\.": ".ln_2.",
    r"\.gain$": ".weight",
}

FAMILIES: dict[str, Family] = {
    "llama": LlamaLike("llama", "LlamaForCausalLM"),
    "mistral": LlamaLike("mistral", "MistralForCausalLM", windows="always"),
    "qwen2": LlamaLike("qwen2", "Qwen2ForCausalLM", qkv_bias=True, windows="switched"),
    "qwen3": LlamaLike("qwen3", "Qwen3ForCausalLM", qk_norm=True, windows="switched"),
    "gpt2": GPT2(),
}


def _rope(config: Config) -> dict[str, Any]:
    """Read the rotary embedding in any of the three layouts that transformers has used."""
    nested: dict[str, Any] = {}
    for key in ("rope_scaling", "rope_parameters"):
        nested |= config.get(key) or {}
    plain = {"rope_theta": 10000.0, "partial_rotary_factor": 1.0, **config, **nested}
    if plain["partial_rotary_factor"] != 1:  # these families ignore the key
        _refuse("partial_rotary_factor", plain["partial_rotary_factor"], ["1"])
    rope: dict[str, Any] = {"name": "rope", "theta": float(plain["rope_theta"])}
    kind = nested.get("rope_type", nested.get("type", "default"))
    if kind == "default":
        return rope
    if kind == "linear":
        return rope | {"scaling": "linear", "factor": float(_need(nested, "factor"))}
    if kind != "llama3":
        _refuse("rope_type", kind, ["default", "linear", "llama3"])
    return rope | {
        "scaling": "llama3",
        "factor": float(_need(nested, "factor")),
        "low_freq": float(_need(nested, "low_freq_factor")),
        "high_freq": float(_need(nested, "high_freq_factor")),
        "original_context": _need(nested, "original_max_position_embeddings"),
    }


def _scaling(rope: Mapping[str, Any]) -> dict[str, Any]:
    written = {"rope_type": rope["scaling"], "factor": rope["factor"]}
    if rope["scaling"] == "llama3":
        written |= {
            "low_freq_factor": rope["low_freq"],
            "high_freq_factor": rope["high_freq"],
            "original_max_position_embeddings": rope["original_context"],
        }
    return written


def _need(config: Config, key: str) -> Any:
    if key not in config:
        raise ConfigError(f"the key '{key}' is missing")
    return config[key]


def _refuse(key: str, value: object, allowed: Iterable[str]) -> None:
    raise ConfigError(f"{key} is {value}; supported: {', '.join(allowed)}")
