"""Where a trainer's knobs stand: a table that each trainer's module writes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

# Keys from the top of a file down to a value. "*" is every item of a list or every key of a mapping (a TOML section).
# Of a command line: one element, the option with its dashes ("--train_batch_size") or the name before `=`.
KeyPath = tuple[str, ...]


class Syntax(StrEnum):
    """How a layer is written."""

    YAML = "yaml"
    TOML = "toml"
    JSON = "json"
    FLAGS = "flags"  # --key value, --key=value, --switch
    ASSIGNMENTS = "assignments"  # key=value words of a command line
    SHELL = "shell"  # name=value lines of a shell script


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One place where knobs are set.

    `file` None: the job's argv, from the word `first` (index from 0) on. `keys`: canonical knob → the key paths that
    set it here; every place that fits is scaled together. `defaults`: knobs that the trainer reads here even though
    they are absent, with the value that absence means; they can be put in, under the first of their `keys`.
    `rules` False: where this layer and a later one both set a knob, it can't be told which one counts: refused.
    `items`: the list whose items fall to the next layer when they lack the knob, such as ("datasets", "*").
    `last_wins`: of several places of a knob only the last counts (sd-scripts flattens its sections so).
    `named_in`: the file, its syntax and the key path that name this file, where the command line does not.
    """

    syntax: Syntax
    file: Path | None
    keys: Mapping[str, tuple[KeyPath, ...]]
    defaults: Mapping[str, str] = field(default_factory=dict)
    rules: bool = True
    items: KeyPath | None = None
    last_wins: bool = False
    first: int = 0
    named_in: tuple[Path, Syntax, KeyPath] | None = None
