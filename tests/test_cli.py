import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from llama_ablate.commands import components
from llama_ablate.commands.cli import main
from llama_ablate.commands.help import COMMANDS, EXIT_CODES
from llama_ablate.commands.shared.answer import Answer
from llama_ablate.config import experiment, templates
from llama_ablate.config.spec import SLOTS
from llama_ablate.design.variants import variants_of
from llama_ablate.launch import local
from llama_ablate.launch.environment import cores
from llama_ablate.results import Store
from tests.in_process import run_in_process
from tests.quiet import within
from tests.texts import sentences

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """A finished grid of two variants and two seeds."""
    folder = tmp_path_factory.mktemp("results")
    book = folder / "book.txt"
    book.write_text(sentences(1_000), "utf-8")
    file = folder / "tiny.yaml"
    file.write_text(
        "name: tiny\nquestion: Does it <work>?\n"
        "model: {dim: 16, layers: 1, heads: 2, context: 16}\n"
        "variants: {axes: {attention: [mqa]}, match: parameters}\ncontrols: {aa: []}\n"
        f"data: {{corpus: {{name: files, path: '{book}'}}}}\n"
        "train: {steps: 4, batch: 4, precision: float32}\nseeds: 2\n",
        "utf-8",
    )
    os.environ["LLAMA_ABLATE_CACHE"] = str(folder / "cache")
    assert run_in_process(file, folder) == 0
    return folder / "tiny"


