"""Draw the rotation frequencies of several models in one figure, from `rope --json`.

llama-ablate rope llama2-7b --json > llama2.json
llama-ablate rope llama3.1-405b --json > llama3.1.json
python analysis/rope_frequencies.py llama2.json llama3.1.json --out rope
"""

import argparse
import json
from pathlib import Path

from llama_ablate.report.drawing import save
from llama_ablate.report.rotation import rotation


def main() -> None:
    """Read the frequencies, write one figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+", help="what `rope PRESET --json` printed")
    parser.add_argument("--out", type=Path, default=Path("rope_frequencies"))
    options = parser.parse_args()
    rates: dict[str, list[float]] = {}
    for file in options.files:
        try:
            values = json.loads(file.read_text("utf-8"))
            frequencies = values["radians_per_position"]
            context = max(int(values["context"]), 1)
            named = f" ({values['name']})"
            rates |= {
                key + named if key == "unscaled" else key: [float(rate) for rate in of_pairs]
                for key, of_pairs in frequencies.items()
            }
        except (OSError, ValueError, KeyError, TypeError) as error:
            parser.exit(2, f"{parser.prog}: {file} holds no frequencies ({error!r})\n")
    for path in save(rotation(rates, context), options.out):
        print(path)


if __name__ == "__main__":
    main()
