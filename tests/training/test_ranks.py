"""One run on several processes: the same losses as on one, and a lost process costs no run."""

import os
import socket
import subprocess
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch.distributed.run import parse_args

from llama_ablate.commands.cli import main
from llama_ablate.launch import worker
from llama_ablate.model.decoder import Decoder, init_weights
from llama_ablate.results import Results, Store
from llama_ablate.results.record import ComputeSettings
from llama_ablate.training import shards
from llama_ablate.training.losses import Objective
from tests import plans
from tests.commands import PYTHON, command, ended, family, kill
from tests.in_process import run_in_process
from tests.reliability.harness import in_child, there

TRAIN = "{steps: 60, batch: 8, accumulate: 2, lr: 1e-3, precision: float32, kernel: math}"
#: With dropout, of which each process has the rows that it trains on.
MODEL = "{dim: 16, layers: 1, heads: 2, context: 16, dropout: 0.2}"
#: A checkpoint after every step, to go on from long before the run is over.
OFTEN = ("--checkpoint-every", "0.001")


PER_RUN = "[perplexity, calibration, loss_by_position, length, activations, gradients]"


def weights(root):
    """Return the norm of each weight that a run has kept."""
    (file,) = root.glob("tiny/runs/*/weights.safetensors")
    return {name: value.norm().item() for name, value in load_file(file).items()}