def test_components_lists_every_slot_with_options_and_sources(capsys):
    assert main(["components"]) == 0
    out = capsys.readouterr().out
    for word in (
        "norm:",
        "position:",
        "corpus:",
        "metric:",
        "theta: number = 10000",
        "window: whole number or null = null",
        "layout: half or interleaved = half",
        "splits: list of numbers",
        "kv_heads",
        "arXiv:1910.07467",
    ):
        assert word in out
    assert main(["components", "position", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["slot"] for row in rows} == {"position"}
    assert main(["components", "--json"]) == 0
    for row in json.loads(capsys.readouterr().out):
        for name, option in row["options"].items():
            assert option["about"], f"what does {name} of {row['name']} do? (config/options.yaml)"
    assert main(["components", "nrom"]) == 2
    assert "did you mean 'norm'?" in capsys.readouterr().err


def test_plan_shows_sizes_runs_and_time_and_writes_nothing(experiment_file, tmp_path, capsys):
    file = experiment_file("{axes: {attention: [mqa]}, match: parameters}")
    before = sorted(tmp_path.iterdir())
    assert main(["plan", str(file), "--device", "cpu"]) == 0
    out = capsys.readouterr().out
    for word in (
        "(baseline) *",
        "mqa",
        "residual",
        "bytes/token at",
        "runs: 4",
        "predicted: about",
    ):
        assert word in out
    assert main(["plan", str(file), "--device", "cpu", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    share = 6 * 4 * 16 / said["variants"][0]["parameters"]
    text = said["data"]["tokens"]
    assert out.split("\n\n")[0].splitlines() == [
        "tiny",
        f"tokens a parameter: {share:.2g}, with embeddings, of the baseline",
        f"passes over the text: {6 * 4 * 16 / text['train']:.2g}",
        f"held out: {len(text) - 1} documents, {sum(text.values()) - text['train']:,} tokens",
        "margin: none is stated, so no row can be equivalent",
    ]
    assert said["runs"] == 4
    parts = [said[f"{part}_s"] for part in ("training", "evaluation", "measuring")]
    assert min(parts) >= 0
    assert said["predicted_s"] == pytest.approx(sum(parts))
    assert said["workers"] == cores()
    assert main(["plan", str(file), "--set", "parallel={data: 2}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["workers"] == max(1, cores() // 2)
    assert sorted(tmp_path.iterdir()) == before


def test_plan_says_that_a_tokenizer_loses_text(experiment_file, words_tokenizer, capsys):
    to_words = f"data.tokenizer={{name: file, path: '{words_tokenizer}'}}"
    assert main(["plan", str(experiment_file()), "--device", "cpu", "--set", to_words]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "loses text" in line]
    assert "<unk>" in line


def test_status_counts_outcomes(results, capsys):
    assert main(["status", str(results)]) == 0
    assert "4 runs: 4 too short" in capsys.readouterr().out
    assert main(["status", str(results), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outcomes"] == {"ok": 4}


def test_a_run_is_shown_by_its_id_by_its_folder_and_as_a_bar_names_it(results, capsys):
    plan = Store(results).plan
    run = next(r for r in plan.runs.values() if r.variant == plan.tables[0].baseline.id)
    folder = next(path.name for path in (results / "runs").iterdir() if path.name.endswith(run.id))
    told = []
    for name in (run.id, folder, "baseline s0", "mha s0", "mha (baseline) s0"):
        assert main(["show", str(results), name]) == 0
        told.append(capsys.readouterr().out)
    assert len({*told}) == 1
    assert run.id in told[0]
    assert main(["show", str(results), "mha s7"]) == 2
    assert "'mha s7' is not a variant or run" in capsys.readouterr().err


def test_show_looks_at_the_grid_a_variant_or_a_run(results, capsys):
    assert main(["show", str(results)]) == 0
    assert "mqa" in capsys.readouterr().out
    assert main(["show", str(results), "mqa"]) == 0
    out = capsys.readouterr().out
    assert "attention: mha -> mqa" in out
    assert "heldout_loss_nats" in out
    assert "± " in out
    assert main(["status", str(results), "--json"]) == 0
    run_id = json.loads(capsys.readouterr().out)["runs"][0]["id"]
    assert main(["show", str(results), run_id]) == 0
    assert "train_loss_nats" in capsys.readouterr().out
    assert main(["show", str(results), "mqq"]) == 2
    assert "did you mean 'mqa'?" in capsys.readouterr().err


def test_show_pairs_two_variants_by_seed(results, capsys):
    assert main(["show", str(results), "baseline", "mqa", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["seeds"] == [0, 1]
    assert [entry["name"] for entry in said["changed"]["attention"]] == ["mha", "mqa"]
    losses = said["effects"]["test_loss_nats"]
    assert losses["low"] < losses["mean"] < losses["high"]
    assert main(["show", str(results), "baseline", "mqa"]) == 0
    out = capsys.readouterr().out
    assert "over 2 paired seeds (this pair alone: a table corrects" in out
    assert "attention: mha -> mqa\n" in out
    assert main(["show", str(results), "mqa", "mqa"]) == 2
    assert "'mqa' and 'mqa' are the same variant: name two" in capsys.readouterr().err


@pytest.mark.usefixtures("without_pictures")
def test_report_is_written_again_from_the_folder_alone(results, capsys):
    page = results / "report" / "report.html"
    page.unlink()
    assert main(["report", str(results)]) == 0
    assert page.is_file()
    assert "Does it &lt;work&gt;?" in page.read_text()
    capsys.readouterr()


def test_looking_at_results_needs_no_torch(results):
    code = (
        "import sys; from llama_ablate.commands.cli import main\n"
        "from matplotlib.figure import Figure; Figure.savefig = lambda *_, **__: None\n"
        f"assert main(['report', {str(results)!r}]) == 0\n"
        f"assert main(['show', {str(results)!r}]) == 0\n"
        "assert 'torch' not in sys.modules, 'torch was imported'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_plan_imports_neither_the_compiler_nor_datasets_nor_builds_an_optimizer(experiment_file):
    """torch's optimizers import the compiler, a second; local files need no data sets."""
    file = experiment_file("{axes: {norm: [layernorm], train.optimizer: [muon, lion]}}")
    code = (
        "import sys; from llama_ablate.commands.cli import main\n"
        "import torch\n"
        "def refuse(*_, **__): raise AssertionError('an optimizer is built')\n"
        "torch.optim.Optimizer.__init__ = refuse\n"
        f"assert main(['plan', {str(file)!r}]) == 0\n"
        "assert not {'torch._dynamo', 'datasets', 'scipy.optimize'} & {*sys.modules}\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


#: Of a command that imports no torch.
STREAMS = {
    "init --list | head -c 5": (0, "first"),
    "init --list >&-": (0, ""),
    "init --list >/dev/full": (2, "llama-ablate: [Errno 28] No space left on device\n"),
    "init nrom 2>&-": (2, ""),
    "init nrom 2>/dev/full": (2, ""),
    "init nrom 2>&1 | true": (2, ""),
    "--help | true": (0, ""),
}


def interrupted(*_arguments):
    raise KeyboardInterrupt


@pytest.mark.parametrize("place", ["commands.cli.parser", "commands.components.run"])
def test_an_interrupt_is_one_line_also_while_the_words_are_read(monkeypatch, capsys, place):
    monkeypatch.setattr(f"llama_ablate.{place}", interrupted)
    assert main(["components"]) == 130
    error = capsys.readouterr().err
    assert error == "llama-ablate: interrupted; the same command goes on from here\n"


@pytest.mark.skipif(os.getuid() == 0 and not shutil.which("chattr"), reason="root writes anywhere")
@pytest.mark.usefixtures("without_pictures")
def test_a_folder_that_cannot_be_written_is_told_with_what_is_allowed(results, tmp_path, capsys):
    closed = tmp_path / "closed"
    closed.mkdir()
    if os.getuid() == 0:
        done = subprocess.run(["chattr", "+i", str(closed)], check=False, capture_output=True)
        if done.returncode:
            pytest.skip("this file system cannot close a folder to root")
    else:
        closed.chmod(0o500)
    try:
        for words in (
            ["pack", str(results), "--out", str(closed / "x")],
            ["export", "llama2-demo", str(closed / "x")],
        ):
            capsys.readouterr()
            assert main(words) == 2, words
            said = capsys.readouterr().err.splitlines()
            assert str(closed) in said[-1], words
            assert "allowed: what you may read, in a folder that you may write to" in said[-1]
            assert "Errno" not in said[-1]
    finally:
        if os.getuid() == 0:
            subprocess.run(["chattr", "-i", str(closed)], check=True)
        assert list(closed.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc here")
def test_a_folder_in_which_no_file_can_be_made_is_not_told_to_be_missing(capsys):
    assert main(["export", "llama2-demo", "/proc/x"]) == 2
    assert capsys.readouterr().err.endswith("llama-ablate: '/proc': no file can be made there\n")
    assert main(["pack", str(ROOT / "results" / "reference" / "first"), "--out", "/proc/x"]) == 2
    assert capsys.readouterr().err == "llama-ablate: '/proc/x': no folder can be made there\n"


@pytest.mark.parametrize("words", STREAMS)
def test_output_that_nobody_takes_changes_no_exit_code_and_shows_no_traceback(words):
    code, said = STREAMS[words]
    line = f"set -o pipefail; {sys.executable} -m llama_ablate {words}"
    done = subprocess.run(["bash", "-c", line], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout + done.stderr) == (code, said)


def test_a_reader_that_left_early_changes_no_exit_code(monkeypatch):
    def broken(*_text, **_more):
        raise BrokenPipeError

    monkeypatch.setattr(components, "run", lambda _options: Answer("text", {}, code=1))
    monkeypatch.setattr("builtins.print", broken)
    assert main(["components"]) == 1


@pytest.mark.parametrize("error", [MemoryError, torch.OutOfMemoryError])
def test_a_command_that_needs_too_much_memory_says_so_in_one_line(monkeypatch, capsys, error):
    def greedy(_options):
        raise error("Unable to allocate 9 TiB")

    monkeypatch.setattr(components, "run", greedy)
    assert main(["components"]) == 2
    said = "llama-ablate: components needs more memory than there is (Unable to allocate 9 TiB)\n"
    assert capsys.readouterr().err == said


def test_numbers_that_json_lacks_are_null_in_what_a_command_prints(monkeypatch, capsys):
    values = {"a": float("nan"), "b": [float("inf"), 1.5]}
    monkeypatch.setattr(components, "run", lambda _options: Answer("text", values))
    assert main(["components", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [None, 1.5]}


def test_init_writes_every_template_and_overwrites_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", "--list", "--json"]) == 0
    every = [row["template"] for row in json.loads(capsys.readouterr().out)]
    listed = [name for name in every if not name.startswith("plugin ")]
    shipped = {*SLOTS, "first", "quickstart", "tune", "ladder", "path", "factorial", "confirm"}
    assert shipped == {*listed}
    for name in listed:
        assert main(["init", name]) == 0
        loaded = experiment.load(tmp_path / f"{name}.yaml").experiment
        assert loaded.name == name
        variants_of(loaded, 256)
    assert main(["init"]) == 2
    (tmp_path / "mine.yaml").write_text("mine")
    assert main(["init", "norm", "--to", "mine.yaml"]) == 2
    assert main(["init", "norm", "--to", "mine.txt"]) == 2
    assert main(["init", "nrom"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert "'first.yaml' is there already" in said[0]
    assert "'mine.yaml' is there already" in said[1]
    assert "ends in .yaml" in said[2]
    assert "did you mean 'norm'?" in said[3]
    assert len(said) == 4
    assert (tmp_path / "mine.yaml").read_text() == "mine"


def test_init_writes_a_plugin_beside_a_users_file(tmp_path, monkeypatch, capsys, plugin):
    plugin("mamba2")  # so that what `components` loads is forgotten after the test
    monkeypatch.chdir(tmp_path)
    for name in templates.plugin_names():
        assert main(["init", "plugin", name]) == 0
        shipped = Path(__file__).parents[1] / "experiments" / "plugins" / f"{name}.py"
        assert (tmp_path / f"{name}.py").read_bytes() == shipped.read_bytes()
    assert "next: llama-ablate components --plugin mamba2.py" in capsys.readouterr().out
    assert main(["init", "plugin", "mamba"]) == 2
    assert main(["init", "plugin"]) == 2
    assert main(["init", "plugin", "sgd"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert "'mamba' is not a plug-in; allowed: attention_residuals," in said[0]
    assert "plugin needs a name: attention_residuals," in said[1]
    assert "'sgd.py' is there already" in said[2]


def test_plan_says_what_a_bare_name_resets(experiment_file, capsys):
    model = "{dim: 16, layers: 1, heads: 2, context: 16, feedforward: swiglu}"
    assert main(["plan", str(experiment_file(model=model)), "--device", "cpu"]) == 0
    (note,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note:")]
    assert "tiny.yaml:2:65: model.feedforward: 'swiglu' has its default here" in note
    assert "multiple_of: 8, not 32" in note


@pytest.mark.parametrize(
    "command",
    [
        "init",
        "components",
        "plan",
        "run",
        "status",
        "show",
        "measure",
        "report",
    ],
)
def test_every_command_has_help_with_an_example(command, capsys):
    with pytest.raises(SystemExit) as stopped:
        main([command, "--help"])
    assert stopped.value.code == 0
    assert f"llama-ablate {command}" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_help_fits_a_terminal_of_24_lines_and_begins_with_the_main_job(words, capsys):
    assert main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 80
    begin = lines.index("to begin:")
    assert [line.split()[0] for line in lines[begin + 1 : begin + 5]] == [
        *("init", "plan", "run", "report")
    ]


def test_all_commands_stand_in_the_long_help_with_an_example_each(capsys):
    assert main(["help", "all"]) == 0
    out = capsys.readouterr().out
    for name, command in COMMANDS.items():
        assert f"  {name:11s} {command.HELP}\n{'':14s}llama-ablate {command.EXAMPLE}" in out
    assert len(COMMANDS) == 16


def test_help_takes_two_tenths_of_a_second():
    words = [sys.executable, "-m", "llama_ablate", "--help"]
    # Users start compiled modules; the first of the three starts compiles them.
    compiled = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}

    def took():
        """Return the CPU seconds of the command alone."""
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, env=compiled) as process:
            _, code, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(code)
        return used.ru_utime + used.ru_stime

    assert any(within(took(), 0.2) for _ in range(3))  # the least is that of the least disturbed


def test_help_imports_nothing_that_takes_long():
    code = (
        "import sys; from llama_ablate.commands import cli; cli.parser().format_help()\n"
        "print(sorted({'torch', 'pandas', 'numpy', 'pydantic', 'yaml'} & {*sys.modules}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_a_full_disk_is_one_line(experiment_file, tmp_path, monkeypatch, capsys):
    def full(*_args, **_more):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("llama_ablate.launch.queue.Queue.work", full)
    assert main(["run", str(experiment_file()), "--results", str(tmp_path / "r")]) == 2
    err = capsys.readouterr().err
    assert "No space left on device; what is finished is kept" in err
    assert err.count("\n") == 1


def test_no_more_workers_are_started_than_there_are_runs(experiment_file, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(local, "Local", lambda *given: asked.append(given[2]) or Idle())
    monkeypatch.setattr("llama_ablate.launch.queue.Queue.work", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["run", str(experiment_file()), "--results", str(tmp_path), "--workers", str(10**9)])
    assert asked == [4]


class Idle:
    slots = 4


def test_plan_says_how_wide_intervals_will_be_and_what_a_difference_takes_by_a_pilots_noise(
    results, experiment_file, capsys
):
    file = experiment_file(seeds="4")
    command = ["plan", str(file), "--power", "0.01 nats", "--pilot", str(results)]
    assert main([*command, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert values["noise"] == f"the noise of '{results}'"
    (row,) = values["power"]
    assert row["row"] == "layernorm"
    assert 0 < row["half_low"] < row["half_width"] < row["half_high"]
    assert row["half_width"] < row["detectable"]
    seeds = row["seeds_needed"]
    assert seeds is None or (seeds <= 4) == (row["power"] >= 0.8)
    assert main(command) == 0
    said = capsys.readouterr().out
    assert "half width with 4 seeds [90%]" in said
    assert "seeds for 0.01 nats" in said


def test_plan_takes_the_noise_of_earlier_experiments_where_there_is_no_pilot(
    experiment_file, capsys
):
    sizes = {"model": "{dim: 64, layers: 2, heads: 4, context: 16}", "margin": "0.05 nats"}
    file = experiment_file(train="{tokens: 100_000, batch: 16}", seeds="3", **sizes)
    assert main(["plan", str(file), "--json"]) == 0
    glance = json.loads(capsys.readouterr().out)["expected"]
    assert "earlier experiments" in glance["noise"]
    assert 0 < glance["half_low"] <= glance["half_high"]
    assert main(["plan", str(file), "--power", "0.05 nats", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["power"]
    assert row["half_width"] == pytest.approx(glance["half_high"], rel=0.3)
    assert main(["plan", str(file)]) == 0
    assert "intervals of ±" in capsys.readouterr().out
    far = experiment_file(margin="0.05 nats")
    assert main(["plan", str(far), "--power", "0.05 nats"]) == 2
    assert "earlier experiments are unlike this one" in capsys.readouterr().err
    assert main(["plan", str(far), "--json"]) == 0
    assert "expected" not in json.loads(capsys.readouterr().out)


def test_a_power_with_looks_says_how_many_runs_to_expect_and_two_seeds_are_enough_to_ask(
    results, experiment_file, capsys
):
    file = experiment_file(seeds="{looks: [3, 6, 12]}")
    command = ["plan", str(file), "--power", "0.01 nats", "--pilot", str(results)]
    assert main([*command, "--json"]) == 0
    values = json.loads(capsys.readouterr().out)
    assert all(3 <= row["expected_seeds"] <= 12 for row in values["power"])
    assert all(0 < row["power"] <= 1 for row in values["power"])
    assert 6 <= values["expected_runs"] <= values["runs"] == 24
    assert main(command) == 0
    assert f"{values['expected_runs']:.0f} of at most 24" in capsys.readouterr().out
    axes = ", ".join(f"{{name: gqa, kv_heads: {n}}}" for n in (1, 2))
    many = "{axes: {attention: [" + axes + "], norm: [layernorm, none], feedforward: [relu, gelu]}}"
    command[1] = str(experiment_file(many, seeds="2"))
    assert main(command) == 0
    assert "half width with 2 seeds" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["plan", "run"])
def test_a_model_that_does_not_fit_this_machine_is_told_with_its_place(
    command, experiment_file, tmp_path, capsys
):
    file = experiment_file(model="{dim: 65536, layers: 1, heads: 2, context: 16}")
    more = ["--results", str(tmp_path / "r")] if command == "run" else []
    assert main([command, str(file), "--device", "cpu", *more]) == 2
    said = capsys.readouterr().err
    assert "tiny.yaml:2:1: model: 'baseline' is predicted to need" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "r" / "tiny").exists()


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_ends_a_command_with_128_and_its_number(name):
    number = signal.Signals[name]
    code = (
        "import os; from llama_ablate.commands import cli, init; "
        f"init.run = lambda _options: os.kill(os.getpid(), {number:d}); "
        "import sys; sys.argv = ['llama-ablate', 'init', 'norm']; cli.script()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (128 + number, False)
    assert 128 + number in EXIT_CODES


def test_exit_codes_are_one_table_in_help_and_in_the_docs(capsys):
    assert main(["help", "exit-codes"]) == 0
    out = capsys.readouterr().out
    page = (ROOT / "docs" / "reference" / "commands.md").read_text("utf-8")
    for code, about in EXIT_CODES.items():
        assert f"{code:4d}  {about}" in out
        assert f"| {code} | {about} |" in page


def test_tokens_may_be_written_with_a_suffix_and_plan_takes_what_run_takes(experiment_file, capsys):
    file = str(experiment_file(train="{tokens: 1.5k, batch: 4}"))
    words = ["--workers", "3", "--results", "elsewhere", "--keep-weights", "none", "--json"]
    assert main(["plan", file, *words]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["workers"] == 3
    steps, tokens = answer["steps"], answer["tokens_per_run"]
    assert abs(tokens - 1500) <= tokens / steps / 2
    assert not Path("elsewhere").exists()


def test_a_curve_is_csv_and_a_folder_that_is_not_there_is_told_with_those_beside_it(
    experiment_file, tmp_path, capsys
):
    assert run_in_process(experiment_file(measure="[perplexity]"), tmp_path) == 0
    capsys.readouterr()
    root = str(tmp_path / "tiny")
    assert main(["show", root, "baseline s0", "--curve"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("step,tokens,lr,train_loss_nats")
    assert all(len(row.split(",")) == len(head.split(",")) for row in rows)
    assert main(["show", root, "--curve"]) == 2
    assert "--curve is of a run" in capsys.readouterr().err
    assert main(["status", str(tmp_path / "tiyn")]) == 2
    error = capsys.readouterr().err
    assert f"there is no folder '{tmp_path / 'tiyn'}'" in error
    assert "did you mean 'tiny'?" in error
