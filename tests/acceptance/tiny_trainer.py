"""A trainer that does what others must survive: `tiny_trainer.py MODE`. Standard library only.

good: saves when asked, resumes. refuses: receipt with ok false. lies: a receipt for a state that isn't there.
above: a receipt for the folder that holds its own.
slow: writes its state for 2 s under a partial name. never: takes no request. forgets: starts at 0 in generation 2 and
writes no resumed.json. silent: writes no hello.json. load: never gets to its first step. idle: ends at once
where it is to go on from a state, as a resume past the end does. hungry: takes
512 MiB once there is a file `eat`. deaf: good, ignores TERM.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path

CONTROL = Path(os.environ["TUNEWARDEN_CONTROL_DIR"])
MODE = sys.argv[1]


def write(name: str, **content: object) -> None:
    temporary = CONTROL / f".{name}"
    temporary.write_text(json.dumps(content))
    temporary.replace(CONTROL / name)


def save(step: int) -> Path:
    path = Path(f"state-{step}").absolute()
    if MODE == "lies":
        return path
    if MODE == "above":
        return Path.cwd().parent
    partial = path.with_name(path.name + ".partial")
    for _ in range(20 if MODE == "slow" else 1):
        with partial.open("a") as file:
            file.write("x" * 1000)
        time.sleep(0.1 if MODE == "slow" else 0)
    partial.replace(path)
    return path


def obey(step: int) -> None:
    try:
        (CONTROL / "stop").rename(CONTROL / "stop.taken")
    except FileNotFoundError:
        return
    request = json.loads((CONTROL / "stop.taken").read_text())
    with Path("requests").open("a") as file:
        file.write(request["request_id"] + "\n")
    if MODE == "refuses":
        write("receipt.json", request_id=request["request_id"], ok=False, error="no room here")
        return
    write("receipt.json", request_id=request["request_id"], ok=True, step=step, path=str(save(step)), seconds=0.1)
    if request["mode"] == "save_and_stop":
        time.sleep(60)
        sys.exit(0)


def begin() -> int:
    if MODE in ("forgets", "silent") or not (CONTROL / "resume.json").exists():
        return 0
    state = json.loads((CONTROL / "resume.json").read_text())
    write("resumed.json", step=state["step"], path=state["path"])
    return int(state["step"])


def main() -> None:
    if MODE == "deaf":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    step = begin()
    first = step
    if MODE != "silent":
        write("pid.0.json", pid=os.getpid(), rank=0, world_size=1, local_world_size=1)
        write("hello.json", protocol=1, can=["save", "stop", "resume"], pid=os.getpid())
    if MODE == "idle" and first:
        return
    while MODE == "load":
        time.sleep(0.05)
    while step < 2000:
        time.sleep(0.02)
        step += 1
        if MODE == "hungry" and Path("eat").exists():
            b"x" * (512 << 20)
        write("progress.json", step=step, total_steps=2000, phase="train", step_seconds_count=step - first)
        if MODE not in ("never", "silent"):
            obey(step)


if __name__ == "__main__":
    main()
