"""The example trainer with a log like a real one's: it says "CUDA out of memory" and trains on.

    python grumbling_trainer.py --config my_style_lora.yaml

GRUMBLE_AT_S in its environment: so many seconds after its start, and again every 2 s; every generation does.
BALLAST_MB: memory that it holds whatever its batch is. PRINT: a text that it prints first.
"""

import os
import runpy
import sys
import threading
import time
from pathlib import Path

TRAINER = Path(__file__).resolve().parents[2] / "docs" / "examples" / "train.py"


def grumble() -> None:
    time.sleep(float(os.environ["GRUMBLE_AT_S"]))
    while True:
        print("\nwarning: CUDA out of memory, the step is tried again with a smaller chunk", flush=True)
        time.sleep(2.0)


if __name__ == "__main__":
    sys.stdout.write(os.environ.get("PRINT", ""))
    ballast = bytearray(int(os.environ.get("BALLAST_MB", "0")) << 20)
    if "GRUMBLE_AT_S" in os.environ:
        threading.Thread(target=grumble, daemon=True).start()
    runpy.run_path(str(TRAINER), run_name="__main__")
