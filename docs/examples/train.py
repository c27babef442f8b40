#!/usr/bin/env python3
"""A small LoRA trainer that can be saved, stopped and resumed from outside: train.py --config my_style_lora.yaml

It fits W0 + B·A (W0 frozen, B and A of rank `lora_rank`) to a regression that it makes itself from a seed, by SGD with
momentum; Python 3.8 and the standard library are enough. Copy `Control` into a trainer of your own: it is the whole
protocol of docs/reference/control-directory.md. The samples of a step depend on the seed and its number alone and
gradients are summed sample by sample, so a resumed run ends with the loss of an uninterrupted one, also with half the
batch_size and twice the gradient_accumulation_steps.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import sys
import time
import traceback
from pathlib import Path

WIDTH = 16  # inputs and outputs of the layer that is adapted
MOMENTUM = 0.9
PARK_SECONDS = 60.0
PROGRESS_SECONDS = 0.5


class OutOfMemoryError(RuntimeError):
    """What torch raises when the card is full; here it is simulated by the config's `oom_at_mb`."""

    __module__ = "torch"


# ---- config: flat `key: value` lines, as in the YAML beside this file


def read_config(path):
    """A dict of str, int, float and bool. Comments, quotes, a BOM and CRLF are understood; nesting is not."""
    config = {}
    for number, line in enumerate(Path(path).read_text(encoding="utf-8-sig").splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            match = re.match(r"""(["']?)(\w+)\1\s*:(?:\s+|$)("[^"]*"|'[^']*'|[^#]*?)\s*(?:#.*)?$""", line)
            if match is None:
                sys.exit(f"{path}:{number}: not `key: value`: {line.strip()}")
            config[match.group(2)] = plain_value(match.group(3))
    return config


def plain_value(text):
    if text[:1] in ("'", '"'):
        return text[1:-1]
    try:
        return json.loads(text.lower())  # numbers (2e-4 too), true and false
    except ValueError:
        return text


# ---- the control directory: how tunewarden talks to a trainer


class Control:
    """One method for each thing that a trainer says; all are no-ops when `folder` is None."""

    def __init__(self, folder):
        self.folder = Path(folder) if folder else None
        self.last_progress = 0.0

    def write(self, name, content):
        """Under a temporary name, then renamed: a reader never sees half a file. A full disk ends no training."""
        if self.folder is None:
            return
        temporary = self.folder / f"{name}.tmp-{os.getpid()}"
        with contextlib.suppress(OSError):
            temporary.write_text(json.dumps(content), encoding="utf-8")
            temporary.replace(self.folder / name)

    def hello(self):
        self.write("pid.0.json", {"pid": os.getpid(), "rank": 0, "world_size": 1, "local_world_size": 1})
        self.write("hello.json", {"protocol": 1, "can": ["save", "stop", "resume"], "pid": os.getpid()})

    def resume_from(self):
        """The state that this generation must go on from, or None."""
        if self.folder is None or not (self.folder / "resume.json").exists():
            return None
        return json.loads((self.folder / "resume.json").read_text(encoding="utf-8"))["path"]

    def resumed(self, step, path):
        self.write("resumed.json", {"step": step, "path": str(path)})

    def progress(self, report, at_once=False):
        """At most twice a second, unless `at_once`."""
        if at_once or time.monotonic() - self.last_progress >= PROGRESS_SECONDS:
            self.last_progress = time.monotonic()
            self.write("progress.json", report)

    def take_stop(self):
        """The stop request if there is one and we take it: renaming decides, for it may be withdrawn at this moment."""
        if self.folder is None:
            return None
        taken = self.folder / "stop.taken"
        try:
            (self.folder / "stop").rename(taken)
        except FileNotFoundError:
            return None
        return json.loads(taken.read_text(encoding="utf-8"))

    def receipt(self, request_id, **content):
        self.write("receipt.json", {"request_id": request_id, **content})

    def crash(self, error, step, phase):
        text = traceback.format_exception_only(type(error), error)[-1].strip()
        self.write("crash.json", {"error": text, "step": step, "phase": phase})


# ---- memory: what the batch holds, what leaks, and the simulated limit of the card


class Memory:
    """Really allocates, and keeps what it has, as torch's caching allocator does."""

    def __init__(self, limit_mb):
        self.limit_mb = limit_mb
        self.buffers = []
        self.held_mb = 0.0

    def hold(self, mb):
        if self.limit_mb and self.held_mb + mb > self.limit_mb:
            limit, held, free = (f"{x:.2f} MiB" for x in (self.limit_mb, self.held_mb, self.limit_mb - self.held_mb))
            raise OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {mb:.2f} MiB. GPU 0 has a total capacity of {limit} "
                f"of which {free} is free. Process {os.getpid()} has {held} memory in use. Of the allocated memory "
                f"{held} is allocated by PyTorch, and 0 bytes is reserved by PyTorch but unallocated."
            )
        self.buffers.append(bytearray(int(mb * 2**20)))  # it is written with zeros, so every page is really used
        self.held_mb += mb


