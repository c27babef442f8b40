"""An accelerate loop whose time, loss and evaluation are known beforehand: python metrics_loop.py OUT.

24 updates of 2 micro-steps; the workers give a batch every 0.1 s, and learning from one takes 0.02 s. After update 8 it
evaluates for 1.2 s. The loss is 2.5, and no number from update 16 on. Each worker writes which threads it has.
"""

import argparse
import json
import os
import threading
import time
from pathlib import Path

import torch
from accelerate import Accelerator

UPDATES, ACCUMULATION = 24, 2


class Slow(torch.utils.data.Dataset):
    def __init__(self, out, count):
        self.out, self.count = out, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(0.2)
        names = [thread.name for thread in threading.enumerate()]
        (self.out / f"worker-{os.getpid()}").write_text(json.dumps(names), encoding="utf-8")
        return torch.ones(4)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    out = parser.parse_args().out
    out.mkdir()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATION)
    model = torch.nn.Linear(4, 1)
    slow = torch.utils.data.DataLoader(Slow(out, UPDATES * ACCUMULATION), batch_size=1, num_workers=2)
    quick = torch.utils.data.DataLoader([torch.ones(4)] * 12, batch_size=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    model, optimizer, slow, quick = accelerator.prepare(model, optimizer, slow, quick)
    updates = 0
    for batch in slow:
        with accelerator.accumulate(model):
            time.sleep(0.02)
            found = model(batch).mean()
            loss = found - found.detach() + (float("nan") if updates >= 16 else 2.5)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            updates += 1
            if updates == 8:
                for each in quick:
                    time.sleep(0.1)
                    model(each)
    accelerator.end_training()


if __name__ == "__main__":
    main()
