"""What each command does: options in, an Answer out. Heavy imports wait inside the functions."""

from llama_ablate.commands.experiments import (
    compare,
    components,
    measure,
    plan,
    report,
    show,
    status,
)
from llama_ablate.commands.models import attention, bench, export, generate, rope, summary
from llama_ablate.commands.pack import pack
from llama_ablate.commands.running import run

__all__ = [
    "attention",
    "bench",
    "compare",
    "components",
    "export",
    "generate",
    "measure",
    "pack",
    "plan",
    "report",
    "rope",
    "run",
    "show",
    "status",
    "summary",
]