# ---- the model: y = (W0 + B·A)·x


def matrix(rng, rows, columns, scale):
    return [[rng.gauss(0.0, scale) for _ in range(columns)] for _ in range(rows)]


def times(rows, vector):
    return [sum(a * b for a, b in zip(row, vector)) for row in rows]


def make_data(seed, count):
    """W0, and `count` samples (x, y) of a W that differs from W0 by a low rank."""
    rng = random.Random(seed)
    base = matrix(rng, WIDTH, WIDTH, 0.3)
    down, up = matrix(rng, 4, WIDTH, 0.5), matrix(rng, WIDTH, 4, 0.5)
    samples = []
    for _ in range(count):
        x = [rng.gauss(0.0, 1.0) for _ in range(WIDTH)]
        shift = times(up, times(down, x))
        samples.append((x, [y + s + rng.gauss(0.0, 0.05) for y, s in zip(times(base, x), shift)]))
    return base, samples


class Lora:
    def __init__(self, seed, rank, base):
        self.base = base
        self.a, self.b = matrix(random.Random(seed + 1), rank, WIDTH, 0.5), [[0.0] * rank for _ in range(WIDTH)]
        self.speed_a, self.speed_b = zeros_like(self.a), zeros_like(self.b)

    def forward(self, sample):
        x, y = sample
        hidden = times(self.a, x)
        error = [w + d - t for w, d, t in zip(times(self.base, x), times(self.b, hidden), y)]
        return sum(e * e for e in error) / WIDTH, hidden, error

    def add_gradient(self, sample, grad_a, grad_b):
        """Add one sample's gradient to the sums; gives its loss."""
        loss, hidden, error = self.forward(sample)
        for row, e in zip(grad_b, error):
            for k, h in enumerate(hidden):
                row[k] += e * h
        for k, row in enumerate(grad_a):
            back = sum(b[k] * e for b, e in zip(self.b, error))
            for j, x in enumerate(sample[0]):
                row[j] += back * x
        return loss

    def update(self, grad_a, grad_b, learning_rate, count):
        for weights, speeds, grads in ((self.a, self.speed_a, grad_a), (self.b, self.speed_b, grad_b)):
            for row, speed, grad in zip(weights, speeds, grads):
                for k, g in enumerate(grad):
                    speed[k] = MOMENTUM * speed[k] + g / count
                    row[k] -= learning_rate * speed[k]


def zeros_like(rows):
    return [[0.0] * len(row) for row in rows]


# ---- training


