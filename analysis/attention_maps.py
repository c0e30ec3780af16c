"""Draw attention maps saved by `llama-ablate attention`: one head, or a layer's heads.

python analysis/attention_maps.py attention/attention.npz --layer 0 --head 3
python analysis/attention_maps.py attention/attention.npz --layer 1 --out layer-1
"""

import argparse
from pathlib import Path

from llama_ablate.errors import ConfigError
from llama_ablate.interop.attention_figures import AttentionMaps
from llama_ablate.report.pictures import save


def main() -> None:
    """Read the arrays, write one figure, and print each head's mean attention distance."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("maps", type=Path, help="attention.npz")
    parser.add_argument("--layer", type=int, default=0)
    parser.add_argument("--head", type=int, help="without it, all heads of the layer")
    parser.add_argument("--out", type=Path, default=Path("attention_map"))
    options = parser.parse_args()
    try:
        maps = AttentionMaps.load(options.maps)
        one = options.head is not None
        figure = maps.head(options.layer, options.head) if one else maps.layer(options.layer)
    except ConfigError as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    for path in save(figure, options.out):
        print(path)
    for head, back in enumerate(maps.distance(options.layer)):
        print(f"layer {options.layer}, head {head}: looks {back:.1f} tokens back on average")


if __name__ == "__main__":
    main()
