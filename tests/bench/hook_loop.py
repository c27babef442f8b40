"""A small accelerate loop, hooked and bare in turn; prints JSON: microseconds of a step of each. See tests.bench.hook.

Bare is the same process with the originals of what the hook has patched, so that nothing else differs.
"""

import importlib
import json
import statistics
import sys
import time

import torch
from accelerate import Accelerator

STEPS, ROUNDS = 400, 12
PATCHED = ("accelerate.accelerator", "accelerate.optimizer", "accelerate.scheduler", "accelerate.data_loader")


def patches():
    """(owner, name, ours, the original) of everything that the hook has patched."""
    found = {}
    for module in map(importlib.import_module, PATCHED):
        for owner in [each for each in vars(module).values() if isinstance(each, type)]:
            for name, ours in list(vars(owner).items()):
                if hasattr(ours, "_tunewarden"):
                    found[owner, name] = (ours, ours._tunewarden)
    return [(owner, name, *both) for (owner, name), both in found.items()]


def main():
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer)
    loader = torch.utils.data.DataLoader([torch.ones(64)] * STEPS * 8, batch_size=8)
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    found = patches()

    def seconds_of_a_step():
        times = []
        began = time.thread_time()
        for batch in loader:
            with accelerator.accumulate(model):
                accelerator.backward(model(batch).square().mean())
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            now = time.thread_time()
            times.append(now - began)
            began = now
        return statistics.median(times)

    seconds_of_a_step()
    rounds = {"hooked": [], "bare": []}
    for number in range(ROUNDS):
        kind = "bare" if number % 2 else "hooked"
        for owner, name, ours, original in found:
            setattr(owner, name, original if kind == "bare" else ours)
        rounds[kind].append(seconds_of_a_step())
    json.dump(
        {kind: statistics.median(values) * 1e6 for kind, values in rounds.items()} | {"patches": len(found)}, sys.stdout
    )


if __name__ == "__main__":
    main()
