"""Akegarasu/lora-scripts: sd-scripts below a GUI (TOML in config/autosave) or below train.sh (shell variables).

It runs ./scripts/stable/*.py and ./scripts/dev/*.py from its own root, older copies with the same rules.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tunewarden.domain import tuning
from tunewarden.trainers import places, sd_scripts
from tunewarden.trainers.command import Command
from tunewarden.trainers.known import Known, sha_of
from tunewarden.trainers.layers import Layer, Syntax
from tunewarden.trainers.paths import is_folder

TRAINER = "lora-scripts"

# Canonical knob → variable of train.sh.
VARIABLES: Mapping[str, str] = {
    tuning.BATCH: "batch_size",
    "resolution": "resolution",
    "network_dim": "network_dim",
    "network_alpha": "network_alpha",
}


def runs(command: Command) -> bool:
    """Whether sd-scripts is run out of a checkout of lora-scripts."""
    return sd_scripts.runs(command) and (
        re.search(r"(^|/)scripts/(stable|dev)/[^/]+$", command.name) is not None or _below_mikazuki(command)
    )


def _below_mikazuki(command: Command) -> bool:
    script = command.script
    return script is not None and any(is_folder(folder / "mikazuki") for folder in script.parents[:3])


def recognise(command: Command, cwd: Path) -> Known | None:
    """The recipe when the command runs lora-scripts."""
    if not runs(command):
        return None
    known = sd_scripts.recipe(command, cwd, trainer=TRAINER)
    script = command.shells[-1].file if command.shells else None
    return known if script is None else _in_shell(known, script)


def _in_shell(known: Known, script: Path) -> Known:
    """train.sh sets variables and hands them on as flags: the variables are what can be changed."""
    shell = Layer(syntax=Syntax.SHELL, file=script, keys={knob: ((name,),) for knob, name in VARIABLES.items()})
    rest = {knob: name for knob, name in sd_scripts.ARGUMENTS.items() if knob not in VARIABLES}
    others = [layer for layer in known.layers if layer.syntax is not Syntax.FLAGS]
    layers = (shell, places.flags_layer(known.command, rest), *others)
    return replace(known, layers=layers, config_sha256=sha_of(layers), main=script)
