"""What a trainer's recipe knows: which file rules the knobs, what they are, how the file would read after a change."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One knob as the config sets it: `value` as written (without quotes), at `file`:`line` (from 1)."""

    value: str
    file: Path
    line: int


@dataclass(frozen=True, kw_only=True)
class KnobChange:
    """One planned change. `knob` is the canonical name, `old` and `new` are as written in the file."""

    knob: str
    old: str
    new: str
    file: Path
    line: int


@dataclass(frozen=True, kw_only=True)
class ConfigPlan:
    """How an adjusted copy of a config would read. Nothing is written yet: `write_beside` does that.

    `config_sha256` is the original's at planning; `diff` is unified text. `effective_batch` is batch × accumulation
    before and after, or None when no batch knob was asked for. `warnings` are lines for a person (the effective batch
    changed).
    """

    changes: tuple[KnobChange, ...]
    diff: str
    config_path: Path
    config_sha256: str
    new_bytes: bytes
    effective_batch: tuple[int, int] | None
    warnings: tuple[str, ...] = ()


class Recipe(Protocol):
    """A trainer that was recognised in a command. Made by `tunewarden.trainers.table.recognise`."""

    @property
    def trainer(self) -> str:
        """The name that policies match, such as `lora-yaml`."""

    @property
    def config_path(self) -> Path:
        """The file that rules the knobs, absolute."""

    @property
    def config_sha256(self) -> str:
        """The file's hash when the command was recognised: keep it, and hand it to `plan` after a restart."""

    def read_knobs(self) -> dict[str, Knob]:
        """The knobs that the config sets, by canonical name. Raises Refused(config_not_found | config_malformed)."""

    def plan(
        self,
        knobs: Mapping[str, str],
        *,
        allow_effective_batch_change: bool,
        launched_sha256: str | None = None,
    ) -> ConfigPlan:
        """How the config would read with `knobs` ("/2", "*2" or a value) changed.

        `launched_sha256` is the config's hash when the job read it (default: `config_sha256`). Raises Refused with a
        reason and one line `file:line: what, why, what to do`.
        """

    def argv_with(self, argv: Sequence[str], old: Path, new: Path) -> list[str]:
        """`argv` with the config argument that names `old` replaced by `new`, in the same spelling.

        A relative argument stays relative when `new` lies beside `old`. Raises Refused(config_not_found) when no
        argument names `old`.
        """
