"""A fine-tuning loop as people write them: accelerate, flags, no word of stopping or resuming.

It counts its own optimizer steps from 0 at each start and ends at --max_train_steps of them. Every batch holds the
same sample, so that batch size and accumulation change nothing in the weights.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--gradient_accumulation_steps", type=int, default=1)
    parser.add_argument("--max_train_steps", type=int, default=40)
    parser.add_argument("--dataloader_num_workers", type=int, default=0)
    parser.add_argument("--output_dir", default="out")
    parser.add_argument("--pace", type=float, default=0.1, help="seconds of an optimizer step")
    args = parser.parse_args()
    project = ProjectConfiguration(project_dir=args.output_dir)
    accelerator = Accelerator(
        gradient_accumulation_steps=args.gradient_accumulation_steps, project_config=project, cpu=True
    )
    torch.manual_seed(1)
    model = torch.nn.Linear(8, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, args.max_train_steps)
    samples = torch.utils.data.TensorDataset(torch.ones(args.batch_size * 10, 8), torch.zeros(args.batch_size * 10, 2))
    loader = torch.utils.data.DataLoader(samples, batch_size=args.batch_size, num_workers=args.dataloader_num_workers)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    step = 0
    while step < args.max_train_steps:
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                step += 1
                time.sleep(args.pace)
                note(args, step, optimizer)
            if step >= args.max_train_steps:
                break
    accelerator.wait_for_everyone()
    print("trained", flush=True)


def note(args, step, optimizer):
    """A line an optimizer step, for the test: who made it, with what, and how many updates the optimizer has seen."""
    updates = max(int(state["step"]) for state in optimizer.state.values())
    line = {
        "pid": os.getpid(),
        "rank": int(os.environ.get("RANK", "0")),
        "batch": args.batch_size,
        "accumulation": args.gradient_accumulation_steps,
        "own_step": step,
        "updates": updates,
    }
    with Path("steps.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
