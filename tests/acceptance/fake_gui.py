"""A GUI of the kind that people train with: starts a training when told, and stops it as those do, by SIGKILL.

Commands come as lines in the file `commands`: `start [WORDS…]`, `launch ARGV_AS_JSON`, `kill`, `quit CODE`. What it
does stands in `gui.json`.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

TRAINER = str(Path(__file__).with_name("announcing_trainer.py"))


def tell(**content: object) -> None:
    Path(".gui.json").write_text(json.dumps({"gui": os.getpid(), **content}))
    Path(".gui.json").replace("gui.json")


def main() -> None:
    training: subprocess.Popen[bytes] | None = None
    done = 0
    print("the GUI listens", flush=True)
    while True:
        training_status = training.poll() if training else None
        tell(trainer=training.pid if training else None, status=training_status, done=done)
        lines = Path("commands").read_text().splitlines() if Path("commands").exists() else []
        for line in lines[done:]:
            done += 1
            word, *rest = line.split()
            if word == "start":
                training = subprocess.Popen([sys.executable, TRAINER, *rest])
            elif word == "launch":
                training = subprocess.Popen(json.loads(line.partition(" ")[2]))
            elif word == "kill" and training is not None:
                training.kill()
            elif word == "quit":
                sys.exit(int(rest[0]))
        time.sleep(0.02)


if __name__ == "__main__":
    main()
