"""Standard tables, figures and the HTML page: functions over stored results, no torch.

The package is also the function `llama_ablate.report(folder)`, since both have the name.
"""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType


class _Report(ModuleType):
    """The package, which can be called once its modules have been imported under its name."""

    def __call__(self, folder: Path | str) -> Path:
        """Write the report of an experiment's results; return the path of its page."""
        page: Path = import_module("llama_ablate.api").report(folder)
        return page


sys.modules[__name__].__class__ = _Report
