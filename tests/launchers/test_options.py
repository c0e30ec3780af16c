"""What the command says of launchers before anything is started."""

import pytest

from llama_ablate import errors


@pytest.fixture
def refused(experiment_file, tmp_path, answer):
    """Check that a launcher is refused in one line, before anything is written."""

    def check(said, *words):
        command = ("run", experiment_file(), "--results", tmp_path / "r", "--launcher", *words)
        assert answer(*command, code=2) == f"llama-ablate: {said}"
        assert not (tmp_path / "r").exists()

    return check


@pytest.mark.parametrize(("name", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_launcher_whose_package_is_missing_says_how_to_get_it(
    name, package, refused, monkeypatch
):
    monkeypatch.setattr(errors, "find_spec", lambda _package: None)
    refused(f"--launcher {name} needs the package '{package}': pip install {package}", name)


def test_slurm_on_a_machine_without_it_is_refused(refused, monkeypatch):
    monkeypatch.setenv("PATH", "")
    refused("--launcher slurm: this machine has no command 'sbatch'", "slurm")


def test_a_cluster_of_ray_that_does_not_answer_is_refused(refused):
    pytest.importorskip("ray")
    where = ("--ray-address", "127.0.0.1:1")
    refused("--ray-address 127.0.0.1:1: nobody answers there", "ray", *where)


def test_plan_shows_the_jobs_that_slurm_would_get(experiment_file, answer, monkeypatch):
    pytest.importorskip("submitit")
    command = ("plan", experiment_file(), "--launcher", "slurm", "--slurm", "time=4:00:00")
    monkeypatch.setattr("shutil.which", lambda _command: None)
    said = answer(*command, "--workers", "3", "--json")
    assert said["jobs"].startswith(f"{said['runs']} job(s), 3 at a time; this machine has no")
    for line in ("--array=0-3%3", "--time=4:00:00", "--requeue", "--cpus-per-task=1"):
        assert f"#SBATCH {line}" in said["jobs"]
    assert answer("plan", experiment_file(), "--json")["jobs"] == ""
