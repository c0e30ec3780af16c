"""Makes broken experiment files of whole ones: byte by byte, line by line, word by word, as trees.

A number makes a file, always the same one, so that a failure can be made again from its number.
"""

import json
import random
import re
from collections.abc import Iterator, Sequence
from typing import Any

from llama_ablate.config.marked_yaml import parse

#: Words that mean something, so that a mutant gets further than the first check.
_WORDS = """
name question base model variants data texts train budget tune sizes controls seeds margin
race looks spend
hypotheses measure dim layers heads head_dim context vocab bias tie init_std logit_softcap norm
position attention feedforward block design axes entries match baseline label corpus tokenizer
tokens steps batch accumulate lr min_lr warmup weight_decay betas eps clip schedule decay branches
precision kernel evals timeout_s train.lr train.warmup train.betas models
tokens_per_parameter aa positive variant against value direction table minus source said claims
one-at-a-time product fraction path list parameters flops kv_bytes none seconds same inverse-dim
init order both better worse lower higher equivalent rmsnorm layernorm dyt rope learned alibi t5
sinusoidal mha gqa mqa mla relu gelu swiglu linear pre post sandwich parallel theta scaling factor
fraction nope_every ntk llama3 kv_heads window qk_norm softcap latent rope_dim width multiple_of
multiplier residual python-stdlib files hub lag-copy mqar recall bytes chars bpe path splits
optimizer adamw muon lion momentum nesterov adam_lr constant fall
field cosine wsd auto float32 math perplexity excess_loss kv_cache train_speed length times
llama2-tiny transformer-2017 llama3-8b gpt2-xl base.yaml true false null
"""
_NUMBERS = """
0 1 2 3 -1 -0 7 64 65536 65537 1048576 1_000 1_ 1__0 _1 1000 1001 4294967296 999999999999
99999999999999999999999999999 1000000000000000000000000000000000000 0.5 2.5 .5 5. -.5 1e-4 1e4 1E+4
1e400 -1e400 1e308 5e-324 1e-400 .inf -.inf .nan NaN Infinity 0x10 0o17 017 0b1 1:30 190:20:30
2026-01-01 +3 1e 1e+ 1.5.2 4,5
"""
#: What a key may hold, or nearly: what makes a mutant that means something new.
_SAMPLES = """
design = one-at-a-time | product | fraction | path | list
axes = {norm: [layernorm, dyt]} | {layers: [1, 2, 3], heads: [2, 4]} | {train.lr: [1e-3, 1e-2]}
axes = {attention: [gqa, mqa, mla], block: [post]} | {dim: [16, 32, 48]} | {head_dim: [8, 16, 32]}
axes = {position: [rope, {name: rope, theta: 5e5}, t5], bias: [true, false], tie: [true]}
axes = {feedforward: [{name: relu, width: 64}, {name: swiglu, multiple_of: 64}]}
axes = {logit_softcap: [30, null], train.betas: [[0.9, 0.99]]} | {init_std: [0.1]}
entries = [{label: a}, {label: b, norm: dyt}] | [{}, {layers: 3}] | [{heads: 8, label: 3}]
match = parameters | flops | kv_bytes | none | [parameters, flops] | [kv_bytes, none]
match = active_parameters | [active_parameters, parameters]
budget = tokens | flops | seconds | [tokens, flops, seconds]
controls = {aa: both} | {aa: [init, order]} | {positive: {norm: none}}
controls = {aa: none, positive: {train.lr: 1e-5, feedforward: linear}}
tune = {lr: [1e-3, 1e-2]} | {warmup: [0, 0.1], clip: [0, 1]} | {schedule: [cosine, linear]}
tune = {betas: [[0.9, 0.95], [0.8, 0.9]]} | {optimizer: [adamw, {name: muon, momentum: 0.9}]}
axes = {train.optimizer: [adamw, muon, {name: muon, nesterov: false}], train.schedule: [linear]}
optimizer = lion | {name: muon, adjust: original, adam_lr: 0.1} | {name: lion, beta1: 0}
sizes = {models: [{dim: 32}, {dim: 64}]} | {models: [{layers: 1}, {layers: 2}], lr: inverse-dim}
sizes = {models: [{dim: 64}, {dim: 32}], tokens_per_parameter: 20}
seeds = 1 | 2 | [0, 5, 4294967295] | 1000 | {looks: [2, 4]} | {looks: [3, 6], spend: [1, 0]}
seeds = {looks: [2, 3, 1000], spend: [0.2, 0.3, 0.5]}
race = 1 | 2 | 10 | 11
margin = 0.01 nats | 5% | 0.1 points
baseline = baseline | rope | A/A
model = {dim: 32, layers: 1, heads: 2} | {head_dim: 7, position: alibi} | {attention: mla, dim: 128}
train = {steps: 5} | {tokens: 1e5} | {steps: 999999999999, lr: 1e30, warmup: 0}
train = {tokens: 100_000, schedule: wsd, branches: [0.5, 0.75]}
train = {steps: 5, losses: [z_loss, {name: z_loss, weight: 3}]} | {steps: 5, losses: z_loss}
losses = [] | z_loss | [z_loss, z_loss] | [{name: z_loss, weight: -1}]
feedforward = moe | {name: moe, experts: 2, top_k: 3} | {name: moe, inner: moe, capacity: 0}
measure = [perplexity] | [] | [gradients, {name: length, times: [1, 2]}] | [excess_loss]
hypotheses = [{variant: baseline, direction: lower, measure: test_loss_nats, value: 3}]
hypotheses = [{variant: A/A, direction: equivalent, margin: 0.1 nats}]
data = {corpus: recall, tokenizer: chars} | {corpus: files, tokenizer: {name: bpe, vocab: 300}}
texts = [{corpus: recall, tokenizer: chars}, {corpus: files, name: second}]
base = base.yaml | gpt2-small | llama3-8b | transformer-2017 | llama3.1-405b
norm = rmsnorm | {name: layernorm, eps: 1e-6} | {name: dyt, slope: 2}
attention = mla | {name: gqa, kv_heads: 1} | {name: mha, window: 4, softcap: 50}
position = rope | none | {name: rope, fraction: 0.5} | {name: rope, scaling: ntk, factor: 4}
"""
#: What nobody should write, a line each.
_STRANGE = r"""
~
''
""
[]
{}
[[]]
[~]
{a: 1}
no
Off
YES
Null
!
!!str
!!float
*
&
|
>
%
@
`
-
?
:
,
[1, [2, [3]]]
{name: {name: rope}}
{name: [rope]}
'1e-3'
"no"
"a\nb"
"\0"
"\x07\x1b[31m"
"\ud800"
"\U00110000"
"\q"
"\r\n"
'<script>alert(1)</script>'
"</script><img src=x onerror=alert(1)>"
'../../../etc/passwd'
/dev/zero
../x.yaml
~/x.yaml
&a 1
*a
!!python/object/apply:os.system [ls]
!!python/name:os.system
!!binary aGk=
!!set {a}
<<
=
{<<: {a: 1}}
x: y
# x
---
...
羊驼 é 🦙
"""
WORDS, NUMBERS = _WORDS.split(), _NUMBERS.split()
SAMPLES: dict[str, list[str]] = {}
for _line in _SAMPLES.strip().splitlines():
    _name, _values = _line.split(" = ")
    SAMPLES.setdefault(_name, []).extend(_values.split(" | "))
