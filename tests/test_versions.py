"""R21: results of other versions. Of those of this format test_pack.py has what they may hold."""

from llama_ablate import __version__
from llama_ablate.commands.cli import main
from llama_ablate.files.strict_json import sealed
from tests.reliability.harness import content, grid


def test_results_of_another_format_are_refused_in_a_line_and_left_as_they_are(
    experiment_file, tmp_path, unsealed, capsys, tally
):
    file = experiment_file(measure="[perplexity]", seeds="1", variants="{}")
    store = grid(file, tmp_path)
    plan = unsealed(store.plan_file)
    wrong = 0
    others = {n: sealed({**plan, "format": n}, "plan.json") for n in (2, 3, 6)}
    for number, text in others.items():
        store.plan_file.write_bytes(text)
        before = content(store.root, "working")
        run = ["run", str(file), "--results", str(tmp_path)]
        for words in (run, *([word, str(store.root)] for word in ("status", "report", "show"))):
            capsys.readouterr()
            code, error = main(words), capsys.readouterr().err
            told = f"is of format {number}: {'a later' if number > 5 else 'an earlier'} version"
            read = f"wrote it; this is version {__version__}, which reads format 5"
            wrong += code != 2 or error.count("\n") != 1 or told not in error or read not in error
        wrong += content(store.root, "working") != before
    tally("R21", "results of formats 2, 3 and 6: refused in a line, and left alone", 15, wrong)
