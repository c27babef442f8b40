"""A small accelerate loop, hooked and bare in turn; prints JSON: microseconds of a step of each. See tests.bench.hook.

Bare is the same process with the originals of what the hook has patched. They change places every few steps, so that
what the machine does besides falls on both alike.
"""

import importlib
import json
import statistics
import sys
import time

import torch
from accelerate import Accelerator

BLOCKS, STEPS, WARM = 400, 12, 2  # the first steps of a block pay for the change itself
PATCHED = ("accelerate.accelerator", "accelerate.optimizer", "accelerate.scheduler")


def patches():
    """(owner, name, ours, the original) of everything that the hook has patched."""
    found = {}
    for module in map(importlib.import_module, PATCHED):
        for owner in [each for each in vars(module).values() if isinstance(each, type)]:
            for name, ours in list(vars(owner).items()):
                if hasattr(ours, "_tunewarden"):
                    found[owner, name] = (ours, ours._tunewarden)
    return [(owner, name, *both) for (owner, name), both in found.items()]


class Loop:
    def __init__(self):
        accelerator = Accelerator(cpu=True)
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
        loader = torch.utils.data.DataLoader([torch.ones(64)] * (BLOCKS * STEPS * 8 + 8), batch_size=8)
        self.accelerator = accelerator
        self.model, self.optimizer, self.scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
        self.timed = iter(loader)
        self.batches = self.timed._batches  # without the hook's clock

    def step(self, batches):
        """Seconds of CPU time of this thread."""
        began = time.thread_time()
        batch = next(batches)
        with self.accelerator.accumulate(self.model):
            self.accelerator.backward(self.model(batch).square().mean())
            self.optimizer.step()
            self.scheduler.step()
            self.optimizer.zero_grad()
        return time.thread_time() - began


def main():
    torch.set_num_threads(1)
    loop, found = Loop(), patches()
    seconds = {"hooked": [], "bare": []}
    for block in range(BLOCKS):
        kind, batches = ("bare", loop.batches) if block % 2 else ("hooked", loop.timed)
        for owner, name, ours, original in found:
            setattr(owner, name, original if kind == "bare" else ours)
        seconds[kind] += [loop.step(batches) for _ in range(STEPS)][WARM:]
    result = {kind: statistics.median(values) * 1e6 for kind, values in seconds.items()}
    json.dump({**result, "patches": len(found)}, sys.stdout)


if __name__ == "__main__":
    main()
