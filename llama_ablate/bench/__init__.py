"""A component timed alone and inside a training step: naive, fused and compiled, side by side.

What the source documents said stands beside what was measured. All cases of a table take turns in
one process, with a control that tells what the machine's memory or arithmetic allows.
"""

from llama_ablate.bench import decode, feedforward, norms

BENCHES = {"norms": norms.run, "feedforward": feedforward.run, "decode": decode.run}
