"""What the command says of launchers before anything is started."""

import pytest

from llama_ablate import errors
from llama_ablate.commands.cli import main

CASES = [
    (["--launcher", "ray", "--slurm", "time=10"], "--slurm goes with --launcher slurm, not ray"),
    (["--ray-address", "x:1"], "--ray-address goes with --launcher ray, not local"),
]


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


@pytest.mark.parametrize(("options", "told"), CASES)
def test_options_of_another_launcher_are_refused(options, told, experiment_file, capsys):
    assert main(["run", str(experiment_file()), *options]) == 2
    assert capsys.readouterr().err == f"llama-ablate: {told}\n"


@pytest.mark.parametrize("wrong", ["=x", "Time=3", "a b=3", "time=1\n#SBATCH --wrap=x"])
def test_what_is_no_option_of_sbatch_is_refused(wrong, capsys):
    with pytest.raises(SystemExit):
        main(["run", "x.yaml", "--launcher", "slurm", "--slurm", wrong])
    assert "is not KEY=VALUE or KEY" in capsys.readouterr().err
