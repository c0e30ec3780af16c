"""What the command says of launchers before anything is started."""

import pytest

from llama_ablate import errors
from llama_ablate.commands.cli import main


@pytest.mark.parametrize(("name", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_launcher_whose_package_is_missing_says_how_to_get_it(
    name, package, experiment_file, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(errors, "find_spec", lambda _package: None)
    command = ["run", str(experiment_file()), "--results", str(tmp_path / "r")]
    assert main([*command, "--launcher", name]) == 2
    told = f"--launcher {name} needs the package '{package}': pip install {package}"
    assert capsys.readouterr().err == f"llama-ablate: {told}\n"
    assert not (tmp_path / "r").exists()


def test_slurm_on_a_machine_without_it_is_refused_before_anything_is_written(
    experiment_file, tmp_path, monkeypatch, capsys
):
    monkeypatch.setenv("PATH", "")
    command = ["run", str(experiment_file()), "--results", str(tmp_path / "r")]
    assert main([*command, "--launcher", "slurm"]) == 2
    said = "llama-ablate: --launcher slurm: this machine has no command 'sbatch'\n"
    assert capsys.readouterr().err == said
    assert not (tmp_path / "r").exists()
