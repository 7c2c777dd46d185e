"""All benchmarks of one process: rounds of different kind, tests, start, checkpoints, a million clients.

    python -m benchmarks [--only mlp,flute] [--short] [--out results/benchmarks/bench.json]

Seconds are the processor's, of one thread; a round's arithmetic is compared with what the same thread computes at most,
measured beside it.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from benchmarks import figures
from benchmarks.lifecycle import LIFECYCLE
from benchmarks.rounds import ROUNDS, time_rounds

REPEATS = 5


def main() -> None:
    """Measure what is asked for, print a line for each, and write the figures."""
    names = [*ROUNDS, *LIFECYCLE]
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default=",".join(names), help=f"of {', '.join(names)}")
    parser.add_argument("--short", action="store_true", help="each once")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    flags = parser.parse_args()
    wanted = flags.only.split(",")
    if unknown := set(wanted) - set(names):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    repeats, rows = 1 if flags.short else REPEATS, {}
    for name in wanted:
        rows[name] = time_rounds(name, repeats) if name in ROUNDS else LIFECYCLE[name](repeats)
        print(f"{name}: {_told(rows[name])}", flush=True)
    words = "python -m benchmarks" + (f" --only {flags.only}" if len(wanted) < len(names) else "")
    command = words + (" --short" if flags.short else "")
    figures.write(figures.of_this_machine(command) | {"rows": rows}, flags.out)


def _told(row: dict[str, Any]) -> str:
    numbers = {name: value for name, value in row.items() if isinstance(value, int | float)}
    return f"{row['what']}; " + ", ".join(f"{name} {value:.4g}" for name, value in numbers.items())


if __name__ == "__main__":
    main()