class Training:
    def __init__(self, config, control):
        self.config, self.control = config, control
        self.batch = config["batch_size"]
        self.accumulation = config.get("gradient_accumulation_steps", 1)
        self.seed = config.get("seed", 42)
        self.output = Path(config["output_dir"]).absolute()
        self.memory = Memory(config.get("oom_at_mb", 0))
        self.step = self.position = 0  # optimizer steps and samples, over all generations
        self.phase, self.loss, self.last_state, self.order = "load", None, None, (None, [])
        self.step_seconds = self.data_wait = 0.0
        self.steps_here = 0
        self.shown = 0.0

    def run(self):
        self.control.hello()
        base, self.samples = make_data(self.seed, self.config.get("train_samples", 400))
        self.model = Lora(self.seed, self.config.get("lora_rank", 8), base)
        self.resume()
        effective = self.batch * self.accumulation
        self.total = self.step + (self.config["epochs"] * len(self.samples) - self.position) // effective
        self.control.progress(self.report(), at_once=True)
        self.memory.hold(self.batch * self.config.get("activation_mb_per_sample", 0))
        self.phase, self.began = "train", time.monotonic()
        while self.step < self.total:
            self.train_step(effective)
            self.control.progress(self.report())
            self.show()
            if self.step % self.config.get("save_steps", 100) == 0:
                self.save()
            if not self.config.get("ignore_stop", False):
                self.obey(self.control.take_stop())
        self.finish()

    def train_step(self, effective):
        began = time.monotonic()
        self.memory.hold(self.batch * self.config.get("leak_mb_per_step", 0))
        grad_a, grad_b, loss = zeros_like(self.model.a), zeros_like(self.model.b), 0.0
        for _ in range(self.accumulation):
            for sample in self.next_batch():
                loss += self.model.add_gradient(sample, grad_a, grad_b)
        self.model.update(grad_a, grad_b, self.config["learning_rate"], effective)
        self.pace(began + self.config.get("step_seconds", 0))
        self.step, self.loss = self.step + 1, loss / effective
        self.steps_here += 1
        self.step_seconds += time.monotonic() - began

    def next_batch(self):
        """The next batch_size samples: each epoch has its own order, which depends on the seed and the epoch alone."""
        began = time.monotonic()
        time.sleep(self.config.get("loader_sleep", 0))
        batch = []
        for position in range(self.position, self.position + self.batch):
            epoch, index = divmod(position, len(self.samples))
            if self.order[0] != epoch:
                order = list(range(len(self.samples)))
                random.Random(f"{self.seed}:{epoch}").shuffle(order)
                self.order = (epoch, order)
            batch.append(self.samples[self.order[1][index]])
        self.position += self.batch
        self.data_wait += time.monotonic() - began
        return batch

    def pace(self, until):
        while self.config.get("step_busy", False) and time.monotonic() < until:
            pass
        time.sleep(max(0.0, until - time.monotonic()))

    def report(self):
        report = {
            "step": self.step,
            "total_steps": self.total,
            "phase": self.phase,
            "loss": self.loss,
            "step_seconds_sum": self.step_seconds,
            "step_seconds_count": self.steps_here,
            "data_wait_seconds_sum": self.data_wait,
        }
        return {**report, "last_state": self.last_state} if self.last_state else report

    def show(self):
        """A bar like tqdm's, on stderr, ten times a second at most."""
        if time.monotonic() - self.shown < 0.1 and self.step < self.total:
            return
        self.shown = time.monotonic()
        seconds = max(1e-9, time.monotonic() - self.began)
        rate = max(1e-9, self.steps_here / seconds)
        percent, left = 100 * self.step // self.total, (self.total - self.step) / rate
        clock = "{:02}:{:02}<{:02}:{:02}".format(*divmod(int(seconds), 60), *divmod(int(left), 60))
        bar = f"\rsteps: {percent:3}%|{'#' * (percent // 10):10}| {self.step}/{self.total} [{clock}, {rate:.2f}it/s"
        sys.stderr.write(f"{bar}, avr_loss={self.loss:.4g}]")
        sys.stderr.flush()

    # -- states

    def save(self):
        """Write everything that the next step depends on, whole or not at all. Gives the path."""
        self.phase = "checkpoint"
        self.control.progress(self.report(), at_once=True)
        path = self.output / f"state-{self.step:06}.json"
        model = {name: getattr(self.model, name) for name in ("a", "b", "speed_a", "speed_b")}
        text = json.dumps({"step": self.step, "position": self.position, "loss": self.loss, "model": model})
        partial = Path(f"{path}.partial")
        try:
            self.output.mkdir(parents=True, exist_ok=True)
            with open(partial, "w", encoding="utf-8") as file:
                for start in range(0, len(text), 1 + len(text) // 10):
                    file.write(text[start : start + 1 + len(text) // 10])
                    file.flush()
                    time.sleep(self.config.get("save_seconds", 0) / 10)
                os.fsync(file.fileno())
            partial.replace(path)
            self.last_state = {"step": self.step, "path": str(path)}
        finally:
            self.phase = "train"
            self.control.progress(self.report(), at_once=True)
        return path

    def resume(self):
        path = self.control.resume_from() or self.config.get("resume_from_checkpoint")
        if not path:
            return
        state = json.loads(Path(path).read_text(encoding="utf-8"))
        self.step, self.position, self.loss = state["step"], state["position"], state["loss"]
        for name, value in state["model"].items():
            setattr(self.model, name, value)
        self.last_state = {"step": self.step, "path": str(path)}
        self.control.resumed(self.step, path)
        print(f"resumed from {path} at step {self.step}", flush=True)

    def obey(self, request):
        if request is None:
            return
        began = time.monotonic()
        try:
            path = self.save()
        except OSError as error:  # a full disk: say so and train on
            self.control.receipt(request["request_id"], ok=False, error=str(error))
            return
        seconds = time.monotonic() - began
        self.control.receipt(request["request_id"], ok=True, step=self.step, path=str(path), seconds=seconds)
        if request["mode"] == "save_and_stop":
            print(f"\nsaved at step {self.step}; parked until it is ended", flush=True)
            time.sleep(PARK_SECONDS)
            sys.exit(0)

    def finish(self):
        self.control.progress(self.report(), at_once=True)
        loss = sum(self.model.forward(sample)[0] for sample in self.samples) / len(self.samples)
        self.output.mkdir(parents=True, exist_ok=True)
        path = self.output / f"{self.output.name}.json"
        result = {"loss": loss, "steps": self.step, "samples": self.position, "a": self.model.a, "b": self.model.b}
        path.write_text(json.dumps(result), encoding="utf-8")
        print(f"\nmodel saved: {path} (loss {loss:.6f} after {self.step} steps)", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--config", required=True)
    config = read_config(parser.parse_args().config)
    control = Control(None if config.get("no_control", False) else os.environ.get("TUNEWARDEN_CONTROL_DIR"))
    training = Training(config, control)
    try:
        training.run()
    except Exception as error:
        control.crash(error, training.step, training.phase)
        raise


if __name__ == "__main__":
    main()
