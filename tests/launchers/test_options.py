"""What the command says of launchers before anything is started."""

import pytest

from llama_ablate import errors


@pytest.mark.parametrize(
    ("words", "said", "installed"),
    [
        (("ray",), "pip install ray", False),
        (("slurm",), "pip install submitit", False),
        (("slurm",), "no command 'sbatch'", True),
        (("ray", "--ray-address", "127.0.0.1:1"), "127.0.0.1:1", True),
    ],
)
def test_a_launcher_that_cannot_start_is_refused_before_anything_is_written(
    words, said, installed, experiment_file, tmp_path, answer, monkeypatch
):
    monkeypatch.setenv("PATH", "")
    if installed:
        pytest.importorskip({"ray": "ray", "slurm": "submitit"}[words[0]])
    else:
        monkeypatch.setattr(errors, "find_spec", lambda _package: None)
    command = ("run", experiment_file(), "--results", tmp_path / "r", "--launcher", *words)
    assert said in answer(*command, code=2)
    assert not (tmp_path / "r").exists()


def test_plan_shows_the_jobs_that_a_cluster_would_get(experiment_file, answer, monkeypatch):
    pytest.importorskip("submitit")
    command = ("plan", experiment_file(), "--launcher", "slurm", "--slurm", "time=4:00:00")
    monkeypatch.setattr("shutil.which", lambda _command: None)
    said = answer(*command, "--workers", "3", "--json")
    assert said["jobs"].startswith(f"{said['runs']} job(s), 3 at a time, about ")
    assert " node hours at this machine's speed; this machine has no command" in said["jobs"]
    for line in ("--array=0-3%3", "--time=4:00:00", "--requeue", "--cpus-per-task=1"):
        assert f"#SBATCH {line}" in said["jobs"]
    tasks = answer("plan", experiment_file(), "--launcher", "ray", "--device", "cpu", "--json")
    assert tasks["jobs"].startswith("4 task(s) of 1 CPU(s), about ")
    assert answer("plan", experiment_file(), "--json")["jobs"] == ""
