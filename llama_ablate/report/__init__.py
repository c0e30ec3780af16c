"""Tables, figures and HTML page of a report, computed from stored results without torch.

The package is also callable as the function `llama_ablate.report(folder)`, whose name it shares.
"""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType


class _Report(ModuleType):
    """Callable module type, so that `llama_ablate.report` is both package and function."""

    def __call__(self, folder: Path | str) -> Path:
        """Write the report of an experiment's results; return the path of its page."""
        page: Path = import_module("llama_ablate.api").report(folder)
        return page


sys.modules[__name__].__class__ = _Report
