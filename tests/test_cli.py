import math
import subprocess
import sys
from pathlib import Path

import pytest
from scipy import stats

from llama_ablate.commands import components
from llama_ablate.commands.help import COMMANDS
from llama_ablate.commands.shared.answer import Answer
from llama_ablate.config import experiment
from llama_ablate.config.spec import SLOTS
from llama_ablate.design.variants import variants_of
from llama_ablate.launch.environment import cores
from llama_ablate.results import Store
from tests.in_process import run_in_process

#: A pack of the repository.
PACK = Path(__file__).parents[1] / "results" / "reference" / "first"


def test_plan_shows_sizes_runs_and_time_and_writes_nothing(experiment_file, tmp_path, answer):
    file = experiment_file("{axes: {attention: [mqa]}, match: parameters}")
    before = sorted(tmp_path.iterdir())
    out = answer("plan", file, "--device", "cpu")
    shown = ("(baseline) *", "mqa", "residual", "bytes/token at", "runs: 4", "predicted: about")
    assert all(word in out for word in shown)
    said = answer("plan", file, "--device", "cpu", "--json")
    share = 6 * 4 * 16 / said["variants"][0]["parameters"]
    passes = 6 * 4 * 16 / said["data"]["tokens"]["train"]
    assert f"tokens a parameter: {share:.2g}, with embeddings, of the baseline" in out
    assert f"passes over the text: {passes:.2g}" in out
    parts = [said[f"{part}_s"] for part in ("training", "evaluation", "measuring")]
    assert min(parts) >= 0
    assert said["predicted_s"] == pytest.approx(sum(parts))
    assert (said["runs"], said["workers"]) == (4, cores())
    assert sorted(tmp_path.iterdir()) == before


def test_a_run_is_shown_by_its_id_by_its_folder_and_as_a_bar_names_it(
    experiment_file, tmp_path, answer
):
    assert run_in_process(experiment_file(), tmp_path) == 0
    results = tmp_path / "tiny"
    status = answer("status", results, "--json")
    assert status["outcomes"] == {"ok": 4}
    assert "4 runs: 4 too short" in answer("status", results)
    plan = Store(results).plan
    run = next(r for r in plan.runs.values() if r.variant == plan.tables[0].baseline.id)
    folder = next(path.name for path in (results / "runs").iterdir() if path.name.endswith(run.id))
    names = (run.id, folder, "baseline s0", "rmsnorm s0", "rmsnorm (baseline) s0")
    (told,) = {answer("show", results, name) for name in names}
    assert run.id in told
    assert "train_loss_nats" in told
    head, *rows = answer("show", results, "baseline s0", "--curve").splitlines()
    assert head.startswith("step,tokens,lr,train_loss_nats")
    assert all(len(row.split(",")) == len(head.split(",")) for row in rows)


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        ("help", "torch pandas numpy pydantic yaml"),
        ("show {pack}", "torch"),
        pytest.param(
            "plan {file}", "torch._dynamo datasets scipy.optimize", marks=pytest.mark.full
        ),
    ],
)
def test_a_command_imports_no_more_than_it_needs(experiment_file, words, absent):
    """torch's optimizers import the compiler, a second; local files need no data sets."""
    file = experiment_file("{axes: {norm: [layernorm], train.optimizer: [muon, lion]}}")
    words = words.format(pack=PACK, file=file).split()
    code = (
        "import sys; from llama_ablate.commands.cli import main\n"
        f"assert main({words}) == 0\n"
        f"assert not (found := {{*{absent.split()}}} & {{*sys.modules}}), found\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


#: Of a command that imports no torch.
STREAMS = {
    "init --list | head -c 5": (0, "first"),
    "init --list >/dev/full": (2, "llama-ablate: [Errno 28] No space left on device\n"),
    "init nrom 2>/dev/full": (2, ""),
}


@pytest.mark.parametrize("words", STREAMS)
def test_output_that_nobody_takes_changes_no_exit_code_and_shows_no_traceback(words):
    code, said = STREAMS[words]
    line = f"set -o pipefail; {sys.executable} -m llama_ablate {words}"
    done = subprocess.run(["bash", "-c", line], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (code, said)


def test_numbers_that_json_lacks_are_null_in_what_a_command_prints(monkeypatch, answer):
    values = {"a": float("nan"), "b": [float("inf"), 1.5]}
    monkeypatch.setattr(components, "run", lambda _options: Answer("text", values))
    assert answer("components", "--json") == {"a": None, "b": [None, 1.5]}


def test_init_writes_every_template_and_overwrites_nothing(tmp_path, monkeypatch, answer):
    monkeypatch.chdir(tmp_path)
    every = [row["template"] for row in answer("init", "--list", "--json")]
    listed = [name for name in every if not name.startswith("plugin ")]
    shipped = {*SLOTS, "first", "quickstart", "tune", "ladder", "path", "factorial", "confirm"}
    assert shipped == {*listed}
    for name in listed:
        answer("init", name)
        loaded = experiment.load(tmp_path / f"{name}.yaml").experiment
        assert loaded.name == name
        variants_of(loaded, 256)
    (tmp_path / "first.yaml").write_text("mine")
    assert "'first.yaml' is there already" in answer("init", code=2)
    assert (tmp_path / "first.yaml").read_text() == "mine"


def test_all_commands_stand_in_the_long_help_with_an_example_each(answer):
    out = answer("help", "all")
    for name, command in COMMANDS.items():
        assert f"  {name:11s} {command.HELP}\n{'':14s}llama-ablate {command.EXAMPLE}" in out


def test_plan_expects_the_half_width_of_other_experiments_where_there_is_no_pilot(
    experiment_file, answer
):
    file = experiment_file(margin="0.01 nats", seeds="3")
    expected = answer("plan", file, "--json")["expected"]
    assert expected["noise"] == "other experiments"
    # Known to a factor of two: a deviation over seeds of 0.017 nats, one row of three seeds.
    middle = stats.t.ppf(0.975, 2) * 0.017 / math.sqrt(3)
    ends = [expected[name] for name in ("half_low", "half_high")]
    assert ends == pytest.approx([middle / 2, 2 * middle], rel=0.01)
    assert "expected" not in answer("plan", experiment_file(), "--json")


def test_an_equivalence_that_a_pilot_does_not_let_be_shown_is_refused_unless_forced(
    experiment_file, answer
):
    def planned(stated, code):
        claim = f"[{{variant: layernorm, direction: equivalent, margin: 1e-9 nats{stated}}}]"
        file = experiment_file(hypotheses=claim, margin="1e-9 nats")
        return answer("plan", file, "--pilot", PACK, code=code)

    said = planned("", 2)
    assert "hypotheses[0].margin: equivalence within 1e-9 nats cannot be shown" in said
    assert "state a larger margin, or 'force: true'" in said
    assert "no row can be equivalent" in planned(", force: true", 0)
