"""Which trainer a config file is for, by its own keys: for `tunewarden adjust`, where there is no command."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tunewarden.domain import tuning
from tunewarden.trainers import (
    axolotl,
    code_knobs,
    kohya_gui,
    llama_factory,
    lora_scripts,
    lora_yaml,
    places,
    sd_scripts,
)
from tunewarden.trainers.config_file import read
from tunewarden.trainers.document import Document, Keys, find, malformed
from tunewarden.trainers.layer import KeyPath, Layer, Syntax
from tunewarden.trainers.sources import PARSERS

SYNTAXES: Mapping[str, Syntax] = {
    ".yaml": Syntax.YAML,
    ".yml": Syntax.YAML,
    ".toml": Syntax.TOML,
    ".json": Syntax.JSON,
    ".sh": Syntax.SHELL,
    ".bash": Syntax.SHELL,
}
_PROCESS: KeyPath = ("config", "process", "*")
_ONE_TRAINER = "onetrainer"
_DATASETS: KeyPath = ("datasets", "*")


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """A trainer's kind of file: it has one of `marks`. `keys` and `defaults` as in Layer."""

    trainer: str
    syntax: Syntax
    marks: tuple[KeyPath, ...]
    keys: Mapping[str, tuple[KeyPath, ...]]
    defaults: Mapping[str, str]
    last_wins: bool = False


def _flat(names: Mapping[str, str]) -> dict[str, tuple[KeyPath, ...]]:
    return {knob: ((name,),) for knob, name in names.items()}


def _sectioned(names: Mapping[str, str]) -> dict[str, tuple[KeyPath, ...]]:
    return {knob: ((name,), ("*", name)) for knob, name in names.items()}


_AI_TOOLKIT: Mapping[str, tuple[KeyPath, ...]] = {
    tuning.BATCH: ((*_PROCESS, "train", "batch_size"),),
    tuning.ACCUMULATION: ((*_PROCESS, "train", "gradient_accumulation"),),
    tuning.RESOLUTION: ((*_PROCESS, "datasets", "*", "resolution"),),
    "cache_latents": ((*_PROCESS, "datasets", "*", "cache_latents_to_disk"),),
    "gradient_checkpointing": ((*_PROCESS, "train", "gradient_checkpointing"),),
    "network_dim": ((*_PROCESS, "network", "linear"),),
    "network_alpha": ((*_PROCESS, "network", "linear_alpha"),),
}
_ONE: Mapping[str, str] = {
    tuning.BATCH: "batch_size",
    tuning.ACCUMULATION: "gradient_accumulation_steps",
    tuning.RESOLUTION: "resolution",
    "cache_latents": "latent_caching",
    "data_workers": "dataloader_threads",
    "network_dim": "lora_rank",
    "network_alpha": "lora_alpha",
}
_PIPE: Mapping[str, str] = {
    tuning.BATCH: "micro_batch_size_per_gpu",
    tuning.ACCUMULATION: "gradient_accumulation_steps",
    "gradient_checkpointing": "activation_checkpointing",
}
_OPTIONS: Mapping[str, tuple[KeyPath, ...]] = {
    knob: tuple((f"--{name}",) for name in dict.fromkeys((*names, sd_scripts.ARGUMENTS.get(knob, names[0]))))
    for knob, names in code_knobs.NAMES.items()
}
_LLAMA_MARKS: tuple[KeyPath, ...] = (("per_device_train_batch_size",), ("finetuning_type",))
# In this order: the first whose mark a file has.
DIALECTS: tuple[Dialect, ...] = (
    Dialect(
        trainer="ai-toolkit", syntax=Syntax.YAML, marks=((*_PROCESS, "train"),), keys=_AI_TOOLKIT,
        defaults={tuning.ACCUMULATION: "1"},
    ),
    Dialect(
        trainer=llama_factory.TRAINER, syntax=Syntax.YAML, marks=_LLAMA_MARKS, keys=_flat(llama_factory.KEYS),
        defaults=llama_factory.DEFAULTS,
    ),
    Dialect(
        trainer=axolotl.TRAINER, syntax=Syntax.YAML, marks=(("micro_batch_size",), ("lora_r",)),
        keys=_flat(axolotl.KEYS), defaults=axolotl.DEFAULTS,
    ),
    # Any flat YAML: nobody has said which keys the articles' trainer reads.
    Dialect(trainer=lora_yaml.TRAINER, syntax=Syntax.YAML, marks=(), keys=_flat(lora_yaml.FILE_KEYS), defaults={}),
    Dialect(
        trainer="diffusion-pipe", syntax=Syntax.TOML, marks=(("micro_batch_size_per_gpu",),), keys=_flat(_PIPE),
        defaults={tuning.ACCUMULATION: "1"},
    ),
    Dialect(
        trainer=sd_scripts.TRAINER, syntax=Syntax.TOML, marks=(), keys=_sectioned(sd_scripts.ARGUMENTS),
        defaults=sd_scripts.DEFAULTS, last_wins=True,
    ),
    Dialect(
        trainer=kohya_gui.TRAINER, syntax=Syntax.JSON, marks=(("train_batch_size",), ("LoRA_type",)),
        keys=_flat(kohya_gui.JSON_KEYS), defaults=sd_scripts.DEFAULTS,
    ),
    Dialect(
        trainer=llama_factory.TRAINER, syntax=Syntax.JSON, marks=_LLAMA_MARKS, keys=_flat(llama_factory.KEYS),
        defaults=llama_factory.DEFAULTS,
    ),
    Dialect(
        trainer=_ONE_TRAINER, syntax=Syntax.JSON, marks=(), keys=_flat(_ONE), defaults={tuning.ACCUMULATION: "1"}
    ),
    Dialect(
        trainer=lora_scripts.TRAINER, syntax=Syntax.SHELL, marks=(), keys=_flat(lora_scripts.VARIABLES), defaults={}
    ),
)  # fmt: skip


