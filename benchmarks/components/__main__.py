"""Time a component alone and in a training step: naive, fused, compiled.

python -m benchmarks.components norms --dim 4096 --rows 2048 --processes 3
"""

import argparse
from dataclasses import asdict
from typing import Any, get_args

from benchmarks.components import BENCHES, run, tables
from benchmarks.components.timing import Setup
from llama_ablate.commands.shared.options import DEVICE, Device, count
from llama_ablate.errors import ConfigError
from llama_ablate.files.strict_json import to_line
from llama_ablate.launch.environment import environment
from llama_ablate.terminal import Bar
from llama_ablate.training.compute import pick_device


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.components", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("what", choices=list(BENCHES))
    parser.add_argument("--dim", type=count, default=1024, help="width of a vector (1024)")
    parser.add_argument("--rows", type=count, default=4096, help="vectors, or tokens (4096)")
    parser.add_argument(
        "--processes", type=count, default=5, help="fresh processes, one after another (5)"
    )
    parser.add_argument("--rounds", type=count, default=15, help="timed rounds of each (15)")
    parser.add_argument(
        "--threads",
        type=int,
        choices=range(1, 1025),
        metavar="N",
        default=1,
        help="CPU threads (1)",
    )
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--no-compile", action="store_true", help="without torch.compile")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--device", choices=get_args(Device), default="auto", help=DEVICE)
    return parser


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Time a benchmark in several processes; return set-up, environment, tables and ratios.

    Raises ConfigError if the device is not available, or the memory too small.
    """
    setup = Setup(
        device=pick_device(options.device),
        dtype=options.dtype,
        threads=options.threads,
        dim=options.dim,
        rows=options.rows,
        processes=options.processes,
        rounds=options.rounds,
        compiled=not options.no_compile,
    )
    with Bar(f"bench {options.what}, processes") as bar:
        timed = run(options.what, setup, bar.update)
    return {
        "bench": options.what,
        "setup": asdict(setup),
        "environment": environment(),
        "tables": [table.to_dict() for table in timed],
        "ratios": [ratio.to_dict() for ratio in BENCHES[options.what].ratios(timed)],
    }


def main(arguments: list[str] | None = None) -> None:
    """Run a benchmark, and print its tables, or with `--json` one JSON document."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        values = measured(options)
    except ConfigError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    print(to_line(values, nulls=True) if options.json else tables.text(values))


if __name__ == "__main__":
    main()