STRANGE = [
    *_STRANGE.strip().splitlines(),
    "",
    "\t",
    "\x85",
    "'a\u2028b'",
    "'\u202e'",
    "|\n  x\n y",
    "-" * 50,
    "9" * 5000,
    "1" * 300 + "x",
    "[" * 1000,
    "[" * 1000 + "]" * 1000,
    "{a: " * 1000 + "1" + "}" * 1000,
    "x" * 2000,
    "'" + "x" * 2000 + "'",
    "[" + "1, " * 2000 + "1]",
    str(list(range(2000))),
    "{" + ", ".join(f"k{i}: {i}" for i in range(500)) + "}",
]
BYTES = [
    *(bytes([byte]) for byte in b"\0\r\n\t\x7f\x85\xff&*!'\"{}[]#,\\|>%@`"),
    b"\xfe\xff",
    b"\xed\xa0\x80",
    b"\xc0\x80",
    b"\xef\xbb\xbf",
    b"\xe2\x80\xa8",
    b"\r\n",
    b"\x1b[2J",
    b": ",
    b"- ",
    b"? ",
    b"%YAML 9.9\n",
    b"---\n",
    b"...\n",
]


class Raw(str):
    """A piece of a tree that is written as it stands, whatever it is."""

    __slots__ = ()


def mutant(number: int, files: Sequence[str]) -> bytes:
    """Return the broken file of a number."""
    rng = random.Random(number)
    text = rng.choice(files)
    kind = rng.random()
    if kind < 0.6:
        text = _as_tree(rng, text)
    else:
        for _ in range(rng.choice((1, 1, 2, 3))):
            text = (_words if kind < 0.8 else _lines)(rng, text)
    data = text.encode("utf-8", "surrogatepass")
    if rng.random() < 0.15:
        for _ in range(rng.choice((1, 1, 2, 8))):
            data = _bytes(rng, data)
    return data


