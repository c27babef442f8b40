"""A person's own change of a config file: there is no command, so the file says whose it is."""

from collections.abc import Mapping
from pathlib import Path

from tunewarden.domain import tuning
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.trainers import code_knobs
from tunewarden.trainers.command import find_commands
from tunewarden.trainers.config_file import read
from tunewarden.trainers.dialects import layers_of
from tunewarden.trainers.document import decoded
from tunewarden.trainers.layers import plan_layers
from tunewarden.trainers.recipe import ConfigPlan


def adjust_file(path: Path, knobs: Mapping[str, str]) -> ConfigPlan:
    """The plan for `tunewarden adjust`: a changed effective batch is warned about, not refused.

    Raises Refused as Recipe.plan does; for a Python script with the lines to write, since code is never changed.
    """
    path = path.absolute()
    if path.suffix == ".py":
        raise _code(path, knobs)
    _, layers = layers_of(path)
    return plan_layers(layers, (), knobs, allow_effective_batch_change=True, resuming=False)


def _code(path: Path, knobs: Mapping[str, str]) -> Refused:
    decoded(read(path), str(path))
    for knob, asked in knobs.items():
        if (fault := tuning.fault_of(knob, asked)) is not None:
            return Refused(Reason.KNOB_NOT_CHANGEABLE, f"{path}:1: {fault}")
    try:
        for command in find_commands(("python", str(path)), path.parent):
            code_knobs.refuse_fixed(command, knobs)
    except Refused as refused:
        return refused
    return Refused(Reason.KNOB_NOT_FOUND, f"{path}:1: the script sets no {' or '.join(knobs)} plainly; change it there")
