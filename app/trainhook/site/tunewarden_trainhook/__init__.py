"""The training hook: what runs inside a user's training process. Standard library, Python 3.8 and later.

How the parts fit
- `importing` waits for the modules in PATCHES; each is patched by the part named there, right after its import.
- `session` is the hook in this process: its control directory, counters, log, ranks, and the trainer's `adapter`.
  Every part asks `session.current()`, which gives None in a process that did not begin one (launchers, forked
  DataLoader workers) and after the hook has stepped aside.
- `boundary.Boundary.at_step()` is called after each optimizer step, on every rank: it counts, polls the stop file,
  saves, answers, parks and stops at the total. boundary.py says what an adapter must offer.
- What the hook does inside the trainer's calls goes through `Session.guarded`: a fault of its own is written to
  hook.log once, and the hook steps aside for good.
"""

from .importing import watch_imports

PATCHES = {  # the module that is patched: the part of ours that does it, by its function patch(module)
    "accelerate.accelerator": ".accelerate_patch",
    "accelerate.data_loader": ".waiting",
    "transformers.trainer": ".trainer_patch",
}


def install():
    """Called once, at the start of the interpreter, by sitecustomize. Silent and cheap: no other part is imported."""
    watch_imports(PATCHES)
