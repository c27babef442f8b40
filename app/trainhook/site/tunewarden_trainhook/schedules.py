"""Schedulers that a script does not hand to `prepare`, as many do: accelerate neither saves nor loads them.

They are remembered when they are made; the adapter writes their states into a file of ours beside accelerate's.
"""

import functools
import os
import sys
import weakref

FILE = "tunewarden_schedulers.bin"
_made = []  # weak references, in the order of making


def remember():
    """From now on, when torch makes a scheduler. Called when accelerate, and with it torch, has been imported."""
    module = sys.modules.get("torch.optim.lr_scheduler")
    kind = getattr(module, "LRScheduler", None) or getattr(module, "_LRScheduler", None)
    if kind is None or hasattr(kind.__init__, "_tunewarden"):
        return
    original = kind.__init__

    @functools.wraps(original)
    def __init__(self, *args, **kwargs):
        original(self, *args, **kwargs)
        _made.append(weakref.ref(self))

    __init__._tunewarden = original
    kind.__init__ = __init__


def made():
    """How many were made so far."""
    return len(_made)


def loose(optimizers, prepared):
    """Those that drive one of these optimizers and are neither prepared nor a part of another one."""
    driven = {id(each) for each in optimizers} | {id(getattr(each, "optimizer", None)) for each in optimizers}
    known = [getattr(each, "scheduler", each) for each in prepared]
    living = [each for each in (reference() for reference in _made) if each is not None]
    inside = {id(part) for each in living + known for part in getattr(each, "_schedulers", ())}
    inside.update(id(each) for each in known)
    return [each for each in living if id(getattr(each, "optimizer", None)) in driven and id(each) not in inside]


def save(schedulers, folder):
    if schedulers:
        sys.modules["torch"].save([each.state_dict() for each in schedulers], os.path.join(folder, FILE))


def load(schedulers, folder):
    """As many must be there as were saved. Raises ValueError otherwise."""
    path = os.path.join(folder, FILE)
    states = sys.modules["torch"].load(path, weights_only=True) if os.path.exists(path) else []
    if len(states) != len(schedulers) and states:
        raise ValueError(f"{len(states)} schedulers were saved that are not prepared, and {len(schedulers)} are here")
    for scheduler, state in zip(schedulers, states):
        scheduler.load_state_dict(state)
