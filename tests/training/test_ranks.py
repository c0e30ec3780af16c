"""One run on several processes: the same losses as on one, and a lost process costs no run."""

import os
import socket
import subprocess
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.distributed.run import parse_args

from llama_ablate.commands.cli import main
from llama_ablate.launch import processes, worker
from llama_ablate.results import Results, Store
from llama_ablate.results.record import ComputeSettings
from tests import plans
from tests.commands import PYTHON, command, ended, family, kill
from tests.conftest import PLUGINS
from tests.in_process import run_in_process
from tests.reliability.harness import there

TRAIN = "{steps: 60, batch: 8, accumulate: 2, lr: 1e-3, precision: float32, kernel: math}"
#: With dropout, of which each process has the rows that it trains on.
MODEL = "{dim: 16, layers: 1, heads: 2, context: 16, dropout: 0.2}"
#: A checkpoint after every step, to go on from long before the run is over.
OFTEN = ("--checkpoint-every", "0.001")


def curve(root):
    (run,) = Store(root).folders()
    return [
        (row["step"], row["train_loss_nats"], row["grad_norm"], row["validation_loss_nats"])
        for row in Results.open(root).curve(run)
    ]


@pytest.fixture
def two(experiment_file, tmp_path):
    """The file of a run on two processes, which has been done under "two"."""
    file = experiment_file(
        "{}", model=MODEL, train=TRAIN, seeds="1", measure="[perplexity]", parallel="{data: 2}"
    )
    assert run_in_process(file, tmp_path / "two") == 0
    return file


class Torchrun:
    """Stands in for torchrun: its ranks are forks of this process, which has imported torch."""

    returncode = 0

    def __init__(self, words, env, **_streams):
        said = parse_args(words[words.index("torch.distributed.run") + 1 :])
        assert (said.standalone, said.max_restarts, said.module) == (True, 0, True)
        assert said.training_script == worker.__name__
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        of_all = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": said.nproc_per_node}
        of_all |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        ranks = map(str, range(int(said.nproc_per_node)))
        self._left = [
            self._forked(said, env | of_all | {"RANK": rank, "LOCAL_RANK": rank}) for rank in ranks
        ]

    @staticmethod
    def _forked(said, environment):
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            os.environ.update(environment)
            warnings.simplefilter("ignore")  # as in a process that is not pytest's
            code = worker.main(said.training_script_args)
        finally:
            os._exit(code)

    def poll(self, _seconds=0):
        while self._left:
            self.returncode |= os.waitstatus_to_exitcode(os.waitpid(self._left.pop(), 0)[1])
        return self.returncode

    terminate = wait = poll


MOE = (
    "{{dim: 16, layers: 1, heads: 2, context: 16, feedforward: {{name: moe, experts: 4, "
    "width: 8, scoring: sigmoid, capacity: 1.0, balance: {}}}}}"
)
MODELS = [MODEL, *map(MOE.format, ("bias, balance_rate: 0.05", "loss, balance_weight: 0.5"))]


@pytest.mark.parametrize("model", MODELS, ids=["dropout", "balance by bias", "balance by loss"])
def test_two_processes_give_the_curve_of_one(experiment_file, tmp_path, monkeypatch, plugin, model):
    """Capacity is by sequence; bias and loss of the balance are of the load of all ranks."""
    popen = SimpleNamespace(Popen=Torchrun, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(processes, "subprocess", popen)
    plugin("multi_token")
    keys = {"seeds": "1", "measure": "[perplexity]", "model": model}
    train = TRAIN.replace("60", "12").replace("}", ", losses: [z_loss, multi_token]}")
    curves = []
    for count in (1, 2):
        file = experiment_file("{}", train=train, parallel=f"{{data: {count}}}", **keys)
        root = tmp_path / str(count)
        assert run_in_process(file, root, "--plugin", str(PLUGINS / "multi_token.py")) == 0
        (record,) = Store(root / "tiny").records()
        assert record.compute["ranks"] == count
        curves.append(Results.open(root / "tiny").curve(record.id))
    assert len(curves[0]) == 12
    for ours, theirs in zip(*curves, strict=True):
        assert set(ours) == set(theirs) >= {"loss_z_loss_nats", "loss_multi_token_nats"}
        del ours["train_s"], theirs["train_s"]
        assert ours == pytest.approx(theirs, rel=1e-6, nan_ok=True)


@pytest.mark.row("R31", "kill: one of two processes of a run")
@pytest.mark.full
def test_a_run_that_loses_one_of_two_processes_goes_on_to_the_same_end(two, tmp_path, launch):
    shared = curve(tmp_path / "two" / "tiny")
    launcher = launch(command(two, tmp_path / "lost", *OFTEN))
    working = tmp_path / "lost" / "tiny" / "working"
    while not there(working, "*/checkpoint-*"):
        assert launcher.poll() is None, launcher.stderr.read()
        time.sleep(0.01)
    kill(next(process for process in family(launcher) if _rank(process) == "1"))
    error = launcher.communicate()[1]
    assert launcher.returncode == 0, error
    for row, other in zip(curve(tmp_path / "lost" / "tiny"), shared, strict=True):
        assert row == pytest.approx(other, rel=0, abs=0, nan_ok=True)
    assert not list(working.iterdir())


@pytest.mark.row("R31", "kill: launcher and worker of a run of two processes")
@pytest.mark.full
def test_no_rank_outlives_the_worker_that_started_it(experiment_file, tmp_path, launch):
    file = experiment_file(
        "{}",
        train=TRAIN.replace("60", "100_000"),
        seeds="1",
        measure="[perplexity]",
        parallel="{data: 2}",
    )
    launcher = launch(command(file, tmp_path, *OFTEN))
    while not there(tmp_path, "tiny/working/*/checkpoint-*"):
        assert launcher.poll() is None
        time.sleep(0.01)
    ranks = [process for process in family(launcher) if _rank(process) is not None]
    assert len(ranks) == 2
    worker = ranks[0].parent().parent()
    launcher.kill()
    worker.kill()
    ended(ranks, 60)


@pytest.mark.timeout(200)
def test_a_rank_that_waits_for_the_others_leaves_when_torchrun_is_killed(tmp_path, launch):
    """As one of two, of which the other never comes: torch itself would wait for five minutes."""
    store = Store(tmp_path)
    store.prepare()
    plan = plans.of_runs("0a").model_copy(update={"compute": ComputeSettings("cpu")})
    store.create(plan, "")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(120)
        second = {
            "TORCHELASTIC_RUN_ID": "x",
            "RANK": "1",
            "LOCAL_RANK": "1",
            "WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(silent.getsockname()[1]),
        }
        worker = f"'{PYTHON}' -m llama_ablate.launch.worker '{tmp_path}' 0a"
        torchrun = launch(["sh", "-c", f"{worker} & wait"], env=os.environ | second)
        with silent.accept()[0]:
            rank = family(torchrun)
            assert rank
            torchrun.kill()
            ended(rank)


def _rank(process):
    try:
        said = Path(f"/proc/{process.pid}/environ").read_bytes()
    except OSError:
        return None
    return dict(pair.split("=", 1) for pair in said.decode().split("\0") if "=" in pair).get("RANK")


def test_rows_that_cannot_be_shared_evenly_are_refused(experiment_file, capsys):
    file = experiment_file("{}", train=TRAIN, parallel="{data: 3}")
    assert main(["plan", str(file)]) == 2
    said = capsys.readouterr().err
    assert "parallel.data: 3 processes cannot share 4 rows of a batch evenly" in said
