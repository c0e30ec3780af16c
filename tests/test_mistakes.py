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
#: Sections of a file, and below them the place and all that is said; `...` leaves something out.
FILES = """\
seed: 3
=> 1:7: seed: unknown key 'seed'; allowed: ... did you mean 'seeds'?
model: {norm: rmsnrm}
=> 1:15: model.norm: 'rmsnrm' is not a norm; allowed: ... did you mean 'rmsnorm'?
model: {position: {name: rope, tetha: 3.0}}
=> 1:39: model.position.tetha: unknown key 'tetha'; allowed: ... did you mean 'theta'?
model: {dim: big}
=> 1:14: model.dim: 'big' (text) is not accepted: it should be a whole number
model: {dim: 64, heads: 5}
=> 1:25: model.heads: 5 heads do not divide dim 64; allowed: 1, 2, 4, 8, 16, 32, 64
model: {attention: {name: gqa, kv_heads: 3}}
=> 1:9: model.attention: 8 query heads do not divide into 3 kv_heads
model: {dim: 12, heads: 4}
=> 1:1: model.position: rope turns pairs of coordinates: head_dim 3 is odd
train: {steps: 5, betas: [2, 3]}
=> 1:27: train.betas[0]: 2 (int) is not accepted: it should be less than 1
data: {corpus: {name: files, path: no.txt}}
=> 1:8: data.corpus: there is no file 'no.txt'
measure: [perplexty]
=> 1:11: measure[0]: 'perplexty' is not a metric; allowed: ... did you mean 'perplexity'?
train: {steps: 1, batch: 4096}
=> 4:8: data.corpus: the train split has 9,029 tokens, smaller than one batch of 65,537
model: {layers: 2, attention: {pattern: [mha, mqa, gqa]}}
=> 1:32: model.attention.pattern: a pattern of 3 components is longer than 2 layers
model: {attention: [mha, mqa]}
=> 1:9: model.attention: ['mha', 'mqa'] is a list: components over depth are written ...
model: {attention: {pattern: [mha, {name: mha, window: 0}]}}
=> 1:9: model.attention: 'mha window=0' of the pattern: window 0: a token sees itself at ...
model: {layers: 3, attention: {pattern: [mha], layers: {1: {name: gqa, kv_heads: two}}}}
=> 1:82: model.attention.layers.1.kv_heads: 'two' (text) is not accepted: it should be a ...
train: {steps: 2, optimizer: {pattern: [adamw, muon]}}
=> 1:19: train.optimizer: an optimizer is one component here, not a pattern
model: {position: {pattern: [rope, sinusoidal]}}
=> 1:9: model.position: 'sinusoidal' is added to the embeddings, before the first layer: it ...
model: {feedforward: {name: moe, experts: 4, top_k: 5}}
=> 1:9: model.feedforward: top_k 5: must be from 1 to the 4 experts
data: {corpus: {name: files, path: empty.txt}}
=> 1:8: data.corpus: the file 'empty.txt' is empty
variants: {axes: {train.optimizer: [muon, {name: muon, momentum: 0.95}]}}
=> 1:43: variants.axes.train.optimizer[1]: 'muon' is the same variant as 'muon'
tune: {optimizer: [adamw, moun]}
=> 1:27: tune.optimizer[1]: 'moun' is not an optimizer; allowed: ... did you mean 'muon'?
train: {steps: 60, batch: 4, schedule: wsd, branches: [0.5]}
variants: {axes: {train.schedule: [linear]}}
=> 2:36: variants.axes.train.schedule[0]: 'branches' need the schedule 'wsd', not 'linear'
variants: {axes: {train.evals: [64]}}
=> 1:19: variants.axes.train.evals: 'train.evals' cannot vary ... did you mean 'train.lr'?
tune: {lr: [1e-3, 1e-2]}
measure: [gradients]
=> 2:1: measure: what is tuned is chosen by the validation loss: 'measure' needs 'perplexity'
variants: {design: list, entries: [{label: x}, {label: A/A, norm: layernorm}]}
controls: {aa: both}
=> 2:16: controls.aa: two variants have the label 'A/A'
variants: {design: path, axes: {norm: [layernorm]}, baseline: +layernorm}
=> 1:63: variants.baseline: a path starts at its baseline: it takes no 'baseline'
train: {steps: 60, batch: 4, compile: always}
model: {dropout: 0.1}
=> 1:39: train.compile: 'baseline' has dropout, which is not compiled: say compile: never
controls: {positive: {train.lr: 1e-5}}
tune: {lr: [1e-3, 1e-2]}
margin: 0.02 nats
=> 1:33: controls.positive.train.lr: 'lr' is tuned, so 'positive control' cannot set it
controls: {aa: both}
seeds: 1
=> 2:8: seeds: an A/A arm needs an interval, and an interval two seeds or more
controls: {positive: {norm: none}}
=> 1:12: controls.positive: needs a 'margin', such as '0.02 nats': the control must harm by ...
model: {dim: 32, heads: 4, norm: rmsnrm}
sizes: {models: [{dim: 16}, {dim: 32}]}
=> 1:34: model.norm: 'rmsnrm' is not a norm; allowed: ... did you mean 'rmsnorm'?
model: {dim: 32, heads: 4}
sizes: {models: [{dim: 16}, {dim: 18}]}
=> 2:29: sizes.models[1]: 4 heads do not divide dim 18; allowed: 1, 2, 3, 6, 9, 18
sizes: {models: [{}, {dim: 16}]}
=> 1:18: sizes.models[0]: a size changes dim, layers, heads or head_dim
variants: {axes: {context: [5]}}
=> 1:29: variants.axes.context[0]: 5 does not divide the base's context of 16, which is the ...
measure: [{name: cloze, task: minimalpairs}]
=> 1:31: measure[0].task: 'minimalpairs' is neither a task nor ... did you mean 'minimal-pairs'?
guard: {metric: cloze, worse_by: 1%}
=> 1:1: guard[0].metric: 'cloze' is not measured: add it to 'measure'
guard: {metric: kv_cache, worse_by: 3}
=> 1:37: guard.worse_by: '3': must be a number and its unit: '0.01 nats', '5%' of the ...
guard: {metric: gradients, worse_by: 1%}
measure: [perplexity, gradients]
=> 1:1: guard[0]: 'gradients' says of none of its numbers which is worse: name one by ...
guard: {metric: kv_cache, worse_by: 1%}
seeds: 1
=> 2:8: seeds: a guard needs an interval, and an interval two seeds or more
measure: [perplexity, {name: kv_cache, context: -5}]
=> 1:49: measure[1].context: kv_cache: context -5 must be from 1 to the text's 9,029 tokens
variants: {axes: {train.losses: [[z_loss]]}}
budget: flops
=> 1:34: variants.axes.train.losses[0]: 'losses=z_loss': what these losses compute is not ...
model: {vocab: 300}
=> ...: model.vocab: the tokenizer has ... tokens, which is the vocabulary: leave this out
seeds: 0
=> 1:8: seeds: 0: must be from 1 to 1,000, or a list of seeds
seeds: [1, 1]
=> 1:1: seeds: [1, 1] names '1' twice
seeds: []
=> 1:1: seeds: [] is empty: name one or more
model: {dim: 64.0}
=> 1:14: model.dim: 64.0 (float) is not accepted: it should be a whole number; write 64
margin: 0 nats
=> 1:9: margin: '0 nats': must be a number above 0 and its unit, as '0.01 nats'
seeds: {looks: [1, 3]}
=> 1:9: seeds.looks: [1, 3]: must be numbers of seeds that grow, the first 2 or more, the ...
seeds: {looks: [3, 6], spend: [0.5, 0.6]}
=> 1:24: seeds.spend: [0.5, 0.6]: must be 2 shares above 0, one for each look, that sum to 1 ...
race: 2
=> 1:7: race: a race is between tuned points: it needs 'tune'
tune: {lr: [1.0, 2.0]}
race: 1
seeds: [1_000_000]
=> 3:1: seeds: the seeds from 1,000,000 on are those of the race, which are not reported
tune: {lr: [1.0, 2.0]}
seeds: {looks: [2, 3]}
=> 2:1: seeds: looks need tuned points that are fixed before the first look: give 'race', ...
variants: {design: path, axes: {norm: [rmsnorm]}}
seeds: {looks: [2, 3]}
=> 2:1: seeds: looks stop variants one by one, and design 'path' needs all of them with the ...
train: {}
=> 1:1: train: needs 'tokens' or 'steps', or 'sizes' needs 'tokens_per_parameter': how long a ...
train: {steps: 1, tokens: 5}
=> 1:1: train: takes one of 'tokens' and 'steps': how long a run trains
train: {steps: 1, batch: 6, accumulate: 4}
=> 1:41: train.accumulate: batch 6 does not divide into 4 parts
variants: {axes: {data.documents: [masks]}}
=> 1:36: variants.axes.data.documents[0]: 'masks' is not allowed here ... did you mean 'mask'?
variants: {axes: {train.precision: [auto]}}
=> 1:37: variants.axes.train.precision[0]: where the precision varies, each is stated in ...
variants: {axes: {train.batch: [3]}}
parallel: {data: 2}
=> 1:33: variants.axes.train.batch[0]: 2 processes cannot share 3 rows evenly
tune: {batch: [4, 8]}
=> 1:8: tune.batch: 'batch' is not a key of train that may vary; allowed: betas, clip, decay, ...
variants: {axes: {data.mixture: [{ships: 0}]}}
=> 1:34: variants.axes.data.mixture[0]: the weights of a mixture sum to nothing: give one above 0
variants: {axes: {data.mixture: [{ship: 1}]}}
=> 1:41: variants.axes.data.mixture[0].ship: 'ship' is none of the sources ... did you mean 'ships'?
variants: {axes: {data.mixture: [{ships: 1}]}}
data: {corpus: {name: files, path: many.jsonl}, sources: {ships: recall}, order: documents}
=> 1:34: variants.axes.data.mixture[0]: a mixture is of windows: it takes no 'order: documents'
variants: {axes: {data.tokenizer: [bytes]}}
budget: bytes
data: {corpus: {name: files, path: many.jsonl}, tokenizer: chars, order: windows}
=> 1:36: variants.axes.data.tokenizer[0]: variants of several tokenizers are paired by ...
variants: {axes: {data.tokenizer: [bytes]}}
data: {corpus: {name: files, path: many.jsonl}, tokenizer: chars, order: documents}
=> 1:1: budget: a token is not the same text for every tokenizer; allowed: bytes, flops, seconds
variants: {axes: {data.tokenizer: [bytes]}}
budget: bytes
margin: 0.1 nats
data: {corpus: {name: files, path: many.jsonl}, tokenizer: chars, order: documents}
=> 3:9: margin: '0.1 nats': losses compare in bits/byte here, as variants differ in their ...
variants: {axes: {data.tokenizer: [bytes]}}
budget: bytes
sizes: {models: [{dim: 16}, {dim: 32}]}
seeds: 2
data: {corpus: {name: files, path: many.jsonl}, tokenizer: chars, order: documents}
=> 1:36: variants.axes.data.tokenizer[0]: the laws of a ladder are in nats per token of one ...
variants: {axes: {data.tokenizer: [bytes]}}
budget: bytes
controls: {positive: {data.tokenizer: bytes}}
data: {corpus: {name: files, path: many.jsonl}, tokenizer: chars, order: documents}
=> 3:39: controls.positive.data.tokenizer: a control changes the model or its training, not ...
variants: {axes: {nrom: [x]}}
=> 1:19: variants.axes.nrom: 'nrom' cannot vary; allowed: ... did you mean 'norm'?
variants: {axes: {norm: []}}
=> 1:19: variants.axes.norm: an axis needs at least one value
variants: {axes: {norm: [{name: rmsnorm, esp: 1}]}}
=> 1:47: variants.axes.norm[0].esp: unknown key 'esp'; allowed: eps; did you mean 'eps'?
variants: {axes: {dim: [{label: wide, dim: 64}]}}
=> 1:25: variants.axes.dim[0]: a value with a label is {label: ..., value: ...}, not ...
variants: {axes: {dim: [{label: a, value: 64}, {label: a, value: 96}]}}
=> 1:48: variants.axes.dim[1]: two variants have the label 'a'
variants: {axes: {attention.kv_heads: [1]}}
=> 1:40: variants.axes.attention.kv_heads[0]: 'mha' has no option 'kv_heads'; it is an ...
variants: {design: product, axes: {attention: [{pattern: [mqa, mha]}], attention.window: [4]}}
=> 1:91: variants.axes.attention.window[0]: 'attention' is a pattern here, so 'window' is an ...
variants: {design: product, axes: {norm: [none, dyt], block: [pre, post]}, exclude: [{norm: nonee}]}
=> 1:93: variants.exclude[0].norm: 'nonee' is no value of the axis 'norm' ... did you mean 'none'?
variants: {design: product, axes: {norm: [none, dyt], block: [pre, post]}, exclude: [{}]}
=> 1:86: variants.exclude[0]: names no combination: give values of axes
variants:
  design: product
  axes: {norm: [none, dyt], block: [pre, post]}
  exclude: [{block: pre}, {block: post}]
=> 4:3: variants.exclude: leaves no combination
variants: {design: product, axes: {norm: [rmsnorm], block: [pre]}}
=> 1:29: variants.axes: one variant, so there is nothing to ...
variants: {axes: {norm: [rmsnorm]}}
=> 1:12: variants.axes: one variant, so there is nothing to compare: write ...
variants: {design: fraction, axes: {norm: [layernorm], block: [pre, post]}}
=> 1:37: variants.axes.norm: design 'fraction' needs two values on every axis, not 1
model: {attention: {name: gqa, kv_heads: 2}}
variants: {axes: {attention.kv_heads: [3]}}
=> 2:40: variants.axes.attention.kv_heads[0]: 8 query heads do not divide into 3 kv_heads
variants: {axes: {layers: [40]}, match: parameters}
=> 1:28: variants.axes.layers[0]: 'layers=40' cannot be matched to the baseline within 0.5%: ...
variants: {axes: {attention: [gated_delta]}, match: kv_bytes}
=> 1:31: variants.axes.attention[0]: a further token adds no bytes to what 'gated_delta' ...
variants: {axes: {context: [8]}}
=> 1:29: variants.axes.context[0]: variants of several contexts are paired by documents: give ...
variants: {axes: {norm: [layernorm], block: [post]}, exclude: [{norm: layernorm}]}
=> 1:54: variants.exclude: 'exclude' leaves combinations out of design 'product', not ...
data: {corpus: {name: files, path: one.txt}, documents: mask}
=> 1:57: data.documents: 'mask' keeps documents apart, and these tokens are one document: the ...
evaluation: {documents: [mask]}
data: {corpus: {name: files, path: one.txt}, tokenizer: bytes}
=> 1:14: evaluation.documents: 'mask' keeps documents apart, and these tokens are one ...
train: {steps: 2, warmup: 100}
=> 1:27: train.warmup: 100 is no share of the steps, as 0.05 is; allowed: 0 to 1
train: {tokens: 20q}
=> 1:17: train.tokens: '20q' (text) is not accepted: it should be a whole number"""
#: Words of a command, and below them all that it says.
COMMANDS = r"""
--nope
=> llama-ablate: there is no option --nope; ...
rnu x.yaml
=> ... there is no 'rnu'; allowed: ... did you mean 'run'? (see llama-ablate --help)
run
=> llama-ablate run: ...
run x.yaml --wrkers=2
=> llama-ablate run: there is no option --wrkers; allowed: ... did you mean '--workers'? ...
run x.yaml --workers 0
=> llama-ablate: --workers 0: must be 1 or more
plan x.yaml y.yaml
=> llama-ablate plan: one argument too many: y.yaml ...
plan x.yaml --device gpu
=> ... did you mean 'cuda'? ...
plan nothing.yaml
=> llama-ablate: nothing.yaml: No such file or directory
plan x.yaml --power 0.01
=> llama-ablate plan: there is no option --power; '--power' is gone: `plan` prints ...
status nowhere
=> ... there is no folder 'nowhere' ...
report .
=> ... holds no results ...
track . --to tensorbord
=> ... did you mean 'tensorboard'? ...
summary llama3-8
=> ... 'llama3-8' is not a preset; allowed: ... did you mean 'llama3-8b'? ...
summary llama3-8b --context 0
=> ... '0' is not a whole number from 1 ...
summary llama3-8b --set "model.attention={name: gqa, kv_heads: 5}"
=> ... 32 query heads do not divide into 5 kv_heads ...
summary llama3-8b --set train.lr=1
=> ... unknown key 'train' ...
init norm --to x.yaml
=> ... 'x.yaml' is there already ...
init component attenton
=> ... did you mean 'attention'? ...
init component attention --to mine.txt
=> ... must be a name of Python's and end in ...
init component attention --to my-heads.py
=> ... as my_attention.py ...
init component attention --to torch.py
=> ... hides what is called 'torch' already ...
init component attention --to no/such/mine.py
=> ... cannot be written ...
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
    (tmp_path / "empty.txt").write_text("", "utf-8")
    (tmp_path / "binary.bin").write_bytes(bytes(range(256)))
    documents = (f"the cat {i} sat on the mat, and the dog {i * i} ran. " * 9 for i in range(40))
    lines = (json.dumps({"text": text}) + "\n" for text in documents)
    (tmp_path / "many.jsonl").write_text("".join(lines), "utf-8")

    def check(words, said, sections=""):
        keys = {"data"} if "texts:" in sections else set()
        keys |= set(re.findall(r"^\w+", sections, re.MULTILINE))
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
