"""Check the laws that `llama-ablate plan` also checks; add tests of its own formula below."""

from pathlib import Path

from llama_ablate.config import plugins
from llama_ablate.config.experiment import Model
from llama_ablate.design.variants import resolve
from llama_ablate.model import laws

MODEL = {"dim": 32, "layers": 2, "heads": 4, "context": 32, "position": "sinusoidal"}


def test_it_obeys_the_laws() -> None:
    """An error names the law that is broken."""
    plugins.load([Path(__file__).with_name("mine.py")])
    model = Model.model_validate({**MODEL, "SLOT": "mine"})
    laws.check(resolve(model), "SLOT")
