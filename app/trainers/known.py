"""The recipe of a trainer whose settings stand in known places: what is common to all of them.

What differs is a table of places (`Layer`) and four functions (`Ways`), in the trainer's own file.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.trainers.command import Command, find_commands
from tunewarden.trainers.layers import Layer, hash_of, plan_layers, read_layers
from tunewarden.trainers.overruled import overruled
from tunewarden.trainers.recipe import ConfigPlan, Explanation, HookSettings, Knob, Resumption, SavedState, Tier


@dataclass(frozen=True, kw_only=True)
class Ways:
    """What a trainer does in its own way. `check` raises Refused for knobs that don't go with the other settings."""

    hook_settings: Callable[["Known"], HookSettings]
    resume: Callable[["Known", Sequence[str], SavedState, int], Resumption]
    states: Callable[["Known"], tuple[SavedState, ...]]
    explain: Callable[["Known"], Explanation]
    check: Callable[["Known", Mapping[str, str]], None] = lambda known, knobs: None  # noqa: ARG005
    final: Callable[["Known"], tuple[Path, Path] | None] = lambda known: None  # noqa: ARG005


@dataclass(frozen=True, kw_only=True)
class Known:
    """A recognised trainer. `layers` hold its knobs, `facts` its other settings; `cwd` is where the job was started."""

    trainer: str
    tier: Tier
    command: Command
    cwd: Path
    layers: tuple[Layer, ...]
    ways: Ways
    config_sha256: str | None
    facts: tuple[Layer, ...] = ()
    main: Path | None = None
    keeps_hook_states: bool = True
    option: str | None = None  # the only one that names the config; None: any word may
    extra: Mapping[str, Knob] = field(default_factory=dict)  # knobs that stand in Python code

    @property
    def config_path(self) -> Path | None:
        """The file that a person would call the config."""
        return self.main or next((layer.file for layer in self.layers if layer.file is not None), None)

    def files(self) -> tuple[Path, ...]:
        """All files that rule, in the order of their layers."""
        return tuple(dict.fromkeys(layer.file for layer in self.layers if layer.file is not None))

    def read_knobs(self) -> dict[str, Knob]:
        """The knobs that are set, by canonical name; see Recipe.read_knobs."""
        return {**self.extra, **read_layers(self.layers, self.command.words)}

    def fact(self, name: str) -> Knob | None:
        """A setting that is no knob, such as output_dir; None also where its file can't be read."""
        return self._facts.get(name)

    @cached_property
    def _facts(self) -> dict[str, Knob]:
        """Read once: one recipe is asked for many, and a file is parsed in milliseconds."""
        try:
            return read_layers(self.facts, self.command.words)
        except Refused:
            return {}

    def text_of(self, name: str) -> str:
        """The value of a setting that is no knob; empty where nothing sets it."""
        knob = self.fact(name)
        return knob.value if knob is not None else ""

    def folder_of(self, name: str) -> Path | None:
        """The path that a setting names for the trainer, absolute."""
        text = self.text_of(name)
        return self.command.resolve(text) if text else None

    def value(self, knob: str) -> str:
        """A knob's value, or what the trainer takes when nothing sets it; empty when that isn't known."""
        read = self.read_knobs().get(knob)
        return read.value if read is not None else self.defaults().get(knob, "")

    def defaults(self) -> dict[str, str]:
        """The values that the trainer takes where nothing is set, by canonical name."""
        return {knob: value for layer in reversed(self.layers) for knob, value in layer.defaults.items()}

    def plan(
        self, knobs: Mapping[str, str], *, allow_effective_batch_change: bool, launched_sha256: str | None = None
    ) -> ConfigPlan:
        """How files and argv would read with `knobs` changed; see Recipe.plan."""
        self._refuse_edited(launched_sha256)
        self.ways.check(self, knobs)
        plan = plan_layers(
            self.layers, self.command.words, knobs, allow_effective_batch_change=allow_effective_batch_change
        )
        self._refuse_edited(launched_sha256)  # and not while it was planned
        return replace(plan, argv=tuple(self.command.argv_with(plan.argv)))

    def _refuse_edited(self, launched_sha256: str | None) -> None:
        files = self.files()
        if files and hash_of(files) != (launched_sha256 or self.config_sha256):
            raise Refused(
                Reason.CONFIG_CHANGED,
                f"{self.config_path}:1: was edited after the job had read it, so the job may not run what it says; "
                "start the job again with the edited file",
            )

    def argv_with(self, argv: Sequence[str], old: Path, new: Path) -> list[str]:
        """`argv` with the argument that names `old` naming `new`; see Recipe.argv_with."""
        command = self.command_in(argv)
        for depth, shell in enumerate(command.shells):
            if shell.file == old.absolute():
                words = list(shell.words)
                words[shell.index] = _renamed(words[shell.index], old, new)
                return replace(command, shells=command.shells[:depth]).argv_with(words)
        places = [i for i in range(command.program + 1, len(command.words)) if self._names(command, i, old)]
        if len(places) != 1:
            raise Refused(Reason.CONFIG_NOT_FOUND, f"the command does not name {old} once")
        words = list(command.words)
        head, equals, value = _option(words[places[0]])
        words[places[0]] = f"{head}{equals}{_renamed(value, old, new)}"
        return command.argv_with(words)

    def _names(self, command: Command, index: int, file: Path) -> bool:
        head, _, value = _option(command.words[index])
        if self.option is not None and self.option not in (head, command.words[index - 1]):
            return False
        return file.absolute() in (command.resolve(value), command.resolve(f"{value}.toml"))

    def command_in(self, argv: Sequence[str]) -> Command:
        """The trainer's command in a changed argv of this job. Raises Refused(config_not_found)."""
        found = [each for each in find_commands(argv, self.cwd) if each.name == self.command.name]
        if len(found) != 1:
            raise Refused(Reason.CONFIG_NOT_FOUND, f"the command does not run {self.command.name} once any more")
        return found[0]

    def hook_settings(self) -> HookSettings:
        """What the hook is told for generation 1."""
        return self.ways.hook_settings(self)

    def resume(self, argv: Sequence[str], state: SavedState, *, generation: int) -> Resumption:
        """How `generation` is started from `state`; see Recipe.resume."""
        return self.ways.resume(self, argv, state, generation)

    def states(self) -> tuple[SavedState, ...]:
        """The trainer's own complete states on disk, newest step last."""
        return self.ways.states(self)

    def final(self) -> tuple[Path, Path] | None:
        """The last result as it is written, and as it was planned; see Recipe.final."""
        return self.ways.final(self)

    def explain(self) -> Explanation:
        """How the trainer saves, is adjusted and resumed, and what in its config will go wrong."""
        try:
            told = self.ways.explain(self)
            return replace(told, warnings=(*told.warnings, *overruled(self.layers, self.command.words)))
        except Refused as refused:  # a config that can't be read
            unread = "can't be told before the config can be read"
            return Explanation(
                saves=unread, adjusts=unread, resumes=unread, warnings=(str(refused),), files=self.files()
            )


def sha_of(layers: Sequence[Layer]) -> str | None:
    """The hash over the files of `layers`; None where there are none, or one can't be read."""
    files = tuple(dict.fromkeys(layer.file for layer in layers if layer.file is not None))
    try:
        return hash_of(files) if files else None
    except Refused:
        return None


def _option(word: str) -> tuple[str, str, str]:
    """`--config=x` as its option, `=` and value; another word is all value."""
    if word.startswith("-") and "=" in word:
        head, equals, value = word.partition("=")
        return head, equals, value
    return "", "", word


def _renamed(word: str, old: Path, new: Path) -> str:
    """The word for `new`, relative where `old` was written so and both lie in one folder."""
    if new.absolute().parent != old.absolute().parent:
        return str(new)
    written = old.name if word.endswith(old.name) else old.stem  # sd-scripts lets .toml be left out
    return word[: len(word) - len(written)] + new.name
