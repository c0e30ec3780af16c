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
