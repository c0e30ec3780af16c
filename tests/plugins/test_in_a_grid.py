"""The plug-ins of `experiments/plugins` together: in the docs, in one grid, in a run."""

import pytest

from llama_ablate.commands.cli import main
from llama_ablate.config import plugins
from llama_ablate.model import laws
from llama_ablate.results import Store
from llama_ablate.training import optimizer_laws
from llama_ablate.training.optimizers import OPTIMIZERS
from tests.conftest import LEARNS, LLAMA, PLUGINS, make_spec

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


#: Components and optimizers of plug-ins, with options that take another path.
MIXERS = ("kda", "forgetting", {"name": "forgetting", "window": 5, "sinks": True, "gate": "head"})
MIXERS += ("mamba2", {"name": "mamba2", "state": 6, "expand": 2, "groups": 2})
MIXERS += ({"name": "mamba2", "value_dim": 16, "conv": 0},)
BLOCKS = ("deepnorm", "attention-residuals", {"name": "hyper-connections", "kind": "mhc"})
BLOCKS += ({"name": "hyper-connections", "streams": 2, "kind": "static", "x0": True},)
OPTIMIZER_ENTRIES = ("sam", "sophia", "schedule_free", "soap", {"name": "sgd", "momentum": 0.0})
OPTIMIZER_ENTRIES += ({"name": "normuon", "momentum": 0.5, "beta2": 0.5, "ns_steps": 3},)


@pytest.mark.full
@pytest.mark.parametrize("separator", [None, 7])
@pytest.mark.parametrize("entry", [*MIXERS, *BLOCKS], ids=str)
def test_components_of_plug_ins_obey_the_laws(entry, separator):
    slot = "attention" if entry in MIXERS else "block"
    laws.check(make_spec(**LLAMA | {slot: entry}, separator=separator), slot)


@pytest.mark.parametrize("entry", OPTIMIZER_ENTRIES, ids=str)
def test_optimizers_of_plug_ins_obey_the_laws(entry):
    optimizer_laws.check(OPTIMIZERS.resolve(entry))


@pytest.mark.usefixtures("in_process")
def test_one_grid_trains_each_in_a_run_that_names_its_file(experiment_file, tmp_path):
    file = experiment_file(AXES, train=LEARNS, seeds="1", measure="[perplexity]")
    options = [word for path in FILES for word in ("--plugin", str(path))]
    assert main(["run", str(file), "--results", str(tmp_path / "r"), *options]) == 0
    store = Store(tmp_path / "r" / "tiny")
    assert [record.outcome for record in store.records()] == ["ok"] * 17
    assert list(store.plan.settings.plugins) == [str(path) for path in FILES]
    assert len(plugins.loaded()) >= len(FILES)
