"""The notebook of the documentation: small, with its outputs, and running as it is written."""

from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
NOTEBOOK = DOCS / "from-experiment-to-plot.ipynb"


def outputs(notebook):
    return [out for cell in notebook.cells for out in cell.get("outputs", ())]


@pytest.mark.full  # nbformat takes a second to import, and the notebook trains
def test_the_notebook_runs_as_it_is_written_and_shows_what_it_stores(tmp_path):
    """To store new outputs: jupyter execute --inplace docs/from-experiment-to-plot.ipynb"""
    import nbformat
    from nbclient import NotebookClient

    stored = nbformat.read(NOTEBOOK, 4)
    nbformat.validate(stored)
    fresh = nbformat.read(NOTEBOOK, 4)
    for cell in fresh.cells:
        cell.pop("outputs", None)
    NotebookClient(fresh, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    kinds = [
        [[sorted(out.get("data", {})) for out in outputs(notebook) if "data" in out]]
        for notebook in (stored, fresh)
    ]
    assert kinds[0] == kinds[1]
    assert sum("image/png" in out.get("data", {}) for out in outputs(fresh)) == 2
    assert not any(tmp_path.iterdir())