def _bytes(rng: random.Random, data: bytes) -> bytes:
    at, end = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    end = min(end, at + rng.choice((1, 1, 2, 40)))
    return rng.choice(
        (
            lambda: data[:at] + data[end:],
            lambda: data[:at] + rng.choice(BYTES) + data[at:],
            lambda: data[:at] + rng.choice(BYTES) + data[end:],
            lambda: data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :],
            lambda: data[:end] + data[at:],
            lambda: data[:at],
        )
    )()


def _lines(rng: random.Random, text: str) -> str:
    lines = text.splitlines()
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    change = rng.randrange(8)
    if change == 0:
        del lines[at]
    elif change == 1:
        lines.insert(other, lines[at])
    elif change == 2:
        lines[at], lines[other] = lines[other], lines[at]
    elif change == 3:
        lines[at] = " " * rng.randrange(1, 5) + lines[at]
    elif change == 4:
        lines[at] = lines[at].lstrip()
    elif change == 5:
        lines[at] = "\t" + lines[at]
    elif change == 6:
        lines[at : at + 2] = [" ".join(lines[at : at + 2])]
    else:
        key = lines[at].split(":")[0]
        lines[at] = f"{key}: {_value(rng)}"
    return "\n".join(lines) + "\n"


def _words(rng: random.Random, text: str) -> str:
    words = re.findall(r"[\w.+-]+|\s+|.", text)
    at, other = rng.randrange(len(words)), rng.randrange(len(words))
    change = rng.randrange(5)
    if change == 0:
        del words[at]
    elif change == 1:
        words.insert(other, words[at])
    elif change == 2:
        words[at], words[other] = words[other], words[at]
    else:
        said = [i for i, word in enumerate(words) if word[0].isalnum()]
        words[rng.choice(said) if said else at] = _value(rng)
    return "".join(words)


def _value(rng: random.Random) -> str:
    return rng.choice(rng.choice((WORDS, WORDS, NUMBERS, STRANGE)))


def _as_tree(rng: random.Random, text: str) -> str:
    tree = parse(text, "seed").values
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        places = list(_places(tree))
        if not places:
            break
        known = [place for place in places if place[1] in SAMPLES]
        holder, key = rng.choice(known if known and rng.random() < 0.5 else places)
        _graft(rng, tree, holder, key, places)
    return "".join(f"{_key(key)}: {_written(value)}\n" for key, value in tree.items())


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place of a tree: what holds it, and its key there."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in list(items):
        yield value, key
        if isinstance(inner, dict | list):
            yield from _places(inner)


def _graft(rng: random.Random, tree: Any, holder: Any, key: Any, places: list[Any]) -> None:
    change = rng.randrange(12)
    old = holder[key]
    if change == 0:
        del holder[key]
    elif change == 1 and isinstance(holder, list):
        holder.insert(key, old)
    elif change == 2:
        other, there = rng.choice(places)
        # By value: a tree that holds itself has no end.
        holder[key] = Raw(_written(other[there]))
    elif change == 3 and isinstance(holder, dict):
        del holder[key]
        holder[rng.choice((*WORDS, "", "a b", "int", "list[int]", "\n", "<<", "0"))] = old
    elif change == 4:
        holder[key] = rng.choice(([old], [old, old], {"name": old}, {key: old}, [[old]]))
    elif change == 5:
        target = rng.choice((tree, holder)) if isinstance(holder, dict) else tree
        name = rng.choice(list(SAMPLES) if rng.random() < 0.8 else WORDS)
        target[name] = Raw(_sample(rng, name))
    elif change == 6 and isinstance(old, bool | int | float):
        holder[key] = Raw(rng.choice(NUMBERS))
    elif change == 7 and isinstance(old, str):
        holder[key] = rng.choice(WORDS)
    elif change >= 8:
        holder[key] = Raw(_sample(rng, key))
    else:
        holder[key] = Raw(_value(rng))


def _sample(rng: random.Random, key: Any) -> str:
    """Return what a key might hold; for a key that has no samples, anything."""
    return rng.choice(SAMPLES[key]) if key in SAMPLES else _value(rng)


def _written(value: Any) -> str:
    if isinstance(value, Raw):
        return value
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_key(key)}: {_written(v)}" for key, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_written, value)) + "]"
    if isinstance(value, str) and re.fullmatch(r"[a-z][\w.-]*", value):
        return value
    return json.dumps(value, ensure_ascii=False)


def _key(key: Any) -> str:
    return key if re.fullmatch(r"[\w.-]+", str(key)) else json.dumps(key)
