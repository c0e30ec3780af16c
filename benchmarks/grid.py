"""Time a whole experiment against the same runs in a plain `transformers` training loop.

    python benchmarks/grid.py
    python benchmarks/grid.py --steps 120 --rounds 3
    python benchmarks/grid.py --shape 128x4x128 --steps 500 --rounds 1 --compile always

The experiment has six runs of a Llama: multi-head, grouped-query and multi-query attention, with
two seeds each. The command `llama-ablate run` is timed as users start it, with all its processes:
it chooses the compute settings, trains with learning curves, and saves weights and records. The
plain loop has transformers' defaults (float32, all threads), trains one run at a time, and saves
nothing. Both are timed as whole processes, in interleaved rounds.
"""

import argparse
import compileall
import json
import statistics
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from llama_ablate.config import experiment
from llama_ablate.design.plan import make as plan
from llama_ablate.training.timing import interleave, seconds_of

YAML = """\
name: grid
question: How many tokens a second does a whole grid train?
base: llama2-tiny
model: {{dim: {dim}, layers: {layers}, heads: {heads}, context: {context}, tie: {tie}}}
data: {{tokenizer: {tokenizer}}}
variants:
  design: one-at-a-time
  axes: {{attention: [{{name: gqa, kv_heads: 2}}, mqa]}}
train: {{steps: {steps}, batch: {batch}, lr: 1.0e-3, evals: 1, compile: {compile}}}
seeds: 2
measure: [kv_cache]
"""


BYTES = {"context": 256, "batch": 8, "tokenizer": "bytes", "tie": "false"}
SHAPES = {
    "128x4x256": {"dim": 128, "layers": 4, "heads": 4, **BYTES},
    "256x6x256": {"dim": 256, "layers": 6, "heads": 8, **BYTES},
    "128x4x128": {  # the shape of experiments/prose.yaml
        "dim": 128,
        "layers": 4,
        "heads": 4,
        "context": 128,
        "batch": 32,
        "tokenizer": "{name: bpe, vocab: 2048}",
        "tie": "true",
    },
}


def main() -> None:
    """Time both in interleaved rounds; print medians, the ratio, and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=SHAPES, default="128x4x256")
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps of each run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compile", choices=["never", "always"], default="never")
    parser.add_argument("--plain", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plain:
        plain_loop(options.plain)
        return
    compileall.compile_dir("llama_ablate", quiet=1)  # as for an installed package
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "grid.yaml"
        file.write_text(YAML.format(**vars(options), **SHAPES[options.shape]), "utf-8")
        (table,) = plan(experiment.load(file)).tables  # also caches the tokens
        total = len(table.runs) * table.tokens_per_run

        def afresh() -> float:
            results = tempfile.mkdtemp(dir=folder)
            return _seconds("-m", "llama_ablate", "run", str(file), "--results", results)

        contestants = {
            "llama_ablate": afresh,
            "transformers": lambda: _seconds(__file__, "--plain", str(file)),
        }
        times, errors = interleave(contestants, options.rounds)
        if errors:
            raise next(iter(errors.values()))
    medians = {name: statistics.median(taken) for name, taken in times.items()}
    for name, seconds in medians.items():
        print(f"{name:14s} {seconds:7.1f} s  {total / seconds:9,.0f} tokens/s")
    ratio = medians["transformers"] / medians["llama_ablate"]
    print(f"{options.shape}: ratio {ratio:.2f}  ({total:,} tokens in {len(table.runs)} runs)")
    print(json.dumps({"tokens": total, "seconds": times, "ratio": ratio}))


def _seconds(*arguments: str) -> float:
    command = [sys.executable, *arguments]
    run = partial(subprocess.run, command, check=True, capture_output=True)
    return seconds_of(run, lambda: None)


def plain_loop(file: Path) -> None:
    """Train every run of an experiment file with transformers, one after another."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    planned = plan(experiment.load(file))
    (table,), train = planned.tables, planned.experiment.train
    specs = {variant.id: variant.spec for variant in table.variants}
    for run in table.runs:
        spec = specs[run.variant]
        torch.manual_seed(run.seed)
        kv_heads = {"mha": spec.heads, "gqa": 2, "mqa": 1}[spec.attention.name]
        config = LlamaConfig(
            vocab_size=spec.vocab,
            hidden_size=spec.dim,
            num_hidden_layers=spec.layers,
            num_attention_heads=spec.heads,
            num_key_value_heads=kv_heads,
            intermediate_size=32 * -(-int(8 * spec.dim / 3) // 32),
            max_position_embeddings=spec.context,
            tie_word_embeddings=spec.tie,
            use_cache=False,
        )
        model = LlamaForCausalLM(config)
        optimizer = torch.optim.AdamW(model.parameters(), lr=train.lr)
        for k in range(table.steps):
            batch = torch.from_numpy(
                table.text.opened["corpus"].batch(run.seed, k, train.batch, spec.context)
            )
            loss = model(batch[:, :-1], labels=batch[:, :-1]).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), train.clip)
            optimizer.step()
            optimizer.zero_grad()


if __name__ == "__main__":
    main()
