"""A trainer that announces itself to `tunewarden watch` and speaks the control directory. Standard library only.

announcing_trainer.py [--config FILE] [--ends-with cell] [--no-end]: 2000 steps of 20 ms, in --children children more.
"""

import argparse
import atexit
import json
import os
import subprocess
import sys
import time
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--config")
parser.add_argument("--ends-with", default="process")
parser.add_argument("--steps", type=int, default=2000)
WORDS, _ = parser.parse_known_args()
WATCH = Path(os.environ["TUNEWARDEN_WATCH_DIR"])
JOB = os.urandom(6).hex()
CONTROL = WATCH / JOB / "g1"


def write(folder: Path, name: str, **content: object) -> None:
    (folder / f".{name}").write_text(json.dumps(content))
    (folder / f".{name}").replace(folder / name)


def announce() -> None:
    (WATCH / JOB).mkdir(mode=0o700)
    CONTROL.mkdir(mode=0o700)
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    write(CONTROL, "pid.0.json", pid=os.getpid(), rank=0, world_size=1, local_world_size=1)
    write(CONTROL, "hello.json", protocol=1, can=["save", "stop"], pid=os.getpid())
    ends_with = WORDS.ends_with
    write(
        WATCH,
        f"announce.{os.getpid()}.json",
        protocol=1,
        pid=os.getpid(),
        start_ticks=ticks,
        job=JOB,
        ends_with=ends_with,
    )


def obey(step: int) -> bool:
    """Whether a stop was asked and the state is saved."""
    try:
        (CONTROL / "stop").rename(CONTROL / "stop.taken")
    except FileNotFoundError:
        return False
    request = json.loads((CONTROL / "stop.taken").read_text())
    state = Path(f"state-{step}").absolute()
    state.mkdir()
    (state / "step").write_text(str(step))
    write(CONTROL, "receipt.json", request_id=request["request_id"], ok=True, step=step, path=str(state), seconds=0.0)
    return bool(request["mode"] == "save_and_stop")


def end(status: int) -> None:
    write(CONTROL, "ended.json", exit_status=status)


def main() -> None:
    worker = subprocess.Popen(["sleep", "300"])  # as a data loader: a child that must not outlive the trainer
    atexit.register(worker.kill)
    announce()
    atexit.register(end, 0)
    for step in range(1, WORDS.steps + 1):
        time.sleep(0.02)
        write(CONTROL, "progress.json", step=step, total_steps=WORDS.steps, phase="train", step_seconds_count=step)
        if obey(step):
            if WORDS.ends_with == "process":
                sys.exit(0)
            end(0)
            time.sleep(300)  # the kernel goes on


if __name__ == "__main__":
    main()