def layers_of(path: Path) -> tuple[str, tuple[Layer, ...]]:
    """The trainer whose file this is, and its layers.

    Raises Refused(config_malformed) for a kind of file that no trainer reads, config_not_found.
    """
    data = read(path)
    syntax = _syntax(path, data)
    document = PARSERS[syntax](data, str(path))
    if syntax in (Syntax.TOML, Syntax.JSON) and _has(document, (_DATASETS,)):
        return sd_scripts.TRAINER, places.dataset_layers(path, sd_scripts.DATASET, None)
    dialect = next(each for each in DIALECTS if each.syntax is syntax and _fits(document, each))
    layer = Layer(syntax=syntax, file=path, keys=dialect.keys, defaults=dialect.defaults, last_wins=dialect.last_wins)
    if syntax is Syntax.SHELL:  # variables, and where the script has none the options of the trainer that it starts
        return dialect.trainer, (layer, Layer(syntax=syntax, file=path, keys=_OPTIONS))
    return dialect.trainer, (layer,)


def _fits(document: Document, dialect: Dialect) -> bool:
    return not dialect.marks or _has(document, dialect.marks)


def _has(document: Document, marks: tuple[Keys, ...]) -> bool:
    return any(find(document, mark) for mark in marks)


def _syntax(path: Path, data: bytes) -> Syntax:
    known = SYNTAXES.get(path.suffix.lower())
    if known is not None:
        return known
    begins: tuple[tuple[Callable[[bytes], bool], Syntax], ...] = (
        (lambda text: text.startswith(b"#!") and b"sh" in text.split(b"\n")[0], Syntax.SHELL),
        (lambda text: text.startswith(b"{"), Syntax.JSON),
    )
    text = data.removeprefix(b"\xef\xbb\xbf").lstrip()
    found = next((syntax for begins_so, syntax in begins if begins_so(text)), None)
    if found is None:
        raise malformed(
            str(path), 1, f"`{path.suffix or path.name}` is no kind of config that we know: yaml, toml, json, sh"
        )
    return found
