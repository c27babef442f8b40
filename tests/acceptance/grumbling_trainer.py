"""The example trainer in a bad mood: python grumbling_trainer.py --config my_style_lora.yaml

In its environment: GRUMBLE_AT_S: seconds after its start from which its log says "CUDA out of memory" every second,
while it trains on. BALLAST_MB: memory that it takes after BALLAST_AT_S seconds, whatever its batch is. DIE_IN_SAVE: it
ends with 3 as soon as it has taken a stop request. FORK_AWAY: it leaves a child behind that has left its session.
Every generation does it all.
"""

import os
import runpy
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

TRAINER = Path(__file__).resolve().parents[2] / "docs" / "examples" / "train.py"
ballast: list[bytearray] = []


def grumble() -> None:
    time.sleep(float(os.environ["GRUMBLE_AT_S"]))
    while True:
        print("\ncaught torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB", flush=True)
        time.sleep(1.0)


def take_ballast() -> None:
    time.sleep(float(os.environ.get("BALLAST_AT_S", "0")))
    ballast.append(bytearray(int(os.environ["BALLAST_MB"]) << 20))


def die_in_save() -> None:
    taken = Path(os.environ["TUNEWARDEN_CONTROL_DIR"]) / "stop.taken"
    while not taken.exists():
        time.sleep(0.02)
    os._exit(3)


def fork_away() -> None:
    """A grandchild in a session of its own whose parent is gone at once."""
    subprocess.run(["sh", "-c", "setsid sleep 600 >/dev/null 2>&1 </dev/null &"], check=True)


def in_background(body: Callable[[], None]) -> None:
    threading.Thread(target=body, daemon=True).start()


if __name__ == "__main__":
    if "GRUMBLE_AT_S" in os.environ:
        in_background(grumble)
    if "BALLAST_MB" in os.environ:
        in_background(take_ballast)
    if "DIE_IN_SAVE" in os.environ:
        in_background(die_in_save)
    if "FORK_AWAY" in os.environ:
        fork_away()
    sys.argv[0] = str(TRAINER)
    runpy.run_path(str(TRAINER), run_name="__main__")
