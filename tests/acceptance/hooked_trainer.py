"""A trainer with the training hook in it, as the agent sees one, in 0.1 s and without torch.

Started with `--config lora.yaml`, or with flags alone: `--batch_size 4 --gradient_accumulation_steps 1`.

It follows hook.json, resume.json and stop as the hook does, and leaves states with accelerate's files. MODE in the
environment: good. oom_save: runs out of memory while saving, trains on. dies: OutOfMemoryError at step 12, after which
it saves; dies_inside: the same inside optimizer.step; dies_dry: saves nothing then. half: its newest state lacks the
optimizer. ranks: its states were written by two ranks. sampling: no step ends after step 5. idle: generation 2 ends
with 0 and makes no step. proc: says that its states lie where nobody can write.
"""

import argparse
import contextlib
import json
import os
import sys
import time
from pathlib import Path

with contextlib.suppress(ImportError):
    import torch  # noqa: F401 - so that it is seen to be a trainer

CONTROL = Path(os.environ["TUNEWARDEN_CONTROL_DIR"])
GENERATION = int(os.environ["TUNEWARDEN_GENERATION"])
MODE = os.environ.get("MODE", "good")
TOTAL = 200
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def read(name):
    try:
        return json.loads((CONTROL / name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}


def write(name, **content):
    temporary = CONTROL / f".{name}"
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.replace(CONTROL / name)


class Trainer:
    def __init__(self):
        self.hook, self.resume = read("hook.json"), read("resume.json")
        self.folder = Path(self.hook.get("states") or "out").absolute()
        self.folder.mkdir(exist_ok=True)
        self.first = self.step = self.hook.get("base_step", 0)
        self.last_state = None

    def save(self, *, half=False):
        """A state under a partial name, then under its own; returns what names it."""
        path = self.folder / (self.hook.get("state_name") or "step-{step:08d}").format(step=self.step)
        partial = path.with_name(path.name + ".partial")
        partial.mkdir()
        names = ["model.safetensors", "scheduler.bin", "random_states_0.pkl"]
        names += [] if half else ["optimizer.bin"]
        names += ["random_states_1.pkl"] if MODE == "ranks" else []
        for name in names:
            (partial / name).write_text(str(self.step), encoding="utf-8")
        partial.rename(path)
        self.last_state = {"step": self.step, "path": str(path)}
        return self.last_state

    def report(self, phase="train"):
        memory = {"allocated": 10, "reserved": 20, "peak": 30, "retries": 0, "ooms": 0}
        state = {"last_state": self.last_state} if self.last_state else {}
        made = {"step_seconds_count": self.step - self.first, "step_seconds_sum": 0.02 * (self.step - self.first)}
        write(
            "progress.json",
            step=self.step,
            phase=phase,
            source="hook",
            total_steps=TOTAL,
            memory=memory,
            **made,
            **state,
        )

    def obey(self):
        try:
            (CONTROL / "stop").rename(CONTROL / "stop.taken")
        except FileNotFoundError:
            return
        request = read("stop.taken")
        answer = {"request_id": request["request_id"], "cause": "request"}
        if MODE == "oom_save":
            write("receipt.json", ok=False, error=OOM, **answer)
            return
        write("receipt.json", ok=True, seconds=0.1, peak_bytes=4096, consistent=True, **self.save(), **answer)
        if request["mode"] == "save_and_stop":
            time.sleep(60)
            sys.exit(0)

    def die(self):
        """What the hook leaves of an OutOfMemoryError."""
        crash = {
            "error": OOM,
            "step": self.step,
            "phase": "train",
            "at_load": False,
            "traceback_tail": "step.py, line 3",
        }
        if MODE not in ("dies_dry", "half"):
            crash |= {"state": self.save(), "consistent": MODE != "dies_inside"}
        write("crash.json", **crash)
        sys.exit(f"Traceback (most recent call last):\n{OOM}")

    def train(self):
        write("pid.0.json", pid=os.getpid(), rank=0, world_size=1, local_world_size=1)
        can = ["save", "stop", "resume"]
        said = {"by": "hook", "framework": "accelerate", "states": str(self.folder)}
        if MODE == "proc":
            said["states"] = "/proc/nowhere"
        write("hello.json", protocol=1, can=can, pid=os.getpid(), **said)
        if self.resume:
            write("resumed.json", step=self.resume["step"], path=self.resume["path"])
        if MODE == "idle" and GENERATION > 1:
            return
        while self.step < TOTAL:
            time.sleep(0.02)
            self.step += 1
            if GENERATION == 1 and self.step in (5, 10):
                self.save(half=MODE == "half" and self.step == 10)
            self.report()
            while GENERATION == 1 and MODE == "half" and self.step == 5 and not Path("go-on").exists():
                time.sleep(0.02)  # checkpoints are minutes apart: the agent sees each
            if GENERATION == 1 and MODE == "sampling" and self.step == 6:
                self.report("sample")
                time.sleep(60)
            if GENERATION == 1 and self.step == 12 and MODE in ("dies", "dies_inside", "dies_dry", "half", "ranks"):
                self.die()
            self.obey()


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config")
    parser.add_argument("--batch_size", type=int, default=1)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--max_train_steps", type=int, default=200)
    return parser.parse_known_args()


if __name__ == "__main__":
    options()
    Path(f"env-g{GENERATION}.json").write_text(json.dumps(dict(os.environ)), encoding="utf-8")
    Path(f"argv-g{GENERATION}.json").write_text(json.dumps(sys.argv), encoding="utf-8")
    Trainer().train()
