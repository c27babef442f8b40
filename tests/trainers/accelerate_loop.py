"""A LoRA trainer as people write them, with accelerate, on a tiny random model: it knows nothing of tunewarden.

Every batch has the same samples, so that a run that was stopped and resumed at any step must end with the weights of
one that was not. What came of it: OUT/result.json, and the state OUT/final.
"""

import argparse
import contextlib
import json
import sys
import time
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration


class Samples(torch.utils.data.Dataset):
    """`count` times the same sample, loaded in a worker where there are workers."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(7)
        return torch.randn(16, generator=generator), torch.randn(4, generator=generator)


class Lora(torch.nn.Module):
    """A frozen layer and B·A beside it."""

    def __init__(self, inputs, outputs, rank=4):
        super().__init__()
        self.frozen = torch.nn.Linear(inputs, outputs).requires_grad_(False)
        self.a, self.b = torch.nn.Linear(inputs, rank, bias=False), torch.nn.Linear(rank, outputs, bias=False)
        torch.nn.init.zeros_(self.b.weight)

    def forward(self, x):
        return self.frozen(x) + self.b(self.a(x))


def small_model(with_peft):
    torch.manual_seed(1)
    if not with_peft:
        return torch.nn.Sequential(Lora(16, 32), torch.nn.Tanh(), Lora(32, 4))
    from peft import LoraConfig, get_peft_model  # seconds to import: only where it is what is tested

    net = torch.nn.Sequential()
    net.add_module("first", torch.nn.Linear(16, 32))
    net.add_module("act", torch.nn.Tanh())
    net.add_module("last", torch.nn.Linear(32, 4))
    return get_peft_model(net, LoraConfig(r=4, target_modules=["first", "last"]))


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--accumulation", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--style", default="accumulate")  # or: plain, zero_first, scheduler_last, loose_scheduler
    parser.add_argument("--peft", action="store_true")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds of a micro-step")
    parser.add_argument("--lag", type=float, default=0.0, help="seconds more of a micro-step on each further rank")
    parser.add_argument("--oom-at", type=int, default=-1, help="run out of memory in this update (from 0)")
    parser.add_argument("--oom-in", default="forward")  # or: step, scheduler, once, bug
    parser.add_argument("--slow-save", type=float, default=0.0, help="seconds that a save takes in its middle")
    parser.add_argument("--resume", help="by the script itself")
    parser.add_argument("--own-excepthook", action="store_true", help="as rich's tracebacks do")
    parser.add_argument("--save-fails", action="store_true", help="run out of memory in the middle of a save")
    parser.add_argument("--no-final", action="store_true", help="write no state at the end")
    parser.add_argument("--tidies", action="store_true", help="close trackers and save in a `finally`")
    parser.add_argument("--bad-save-at", type=int, default=-1, help="a save that fails, caught, after this update")
    parser.add_argument("--swallow", action="store_true", help="catch every exception and go on")
    return parser.parse_args()


def fill_card():
    """What torch raises when the card is full."""
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 8.00 GiB of which 1.00 GiB is "
        "free. Of the allocated memory 6.50 GiB is allocated by PyTorch, and 200.00 MiB is reserved by PyTorch but "
        "unallocated."
    )


class Optimizer(torch.optim.AdamW):
    """One that can run out of memory when a part of its parameters is updated."""

    oom = False

    def step(self, closure=None):
        if self.oom:
            with torch.no_grad():
                self.param_groups[0]["params"][0].add_(1.0)
            fill_card()
        return super().step(closure)


class Run:
    def __init__(self, args):
        self.args = args
        project = ProjectConfiguration(project_dir=str(args.out))
        self.accelerator = Accelerator(gradient_accumulation_steps=args.accumulation, project_config=project, cpu=True)
        model = small_model(args.peft)
        self.inner = Optimizer([each for each in model.parameters() if each.requires_grad], lr=0.01)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(self.inner, args.steps)
        data = Samples(args.batch * args.accumulation * (args.steps + 1))
        loader = torch.utils.data.DataLoader(data, batch_size=args.batch, num_workers=args.workers)
        self.model, self.optimizer, self.loader = self.accelerator.prepare(model, self.inner, loader)
        loose = args.style == "loose_scheduler"
        self.scheduler = scheduler if loose else self.accelerator.prepare(scheduler)
        if args.own_excepthook:
            sys.excepthook = lambda kind, error, _: print(f"nicely: {kind.__name__}: {error}")
        self.accelerator.register_save_state_pre_hook(self.half_written)
        if args.resume:
            self.accelerator.load_state(args.resume)
        self.updates = 0

    def half_written(self, models, weights, folder):
        """Called by accelerate in the middle of a save, as sd-scripts' own hook is."""
        if self.args.save_fails:
            fill_card()
        if self.args.slow_save:
            Path(folder, "half.txt").write_text("half", encoding="utf-8")
            time.sleep(self.args.slow_save)

    def train(self):
        update = self.accumulated if self.args.style == "accumulate" else self.plain
        for batch in self.loader:
            try:
                self.updates += update(batch)
            except BaseException:
                if not self.args.swallow:
                    raise
            if self.updates == self.args.bad_save_at:
                with contextlib.suppress(OSError):
                    self.accelerator.save_state("/dev/null/state")
            if self.updates >= self.args.steps:
                break
        self.accelerator.end_training()

    def accumulated(self, batch):
        """A micro-step in the block that most trainers use. Gives whether it was an update."""
        accelerator = self.accelerator
        with accelerator.accumulate(self.model):
            loss = self.loss(batch)
            self.inner.oom = accelerator.sync_gradients and self.oom("step")
            accelerator.backward(loss)
            self.optimizer.step()
            if self.oom("scheduler"):
                fill_card()
            self.scheduler.step()
            self.optimizer.zero_grad()
        return accelerator.sync_gradients

    def plain(self, batch):
        """A step without that block, in the orders that people write."""
        if self.args.style == "zero_first":
            self.optimizer.zero_grad()
        self.accelerator.backward(self.loss(batch))
        self.inner.oom = self.oom("step")
        self.optimizer.step()
        if self.args.style in ("scheduler_last", "loose_scheduler"):
            self.optimizer.zero_grad()
        self.scheduler.step()
        if self.args.style == "plain":
            self.optimizer.zero_grad()
        return True

    def oom(self, where):
        return self.updates == self.args.oom_at and where == self.args.oom_in

    def loss(self, batch):
        time.sleep(self.args.pace + self.args.lag * self.accelerator.process_index)
        inputs, targets = batch
        if self.oom("bug"):
            raise ValueError("a fault of the script's own")
        if self.oom("forward") or (self.oom("once") and not self.inner.oom):
            self.inner.oom = self.args.oom_in == "once"
            fill_card()
        return torch.nn.functional.mse_loss(self.model(inputs), targets)

    def finish(self):
        if not self.args.no_final:
            self.accelerator.save_state(str(self.args.out / "final"))
        self.args.out.mkdir(exist_ok=True)
        result = {
            "updates": max(int(state["step"]) for state in self.inner.state.values()),
            "last_epoch": getattr(self.scheduler, "scheduler", self.scheduler).last_epoch,
        }
        (self.args.out / "result.json").write_text(json.dumps(result), encoding="utf-8")
        print("trained", flush=True)

    def tidy(self):
        self.accelerator.end_training()
        self.finish()


if __name__ == "__main__":
    run = Run(options())
    try:
        run.train()
    finally:
        if run.args.tidies:
            run.tidy()
    run.finish()
