"""Every mistake is one line that says where it is and what was meant, and nothing is written."""

import json
import re
import shlex

import pytest

from llama_ablate.commands.cli import main
from tests.texts import sentences

#: Sections that a good file has where a case does not give them.
GOOD = """\
name: x
model: {dim: 32, heads: 4, layers: 2, context: 16}
data: {corpus: {name: files, path: many.jsonl}, tokenizer: bytes, sources: {ships: recall}}
train: {steps: 6, batch: 4}
measure: [perplexity, kv_cache]
seeds: 2
controls: {aa: []}
variants: {axes: {norm: [layernorm]}}
"""
#: Sections of a file, and below them the place and the names that are said; `...` is any wording.
FILES = """\
seed: 3
=> 1:7: seed: ... 'seed' ... did you mean 'seeds'?
model: {norm: rmsnrm}
=> 1:15: model.norm: 'rmsnrm' ... did you mean 'rmsnorm'?
model: {position: {name: rope, tetha: 3.0}}
=> 1:39: model.position.tetha: ... 'tetha' ... did you mean 'theta'?
data: {corpus: {name: files, path: no.txt}}
=> 1:8: data.corpus: ... 'no.txt'
train: {steps: 1, batch: 4096}
=> 4:8: data.corpus: the train split has 9,029 tokens, ...
model: {layers: 3, attention: {pattern: [mha], layers: {1: {name: gqa, kv_heads: two}}}}
=> 1:82: model.attention.layers.1.kv_heads: 'two' ...
variants: {axes: {train.optimizer: [muon, {name: muon, momentum: 0.95}]}}
=> 1:43: variants.axes.train.optimizer[1]: ... the same variant as 'muon'
tune: {lr: [1e-3, 1e-2]}
measure: [gradients]
=> 2:1: measure: ... 'measure' ...
train: {steps: 60, batch: 4, compile: always}
model: {dropout: 0.1}
=> 1:39: train.compile: 'baseline' ...
controls: {positive: {train.lr: 1e-5}}
tune: {lr: [1e-3, 1e-2]}
margin: 0.02 nats
=> 1:33: controls.positive.train.lr: 'lr' ...
controls: {aa: both}
seeds: 1
=> 2:8: seeds: an A/A arm needs an interval, ...
controls: {positive: {norm: none}}
=> 1:12: controls.positive: ... 'margin' ...
guard: {metric: cloze, worse_by: 1%}
=> 1:1: guard[0].metric: 'cloze' ...
variants: {axes: {train.losses: [[z_loss]]}}
budget: flops
=> 1:34: variants.axes.train.losses[0]: 'losses=z_loss' ...
model: {vocab: 300}
=> ...: model.vocab: the tokenizer has ... tokens, which is the vocabulary: leave this out
seeds: {looks: [1, 3]}
=> 1:9: seeds.looks: [1, 3]: must be numbers of ...
tune: {lr: [1.0, 2.0]}
race: 1
seeds: [1_000_000]
=> 3:1: seeds: the seeds from 1,000,000 on are ...
train: {steps: 1, batch: 6, accumulate: 4}
=> 1:41: train.accumulate: batch 6 does not divide into ...
variants: {axes: {train.precision: [auto]}}
=> 1:37: variants.axes.train.precision[0]: where the precision varies, each is ...
variants: {axes: {data.mixture: [{ships: 1}]}}
data: {corpus: {name: files, path: many.jsonl}, sources: {ships: recall}, order: documents}
=> 1:34: variants.axes.data.mixture[0]: ... 'order: documents'
variants: {axes: {data.tokenizer: [bytes]}}
budget: bytes
data: {corpus: {name: files, path: many.jsonl}, tokenizer: chars, order: windows}
=> 1:36: variants.axes.data.tokenizer[0]: variants of several tokenizers are paired ...
variants: {axes: {data.tokenizer: [bytes]}}
data: {corpus: {name: files, path: many.jsonl}, tokenizer: chars, order: documents}
=> 1:1: budget: a token is not the same ...
variants: {axes: {data.tokenizer: [bytes]}}
budget: bytes
margin: 0.1 nats
data: {corpus: {name: files, path: many.jsonl}, tokenizer: chars, order: documents}
=> 3:9: margin: '0.1 nats' ...
variants: {axes: {dim: [{label: a, value: 64}, {label: a, value: 96}]}}
=> 1:48: variants.axes.dim[1]: ... the label 'a'
variants:
  design: product
  axes: {norm: [none, dyt], block: [pre, post]}
  exclude: [{block: pre}, {block: post}]
=> 4:3: variants.exclude: leaves no combination
variants: {axes: {norm: [rmsnorm]}}
=> 1:12: variants.axes: one variant, so there is nothing ...
variants: {design: fraction, axes: {norm: [layernorm], block: [pre, post]}}
=> 1:37: variants.axes.norm: ... 'fraction' ...
variants: {axes: {layers: [40]}, match: parameters}
=> 1:28: variants.axes.layers[0]: 'layers=40' ...
variants: {axes: {attention: [gated_delta]}, match: kv_bytes}
=> 1:31: variants.axes.attention[0]: ... 'gated_delta' ...
data: {corpus: {name: files, path: one.txt}, documents: mask}
=> 1:57: data.documents: 'mask' ...
budget: bytes
controls: {positive: {data.tokenizer: bytes}}
data: {corpus: {name: files, path: many.jsonl}, tokenizer: chars, order: documents}
=> 2:39: controls.positive.data.tokenizer: a control changes the model or its training, ...
"""
#: Words of a command, and below them what it says.
COMMANDS = r"""
run x.yaml --wrkers=2
=> llama-ablate run: there is no option --wrkers; allowed: ... did you mean '--workers'? ...
run x.yaml --workers 0
=> llama-ablate: --workers 0: must be 1 or more
plan nothing.yaml
=> llama-ablate: nothing.yaml: No such file or directory
track . --to tensorbord
=> ... did you mean 'tensorboard'? ...
init component attention --to torch.py
=> ... hides what is called 'torch' already ...
run x.yaml --ray-address x:1
=> llama-ablate: --ray-address goes with --launcher ray, not local
run x.yaml --launcher slurm --slurm $'time=1\n#SBATCH --wrap=x'
=> ... is not KEY=VALUE or KEY ...
"""


