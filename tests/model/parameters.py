"""What the parameters of a model are, by name."""

from llama_ablate.model.linear import parameters


def kinds(model):
    """Return what each parameter is."""
    return {name: kind for name, _, kind, _ in parameters(model)}


def decayed(model):
    """Return which parameters take weight decay."""
    return {name: decays for name, _, _, decays in parameters(model)}
