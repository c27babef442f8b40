"""`python -m tests.bench [WORD…]`: each row with its goal, its value, and PASS or MISS. Not a timed test."""

import sys
from collections.abc import Sequence

from tests.bench import acks, hook, latency, weight
from tests.bench.rows import Measure, machine

# Every bench is named here; a word of its name on the command line chooses it.
TABLE: tuple[Measure, ...] = (*acks.MEASURES, *latency.MEASURES, *weight.MEASURES, *hook.MEASURES)


def main(words: Sequence[str]) -> int:
    """Print the table; 1 when a row misses its goal."""
    print(machine(), flush=True)
    missed = 0
    for measure in TABLE:
        name = f"{measure.__module__}.{measure.__name__}"
        if words and not any(word in name for word in words):
            continue
        for row in measure():
            print(row.line(), flush=True)
            missed += row.verdict == "MISS"
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