def cases(table):
    """Yield what each case of a table gives, and what is said of it."""
    for given, said in re.findall(r"((?:^(?!=> ).+\n)+)^=> (.+)$", table, re.MULTILINE):
        yield pytest.param(given, said, id=given.strip())


@pytest.fixture
def refused(tmp_path, monkeypatch, capsys):
    """Give a command in a folder with a file; check that it is refused in this one line."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.txt").write_text(sentences(400), "utf-8")
    documents = (f"the cat {i} sat on the mat, and the dog {i * i} ran. " * 9 for i in range(40))
    lines = (json.dumps({"text": text}) + "\n" for text in documents)
    (tmp_path / "many.jsonl").write_text("".join(lines), "utf-8")

    def check(words, said, sections=""):
        keys = set(re.findall(r"^\w+", sections, re.MULTILINE))
        good = [line for line in GOOD.splitlines() if line.split(":")[0] not in keys]
        (tmp_path / "x.yaml").write_text(sections + "\n".join(good), "utf-8")
        before = sorted(tmp_path.rglob("*"))
        try:
            code = main(words)
        except SystemExit as stopped:
            code = stopped.code
        out, error = capsys.readouterr()
        assert (code, out, error.count("\n")) == (2, "", 1), error
        pattern = ".*".join(map(re.escape, re.split(r" *\.\.\. *", said)))
        assert re.fullmatch(pattern, error.strip()), error
        assert sorted(tmp_path.rglob("*")) == before

    return check


@pytest.mark.parametrize(("sections", "said"), [*cases(FILES)])
def test_a_mistake_in_a_file_is_told_at_its_place(refused, sections, said):
    refused(["plan", "x.yaml"], f"llama-ablate: x.yaml:{said}", sections)


@pytest.mark.parametrize(("sections", "said"), [*cases(FILES)][::24])
def test_a_run_of_a_file_with_a_mistake_writes_nothing(refused, sections, said):
    refused(["run", "x.yaml"], f"llama-ablate: x.yaml:{said}", sections)


@pytest.mark.parametrize(("words", "said"), [*cases(COMMANDS)])
def test_a_mistake_in_a_command_is_told_with_what_was_meant(refused, words, said):
    refused(shlex.split(words), said)
