"""What a trainer's recipe knows: what rules the knobs, how that would read after a change, how a state is resumed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol


class Tier(StrEnum):
    """How far a trainer is supported. docs/reference/trainers.md says it per cell."""

    PROVEN = "proven"  # the trainer itself ran: saved, resumed at another batch size, ended at its total
    KNOWN = "known"  # recognised, knobs read and written, resumed: from its source
    NAMED = "named"  # recognised, and what is possible is said


@dataclass(frozen=True, kw_only=True)
class Knob:
    """One knob as the config sets it: `value` as written (without quotes), at `file`:`line` (from 1).

    `file` None: the command line, `line` is then the word's index in argv, from 1.
    """

    value: str
    file: Path | None
    line: int


@dataclass(frozen=True, kw_only=True)
class KnobChange:
    """One planned change. `knob` is the canonical name, `old` and `new` are as written; place as in `Knob`.

    `old` is "" for a key that is put in, `new` for one that is taken out. Line 0 without file: the environment.
    """

    knob: str
    old: str
    new: str
    file: Path | None
    line: int


@dataclass(frozen=True, kw_only=True)
class Reference:
    """Where one config names another that is copied too: bytes `start` to `end` of the copy are that file's name."""

    path: Path
    start: int
    end: int


@dataclass(frozen=True, kw_only=True)
class FileCopy:
    """How an adjusted copy of one config would read. Nothing is written yet: `beside.write_beside` does that.

    `config_sha256` is the original's at planning; `diff` is unified text. `references` are the places that must name
    other copies once these have names: `beside.write_all` fills them in.
    """

    config_path: Path
    config_sha256: str
    new_bytes: bytes
    diff: str
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ConfigPlan:
    """All that a change of knobs needs: copies of files, another argv, more environment.

    `copies` stand in the order in which they are to be written. `argv` has its flags changed, the copies' names not yet
    in: `Recipe.argv_with` puts them in. `env` is added to the job's. `effective_batch` is batch × accumulation before
    and after, or None when no batch knob was asked for. `warnings` are lines for a person.
    """

    changes: tuple[KnobChange, ...]
    copies: tuple[FileCopy, ...]
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    effective_batch: tuple[int, int] | None = None
    warnings: tuple[str, ...] = ()
    argv_diff: str = ""

    @property
    def diff(self) -> str:
        """What changes, all files and the command line, as unified text; empty where nothing does."""
        return "\n".join(part for part in (*(copy.diff for copy in self.copies), self.argv_diff) if part)


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """A complete state on disk: a file or folder that training can go on from, made after optimizer step `step`."""

    step: int
    path: Path


@dataclass(frozen=True, kw_only=True)
class HookSettings:
    """What the training hook is told before a launch: hook.json, see docs/reference/control-directory.md.

    `base_step` is the optimizer steps that earlier generations have made.
    """

    states: Path | None = None
    state_name: str | None = None
    resume_by: Literal["trainer", "hook"] = "hook"
    total_steps: int | None = None
    stop_at_total: bool = False
    base_step: int = 0

    def to_wire(self) -> dict[str, Any]:
        """The body of hook.json."""
        return {
            "protocol": 1,
            "states": str(self.states) if self.states else None,
            "state_name": self.state_name,
            "resume_by": self.resume_by,
            "total_steps": self.total_steps,
            "stop_at_total": self.stop_at_total,
            "base_step": self.base_step,
        }


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """How the next generation is started so that it goes on from a state."""

    argv: tuple[str, ...]
    hook: HookSettings


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """A recipe in sentences for a person; `warnings` are `file:line: what is wrong, why, what to do`."""

    saves: str
    adjusts: str
    resumes: str
    warnings: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()  # that rule, the first rules first
    defaults: Mapping[str, str] = field(default_factory=dict)  # what the trainer takes for knobs that nothing sets


class Recipe(Protocol):
    """A trainer that was recognised in a command. Made by `tunewarden.trainers.table.recognise`."""

    @property
    def trainer(self) -> str:
        """The name that policies match, such as `lora-yaml`."""

    @property
    def tier(self) -> Tier:
        """How far it is supported."""

    @property
    def keeps_hook_states(self) -> bool:
        """Whether the trainer can go on from what the training hook saves. Not where it has a format of its own."""

    @property
    def config_path(self) -> Path | None:
        """The first file that rules the knobs, absolute; None where only the command line does."""

    @property
    def config_sha256(self) -> str | None:
        """The hash over all ruling files when the command was recognised (one file: that file's); None without files.

        Keep it, and hand it to `plan` after a restart.
        """

    def read_knobs(self) -> dict[str, Knob]:
        """The knobs that are set, by canonical name. Raises Refused(config_not_found | config_malformed)."""

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

    def hook_settings(self) -> HookSettings:
        """What the hook is told for generation 1."""

    def resume(self, argv: Sequence[str], state: SavedState, *, generation: int) -> Resumption:
        """How `generation` is started from `state`; `argv` has the changed flags in. Raises Refused(cannot_resume)."""

    def states(self) -> tuple[SavedState, ...]:
        """The trainer's own complete states on disk, newest step last.

        Half-written ones are left out. The step decides, never a file's time.
        """

    def final(self) -> tuple[Path, Path] | None:
        """The last result as this generation writes it, and the name that the user planned; None where they are one.

        A trainer that would overwrite what an earlier generation wrote is started with another name.
        """

    def explain(self) -> Explanation:
        """How the trainer saves, is adjusted and resumed, and what in its config will go wrong."""
