"""bmaltais/kohya_ss, the GUI: it writes output_dir/config_lora-DATE-TIME.toml and runs its own copy of sd-scripts.

The GUI computes max_train_steps as images / batch / accumulation × epochs before it writes the TOML; the TOML rules.
Its JSON is what a person saves and loads in the GUI; nothing but the GUI reads it.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from tunewarden.domain import tuning
from tunewarden.trainers import places, sd_scripts
from tunewarden.trainers.command import Command
from tunewarden.trainers.known import Known
from tunewarden.trainers.paths import is_file

TRAINER = "kohya-gui"

# Canonical knob → key of the JSON.
JSON_KEYS: Mapping[str, str] = {**sd_scripts.ARGUMENTS, "resolution": "max_resolution"}
# Keys that the GUI always writes and that nothing else does.
JSON_MARKS = frozenset({"LoRA_type", "max_resolution", "train_batch_size", "num_cpu_threads_per_process"})
_CONFIG = re.compile(r"config_(lora|dreambooth|finetune|textual_inversion)-\d{8}-\d{6}.*\.toml")


def runs(command: Command) -> bool:
    """Whether sd-scripts is run with a TOML that the GUI wrote, or out of the GUI's folder."""
    if not sd_scripts.runs(command):
        return False
    config = places.named_file(command, "--config_file", default_suffix=".toml")
    return (config is not None and _CONFIG.fullmatch(config.name) is not None) or _below_gui(command)


def _below_gui(command: Command) -> bool:
    script = command.script
    return script is not None and any(is_file(folder / "kohya_gui.py") for folder in script.parents[:3])


def recognise(command: Command, cwd: Path) -> Known | None:
    """The recipe when the command is one that the GUI makes."""
    return sd_scripts.recipe(command, cwd, trainer=TRAINER) if runs(command) else None


def is_json(keys: frozenset[str]) -> bool:
    """Whether a JSON file with these keys is the GUI's."""
    return len(JSON_MARKS & keys) >= len(JSON_MARKS) - 1 and tuning.BATCH not in keys
