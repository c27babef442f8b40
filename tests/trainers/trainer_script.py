"""A script with transformers' Trainer as people write them, on a tiny random model: it knows nothing of tunewarden.

What came of it: OUT/final by save_model, and OUT/result.json.
"""

import argparse
import json
import time
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

SAMPLES = 24


class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        words = torch.randint(0, 32, (8,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": words, "labels": words}


class Saves(TrainerCallback):
    """A callback of the script's own: it counts the checkpoints that it is told of."""

    def __init__(self):
        self.steps = []

    def on_save(self, args, state, control, **kwargs):
        self.steps.append(state.global_step)


class OwnTrainer(Trainer):
    """Subclassed, as TRL and unsloth do."""

    options = None

    def compute_loss(self, model, inputs, *args, **kwargs):
        time.sleep(self.options.pace)
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        if self.model.training and self.state.global_step == self.options.oom_at:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        if self.model.training and self.state.global_step >= self.options.nan_from >= 0:
            return loss * float("nan")
        return loss


def options():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--accumulation", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds of a micro-step")
    parser.add_argument("--save-steps", type=int, default=0)
    parser.add_argument("--eval-steps", type=int, default=0)
    parser.add_argument("--oom-at", type=int, default=-1)
    parser.add_argument("--nan-from", type=int, default=-1)
    parser.add_argument("--jit", action="store_true")
    parser.add_argument("--resume", action="store_true", help="from the newest checkpoint, as the Trainer sees it")
    return parser.parse_args()


def main():
    args = options()
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=1))
    training = TrainingArguments(
        output_dir=str(args.out),
        per_device_train_batch_size=args.batch,
        per_device_eval_batch_size=2,
        gradient_accumulation_steps=args.accumulation,
        num_train_epochs=args.epochs,
        dataloader_num_workers=args.workers,
        learning_rate=0.01,
        save_strategy="steps" if args.save_steps else "no",
        save_steps=args.save_steps or 500,
        eval_strategy="steps" if args.eval_steps else "no",
        eval_steps=args.eval_steps or None,
        logging_steps=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **({"enable_jit_checkpoint": True} if args.jit else {}),
    )
    saves = Saves()
    OwnTrainer.options = args
    data = Samples()
    trainer = OwnTrainer(model=model, args=training, train_dataset=data, eval_dataset=data, callbacks=[saves])
    trainer.train(resume_from_checkpoint=True if args.resume else None)
    trainer.save_model(str(args.out / "final"))
    state = trainer.optimizer.optimizer.state.values()
    result = {
        "global_step": trainer.state.global_step,
        "max_steps": trainer.state.max_steps,
        "updates": max(int(each["step"]) for each in state),
        "last_epoch": trainer.lr_scheduler.last_epoch,
        "told_of": saves.steps,
    }
    (args.out / "result.json").write_text(json.dumps(result), encoding="utf-8")
    print("trained", flush=True)


if __name__ == "__main__":
    main()