def curve(root):
    (folder,) = Store(root).runs.folders().values()
    return [
        (row["step"], row["train_loss_nats"], row["grad_norm"], row["validation_loss_nats"])
        for row in Results.open(root).curve(folder.name.rpartition("--")[2])
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

    def poll(self):
        while self._left:
            self.returncode |= os.waitstatus_to_exitcode(os.waitpid(self._left.pop(), 0)[1])
        return self.returncode

    terminate = wait = poll


def test_two_processes_give_the_curve_of_one(experiment_file, tmp_path, monkeypatch, request):
    """With torchrun itself in the full tier."""
    popen = SimpleNamespace(Popen=Torchrun, DEVNULL=subprocess.DEVNULL)
    monkeypatch.setattr(worker, "subprocess", popen)
    two = request.getfixturevalue("two")
    one = experiment_file("{}", model=MODEL, train=TRAIN, seeds="1", measure="[perplexity]")
    assert one == two  # the same file, written anew: what "two" holds is done
    assert run_in_process(one, tmp_path / "one") == 0
    alone, shared = curve(tmp_path / "one" / "tiny"), curve(tmp_path / "two" / "tiny")
    assert len(alone) == 60
    for ours, theirs in zip(shared, alone, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-6, nan_ok=True)
    (record,) = Store(tmp_path / "two" / "tiny").records()
    assert record.compute["ranks"] == 2


@pytest.mark.full
@pytest.mark.parametrize(
    ("model", "train"),
    [
        (MODEL.replace("}", ", tie: true}"), TRAIN.replace("}", ", optimizer: sgd, average: 5}")),
        (
            MODEL.replace("}", ", feedforward: {name: moe, experts: 4, width: 8, balance: bias}}"),
            TRAIN.replace("60", "12").replace("}", ", losses: [z_loss, multi_token]}"),
        ),
        (
            MODEL.replace("}", ", position: learned}"),
            TRAIN.replace("}", ", optimizer: lion, schedule: wsd, branches: [0.5]}"),
        ),
    ],
    ids=["tied", "experts", "branches"],
)
def test_two_processes_that_each_keep_a_part_give_the_curve_of_one(
    experiment_file, tmp_path, model, train
):
    """With every metric of a run, which both measure together."""
    kept = {}
    for parallel in ("{data: 1}", "{data: 2, shard: true}"):
        file = experiment_file(
            "{}", model=model, train=train, seeds="1", measure=PER_RUN, parallel=parallel
        )
        root = tmp_path / parallel
        assert run_in_process(file, root) == 0
        (record,) = Store(root / "tiny").records()
        assert record.outcome == "ok", record.reason
        values = {**record.numbers, **weights(root)}
        kept[parallel] = curve(root / "tiny"), values, record.unmeasured
    (alone, numbers, missing), (shared, ours, lost) = kept.values()
    for one, other in zip(shared, alone, strict=True):
        assert one == pytest.approx(other, rel=1e-6, nan_ok=True)
    assert lost == missing
    assert ours == pytest.approx(numbers, rel=1e-4, abs=1e-6, nan_ok=True)


@pytest.mark.full
def test_two_processes_agree_on_the_load_of_experts_and_train_the_losses_of_one(
    experiment_file, tmp_path
):
    """Capacity is by sequence, and the bias moves by the load of all ranks."""
    model = (
        "{dim: 16, layers: 1, heads: 2, context: 16, feedforward: {name: moe, experts: 4, "
        "width: 8, scoring: sigmoid, capacity: 1.0, balance: bias, balance_rate: 0.05}}"
    )
    train = TRAIN.replace("60", "12").replace("}", ", losses: [z_loss, multi_token]}")
    curves = []
    for processes in (1, 2):
        file = experiment_file(
            "{}",
            model=model,
            train=train,
            seeds="1",
            measure="[perplexity]",
            parallel=f"{{data: {processes}}}",
        )
        root = tmp_path / str(processes)
        assert run_in_process(file, root) == 0
        (folder,) = Store(root / "tiny").runs.folders().values()
        curves.append(Results.open(root / "tiny").curve(folder.name.rpartition("--")[2]))
    for ours, theirs in zip(*curves, strict=True):
        assert set(ours) == set(theirs) >= {"loss_z_loss_nats", "loss_multi_token_nats"}
        del ours["train_s"], theirs["train_s"]
        assert ours == pytest.approx(theirs, rel=1e-6, nan_ok=True)


@pytest.mark.row("R31", "kill: one of two processes of a run, with shards and without")
@pytest.mark.full
@pytest.mark.parametrize("shard", ["false", "true"])
def test_a_run_that_loses_one_of_two_processes_goes_on_to_the_same_end(
    two, tmp_path, launch, shard
):
    parallel = f"parallel={{data: 2, shard: {shard}}}"
    shared = curve(tmp_path / "two" / "tiny")
    launcher = launch(command(two, tmp_path / "lost", *OFTEN, "--set", parallel))
    working = tmp_path / "lost" / "tiny" / "working"
    while not there(working, "*/checkpoint-*"):
        assert launcher.poll() is None, launcher.stderr.read()
        time.sleep(0.01)
    kill(next(process for process in family(launcher) if _rank(process) == "1"))
    error = launcher.communicate()[1]
    assert launcher.returncode == 0, error
    for row, other in zip(curve(tmp_path / "lost" / "tiny"), shared, strict=True):
        assert row == pytest.approx(other, rel=1e-6 if shard == "true" else 0, abs=0, nan_ok=True)
    assert not list(working.iterdir())


def test_what_a_checkpoint_keeps_of_shards_is_whole_and_goes_back_into_shards(spec, tmp_path):
    """In a process of its own, alone in its group: what depends on no other rank."""

    def alone():
        dist.init_process_group("gloo", f"file://{tmp_path}/group", rank=0, world_size=1)
        objective = Objective(init_weights(Decoder(spec()), 0))
        before = {name: value.clone() for name, value in objective.state_dict().items()}
        cut = shards.shard(objective, "cpu").state_dict()
        assert all(map(shards.is_part, cut.values()))
        kept = shards.whole(cut)
        assert [name for name, value in before.items() if not kept[name].equal(value)] == []
        assert shards.whole(cut, keep=False) == dict.fromkeys(before)
        assert all(map(shards.is_part, shards.parts(kept, cut).values()))
        optimizer = torch.optim.AdamW(objective.parameters())
        sum(value.sum() for value in objective.parameters()).backward()
        optimizer.step()
        whole = shards.whole(optimizer.state_dict())
        state = shards.optimizer_parts(whole, optimizer.param_groups)["state"]
        assert all(shards.is_part(own["exp_avg"]) for own in state.values())
        assert not any(shards.is_part(own["step"]) for own in state.values())

    assert in_child(alone) == 0


@pytest.mark.row("R31", "skew: another number of shards goes on from a checkpoint")
@pytest.mark.full
@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 2)])
def test_another_number_of_shards_goes_on_from_a_checkpoint(
    experiment_file, tmp_path, launch, capfd, first, then
):
    def file(processes):
        parallel = "{data: 1}" if processes == 1 else f"{{data: {processes}, shard: true}}"
        recipe = TRAIN.replace("60", "400").replace("}", ", average: 5}")
        given = {"model": MODEL, "train": recipe, "seeds": "1", "measure": "[perplexity]"}
        return experiment_file("{}", parallel=parallel, **given)

    results = tmp_path / "both"
    launcher = launch(command(file(first), results, "--checkpoint-every", "0.05"))
    while not there(results, "tiny/working/*/checkpoint-[1-9][0-9]*"):
        assert launcher.poll() is None, launcher.stderr.read()
        time.sleep(0.01)
    launcher.terminate()
    launcher.communicate()
    assert not list(results.glob("tiny/runs/*/record.json")), "it was over too soon"
    capfd.readouterr()
    assert run_in_process(file(then), results) == 0
    (log,) = [*results.glob("tiny/logs/*"), None][:1]
    assert "started again" not in capfd.readouterr().err + (log.read_text() if log else "")
    assert run_in_process(file(1), tmp_path / "alone") == 0
    whole, ours = curve(tmp_path / "alone" / "tiny"), curve(results / "tiny")
    for row, other in zip(ours, whole, strict=True):
        assert row == pytest.approx(other, rel=1e-4, nan_ok=True)  # rounding grows in 400 steps


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


