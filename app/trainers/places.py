"""Where the settings of sd-scripts and its relatives stand: flags, the config TOML, the dataset config."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from tunewarden.trainers.command import Command, option_values
from tunewarden.trainers.layers import KeyPath, Layer, Syntax
from tunewarden.trainers.paths import is_file


def named_file(command: Command, option: str, *, default_suffix: str = "") -> Path | None:
    """The file that the last `option` names, absolute; None where it isn't there."""
    values = option_values(command.words, command.program + 1, option)
    if not values:
        return None
    word = values[-1][1]
    if default_suffix and not word.endswith(default_suffix):
        word += default_suffix
    path = command.resolve(word)
    return path if is_file(path) else None


def dataset_file(command: Command, config: Path | None) -> tuple[Path | None, tuple[Path, Syntax, KeyPath] | None]:
    """The dataset TOML, and where it is named when the command line doesn't."""
    path = named_file(command, "--dataset_config")
    if path is not None or config is None or option_values(command.words, command.program + 1, "--dataset_config"):
        return path, None
    for key, value in _flattened(config):
        found = command.resolve(value) if key[-1] == "dataset_config" and isinstance(value, str) else None
        if is_file(found):
            return found, (config, Syntax.TOML, key)
    return None, None


def _flattened(config: Path) -> list[tuple[KeyPath, object]]:
    """The keys of a config TOML and of its sections; none where it can't be read, of which the plan says more."""
    try:
        read = tomllib.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    flat: list[tuple[KeyPath, object]] = []
    for name, value in read.items():
        flat += (
            [((name, key), inner) for key, inner in value.items()] if isinstance(value, dict) else [((name,), value)]
        )
    return flat


def flags_layer(command: Command, names: Mapping[str, str], defaults: Mapping[str, str] | None = None) -> Layer:
    """The command line's layer: `--name` for each canonical name."""
    keys = {canonical: ((f"--{name}",),) for canonical, name in names.items()}
    return Layer(syntax=Syntax.FLAGS, file=None, keys=keys, defaults=defaults or {}, first=command.program + 1)


def config_layers(config: Path | None, names: Mapping[str, str]) -> tuple[Layer, ...]:
    """The config TOML: every section is flattened one level, and the last of two equal keys wins."""
    if config is None:
        return ()
    keys: dict[str, tuple[KeyPath, ...]] = {canonical: ((name,), ("*", name)) for canonical, name in names.items()}
    return (Layer(syntax=Syntax.TOML, file=config, keys=keys, last_wins=True),)


def dataset_layers(
    dataset: Path | None, names: Mapping[str, str], named_in: tuple[Path, Syntax, KeyPath] | None
) -> tuple[Layer, ...]:
    """The dataset config: each [[datasets]], and [general] for those that don't say."""
    if dataset is None:
        return ()
    syntax = Syntax.JSON if dataset.suffix.lower() == ".json" else Syntax.TOML
    each = {canonical: (("datasets", "*", name),) for canonical, name in names.items()}
    general = {canonical: (("general", name),) for canonical, name in names.items()}
    return (
        Layer(syntax=syntax, file=dataset, keys=each, items=("datasets", "*"), named_in=named_in),
        Layer(syntax=syntax, file=dataset, keys=general, named_in=named_in),
    )
