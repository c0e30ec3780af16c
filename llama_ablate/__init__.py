"""Architecture ablations of Llama-style decoder-only language models.

The public surface, imported on first use so that `import llama_ablate` is quick:
`run` (an experiment), `open` (its results as data frames), `report`, `concat` (join results of
several experiments), `compare` (runs of another trainer), `load` (an experiment file), `plan` (its
variants and runs), `new_model` (a model with initial weights) and `build` (without), `Store`
(results on disk), and the registries `NORMS`, `POSITIONS`, `ATTENTIONS`, `FEEDFORWARDS`, `BLOCKS`,
`CORPORA`, `TOKENIZERS`, `METRICS`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from llama_ablate.api import compare as compare
    from llama_ablate.api import concat as concat
    from llama_ablate.api import open as open  # noqa: A004  it is read as `la.open`
    from llama_ablate.api import report as report
    from llama_ablate.api import run as run

__version__ = "0.2.0"

_PUBLIC = {
    "open": ("llama_ablate.api", "open"),
    "run": ("llama_ablate.api", "run"),
    "report": ("llama_ablate.api", "report"),
    "concat": ("llama_ablate.api", "concat"),
    "compare": ("llama_ablate.api", "compare"),
    "load": ("llama_ablate.config.experiment", "load"),
    "plan": ("llama_ablate.design.plan", "make"),
    "build": ("llama_ablate.model.decoder", "build"),
    "new_model": ("llama_ablate.model.decoder", "new_model"),
    "Store": ("llama_ablate.results", "Store"),
    "ConfigError": ("llama_ablate.errors", "ConfigError"),
    "NORMS": ("llama_ablate.model.norms", "NORMS"),
    "POSITIONS": ("llama_ablate.model.positions", "POSITIONS"),
    "ATTENTIONS": ("llama_ablate.model.mixers.attention", "ATTENTIONS"),
    "FEEDFORWARDS": ("llama_ablate.model.feedforward", "FEEDFORWARDS"),
    "BLOCKS": ("llama_ablate.model.blocks", "BLOCKS"),
    "CORPORA": ("llama_ablate.data.corpus", "CORPORA"),
    "TOKENIZERS": ("llama_ablate.data.tokenizer", "TOKENIZERS"),
    "METRICS": ("llama_ablate.measure", "METRICS"),
}
__all__ = ["__version__", *_PUBLIC]  # noqa: PLE0604  the keys are strings


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'llama_ablate' has no attribute '{name}'")
    module, attribute = _PUBLIC[name]
    return getattr(import_module(module), attribute)
