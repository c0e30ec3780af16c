"""The plug-ins of `experiments/plugins` together: in the docs, in one grid, in a run."""

import pytest

from llama_ablate.commands.cli import main
from llama_ablate.config import plugins
from llama_ablate.results import Store
from tests.conftest import LEARNS, PLUGINS

FILES = sorted(PLUGINS.glob("*.py"))
#: Every plug-in as a level of an axis.
AXES = """{design: one-at-a-time, axes: {
  attention: [mamba2, forgetting, kda], block: [deepnorm, hyper-connections, attention-residuals],
  parametrization: [completep, embedding-rate], norm: [rmsnorm-without-gain],
  train.optimizer: [normuon, sgd, soap, sam, sophia, schedule_free],
  train.losses: [multi_token]}}"""


@pytest.fixture(autouse=True)
def loaded(plugin):
    for file in FILES:
        plugin(file.stem)


@pytest.mark.usefixtures("in_process")
def test_one_grid_trains_each_in_a_run_that_names_its_file(experiment_file, tmp_path):
    file = experiment_file(AXES, train=LEARNS, seeds="1", measure="[perplexity]")
    options = [word for path in FILES for word in ("--plugin", str(path))]
    assert main(["run", str(file), "--results", str(tmp_path / "r"), *options]) == 0
    store = Store(tmp_path / "r" / "tiny")
    assert [record.outcome for record in store.records()] == ["ok"] * 17
    assert list(store.plan.settings.plugins) == [str(path) for path in FILES]
    assert len(plugins.loaded()) >= len(FILES)