def test_an_optimizer_that_steps_whole_matrices_is_refused_with_shards(experiment_file, capsys):
    train = TRAIN.replace("}", ", optimizer: muon}")
    file = experiment_file("{}", train=train, parallel="{data: 2, shard: true}")
    assert main(["plan", str(file)]) == 2
    said = capsys.readouterr().err
    assert "train.optimizer: 'muon' steps whole matrices, which parallel.shard cuts" in said
    assert "allowed with it: adamw, lion, sgd" in said
    one = experiment_file("{}", train=TRAIN, parallel="{shard: true}")
    assert main(["plan", str(one)]) == 2
    assert "parallel.shard: one process has nothing to share" in capsys.readouterr().err


MEMORY = """
import sys
from dataclasses import replace
from types import SimpleNamespace
import numpy as np
import torch.distributed.fsdp, torch.distributed.tensor  # not of what a rank takes to train
from llama_ablate.config.experiment import Train
from llama_ablate.measure.live_bytes import PeakMemory
from llama_ablate.model.decoder import build, init_weights
from llama_ablate.training.compute import Compute, settle
from llama_ablate.training.loop import train
from llama_ablate.training.ranks import join
from tests.conftest import make_spec
ranks = replace(join(), shards=sys.argv[1] == "shards")
settle(1, keep=not ranks.shards)
peak = PeakMemory("cpu")
some = np.random.default_rng(0)
tokens = SimpleNamespace(
    source=None, heldout=["validation"], vocab=61, split=lambda _: some.integers(0, 61, 500),
    batch=lambda _s, k, rows, context: some.integers(0, 61, (rows, context + 1)),
)
train(
    init_weights(build(make_spec(dim=640, layers=10, head_dim=160)), 0), tokens,
    Train.check({"steps": 2, "batch": 4, "evals": 1}), steps=2, seed=0, ranks=ranks,
    compute=Compute("cpu", 1, "float32", "math", shards=ranks.shards),
)
if ranks.first:
    print(peak.read())
"""


@pytest.mark.full
def test_a_rank_that_keeps_a_part_takes_much_less_memory(tmp_path):
    """49M parameters: half of 16 bytes for each, the weights before they are cut, and a layer."""
    script = tmp_path / "memory.py"
    script.write_text(MEMORY, "utf-8")
    took = {}
    for how in ("whole", "shards"):
        words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        done = subprocess.run(
            [PYTHON, *words, str(script), how], capture_output=True, text=True, check=True
        )
        took[how] = int(done.stdout)
    assert took["shards"] < 0.6 * took["whole"]
