"""The command `bench`: micro-benchmarks of components."""

from argparse import ArgumentParser, Namespace

from llama_ablate.commands.shared import options as shared
from llama_ablate.commands.shared.answer import Answer
from llama_ablate.commands.shared.options import count

HELP = "time a component alone and in a training step: naive, fused, compiled"
EXAMPLE = "bench norms --dim 4096 --rows 2048 --processes 3"


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the benchmark, its sizes, and the compute."""
    benches = ["norms", "feedforward", "mixers", "optimizers", "decode"]
    parser.add_argument("what", choices=benches)
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
    shared.add_device(parser)


def run(options: Namespace) -> Answer:
    """Time every case of a benchmark in turns, in several processes."""
    from dataclasses import asdict

    from llama_ablate import bench
    from llama_ablate.launch.environment import environment
    from llama_ablate.report import bench_tables
    from llama_ablate.terminal import Bar
    from llama_ablate.training.compute import pick_device

    setup = bench.Setup(
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
        tables = bench.run(options.what, setup, bar.update)
    values = {
        "bench": options.what,
        "setup": asdict(setup),
        "environment": environment(),
        "tables": [table.to_dict() for table in tables],
        "ratios": [ratio.to_dict() for ratio in bench.BENCHES[options.what].ratios(tables)],
    }
    return Answer(bench_tables.text(values), values)
