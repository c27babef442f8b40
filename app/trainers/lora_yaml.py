"""The flat YAML of the lora-scripts articles: `python train.py --config my_lora.yaml`.

No public reference implementation exists (see docs/reference/knobs.md): the file is the only thing that we rely on.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from tunewarden.domain import tuning
from tunewarden.errors import Refused
from tunewarden.trainers import config_file, yaml_splice
from tunewarden.trainers.command import Command, Kind, option_values
from tunewarden.trainers.known import Known, Ways, sha_of
from tunewarden.trainers.layers import Layer, Syntax
from tunewarden.trainers.recipe import Explanation, HookSettings, Resumption, SavedState, Tier

TRAINER = "lora-yaml"

# Canonical name → key of the file. docs/reference/knobs.md shows this table.
FILE_KEYS: Mapping[str, str] = {
    tuning.BATCH: "batch_size",
    tuning.ACCUMULATION: "gradient_accumulation_steps",
    tuning.RESOLUTION: "resolution",
    "cache_latents": "cache_latents",
    "data_workers": "num_workers",
    "persistent_workers": "persistent_workers",
    "pin_memory": "pin_memory",
    "gradient_checkpointing": "use_gradient_checkpointing",
    "mixed_precision": "mixed_precision",
    "network_dim": "lora_rank",
    "network_alpha": "lora_alpha",
}
_SUFFIXES = (".yaml", ".yml")
_MARKS = frozenset({"train_data_dir", "base_model"})
_MARK_LINES = re.compile(rb"(?m)^(\xef\xbb\xbf)?[\"']?(train_data_dir|base_model)[\"']?\s*:")


def recognise(command: Command, cwd: Path) -> Known | None:
    """The recipe when the command runs a Python script with `--config X.yaml` and the file looks like the articles'.

    A file that is damaged but has the articles' keys is recognised, so that the plan can say what is wrong with it.
    """
    configs = option_values(command.words, command.program + 1, "--config")
    if command.kind is not Kind.SCRIPT or len(configs) != 1 or not configs[0][1].endswith(_SUFFIXES):
        return None
    path = command.resolve(configs[0][1])
    if path is None or not _looks_right(path):
        return None
    layers = (_flags_layer(command), file_layer(path))
    return Known(
        trainer=TRAINER,
        tier=Tier.KNOWN,
        command=command,
        cwd=cwd,
        layers=layers,
        ways=WAYS,
        config_sha256=sha_of(layers),
        main=path,
        option="--config",
    )


def file_layer(path: Path) -> Layer:
    """The file's keys. None is known to be read where it is absent."""
    return Layer(syntax=Syntax.YAML, file=path, keys={knob: ((key,),) for knob, key in FILE_KEYS.items()})


def _flags_layer(command: Command) -> Layer:
    """A knob that the command sets too has two sources: the command's usually wins, but nobody knows."""
    keys = {
        knob: tuple((f"--{name}",) for name in dict.fromkeys((key, key.replace("_", "-"))))
        for knob, key in FILE_KEYS.items()
    }
    return Layer(syntax=Syntax.FLAGS, file=None, keys=keys, rules=False, first=command.program + 1)


def _looks_right(path: Path) -> bool:
    try:
        data = config_file.read(path)
    except Refused:
        return False
    if _MARK_LINES.search(data) is not None:  # mostly: and parsing takes ms, while an order waits
        return True
    try:
        return bool(_MARKS & yaml_splice.keys(yaml_splice.parse(data, "config")))
    except Refused:
        return False


def _hook_settings(known: Known) -> HookSettings:  # noqa: ARG001 - nothing is known of the script
    return HookSettings()


def _resume(known: Known, argv: Sequence[str], state: SavedState, generation: int) -> Resumption:  # noqa: ARG001
    """The same command: the script reads resume.json, or the hook loads the state for it."""
    return Resumption(argv=tuple(argv), hook=HookSettings(base_step=state.step))


def _states(known: Known) -> tuple[SavedState, ...]:  # noqa: ARG001 - no public trainer defines how it saves
    return ()


def _explain(known: Known) -> Explanation:
    name = known.config_path.name if known.config_path else "the config"
    return Explanation(
        saves="what the script promises in hello.json, or the training hook at an optimizer step",
        adjusts=f"writes a copy of {name} beside it and starts the script with the copy",
        resumes="restarted by tunewarden: the same command; the script reads resume.json, or the hook loads the state",
        files=known.files(),
        defaults=known.defaults(),
    )


WAYS = Ways(hook_settings=_hook_settings, resume=_resume, states=_states, explain=_explain)
