"""A trainer that speaks to nobody: it prints sd-scripts' bar on stderr, for ever. Standard library only."""

import itertools
import sys
import time

TOTAL = 100_000
STARTED = time.monotonic()
for step in itertools.count():
    elapsed = int(time.monotonic() - STARTED)
    clock = f"{elapsed // 60:02}:{elapsed % 60:02}"
    loss = "nan" if "nan" in sys.argv[1:] and step > 3 else f"{1 / (step + 1):.3g}"
    for postfix in ("", f", avr_loss={loss}"):  # each step is printed twice: by update and by set_postfix
        sys.stderr.write(f"\rsteps:   0%|          | {step}/{TOTAL} [{clock}<9:59:59, 10.00it/s{postfix}]")
    sys.stderr.flush()
    time.sleep(0.1)
