"""The flat YAML of the lora-scripts articles: `python train.py --config my_lora.yaml`.

No public reference implementation exists (see docs/reference/knobs.md): the file is the only thing that we rely on.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tunewarden.domain import tuning
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.trainers import flat_yaml, yaml_splice
from tunewarden.trainers.command import find_script, option_values, resolved
from tunewarden.trainers.recipe import (
    ConfigPlan,
    Explanation,
    HookSettings,
    Knob,
    Resumption,
    SavedState,
    Tier,
)

TRAINER = "lora-yaml"

_SUFFIXES = (".yaml", ".yml")
_MARKS = frozenset({"train_data_dir", "base_model"})
_MARK_LINES = re.compile(rb"(?m)^(\xef\xbb\xbf)?[\"']?(train_data_dir|base_model)[\"']?\s*:")


@dataclass(frozen=True, kw_only=True)
class LoraYaml:
    """A recognised `train.py --config X.yaml`. `argv` and `cwd` are as the job was started."""

    config_path: Path
    config_sha256: str
    argv: tuple[str, ...]
    cwd: Path
    script: int
    trainer: str = TRAINER
    tier: Tier = Tier.KNOWN

    def read_knobs(self) -> dict[str, Knob]:
        """The knobs that the file sets plainly, by canonical name; see Recipe.read_knobs."""
        return flat_yaml.read_knobs(self.config_path, flat_yaml.read(self.config_path))

    def plan(
        self, knobs: Mapping[str, str], *, allow_effective_batch_change: bool, launched_sha256: str | None = None
    ) -> ConfigPlan:
        """How the file would read with `knobs` changed; see Recipe.plan."""
        data = flat_yaml.read(self.config_path)
        if flat_yaml.sha256(data) != (launched_sha256 or self.config_sha256):
            raise Refused(
                Reason.CONFIG_CHANGED,
                f"{self.config_path}:1: was edited after the job had read it, so the job may not run what it says; "
                "start the job again with the edited file",
            )
        self._refuse_flags(data, knobs)
        plan = flat_yaml.plan(
            self.config_path, data, knobs, allow_effective_batch_change=allow_effective_batch_change, resuming=True
        )
        return replace(plan, argv=self.argv)

    def argv_with(self, argv: Sequence[str], old: Path, new: Path) -> list[str]:
        """`argv` with the config argument that names `old` naming `new`; see Recipe.argv_with."""
        script = find_script(argv)
        places = option_values(argv, script.index + 1, "--config") if script else []
        places = [(index, word) for index, word in places if resolved(word, self.cwd) == old.absolute()]
        if len(places) != 1:
            raise Refused(Reason.CONFIG_NOT_FOUND, f"the command does not name {old} once with --config")
        index, word = places[0]
        written = str(new)
        if new.absolute().parent == old.absolute().parent:
            written = word[: len(word) - len(old.name)] + new.name
        head = "--config=" if argv[index].startswith("--config=") else ""
        return [*argv[:index], head + written, *argv[index + 1 :]]

    def hook_settings(self) -> HookSettings:
        """Nothing is known of the script: the hook's own defaults hold."""
        return HookSettings()

    def resume(self, argv: Sequence[str], state: SavedState, *, generation: int) -> Resumption:  # noqa: ARG002
        """The same command: the script reads resume.json, or the hook loads the state for it."""
        return Resumption(argv=tuple(argv), hook=HookSettings(base_step=state.step))

    def states(self) -> tuple[SavedState, ...]:
        """None: no public trainer defines how it saves."""
        return ()

    def explain(self) -> Explanation:
        """What is relied on, in sentences."""
        return Explanation(
            saves="what the script promises in hello.json, or the training hook at an optimizer step",
            adjusts=f"writes a copy of {self.config_path.name} beside it and starts the script with the copy",
            resumes="the same command; the script reads resume.json, or the training hook loads the state",
        )

    def _refuse_flags(self, data: bytes, knobs: Mapping[str, str]) -> None:
        """A knob that the command sets too has two sources; the command's usually wins."""
        touched = set(knobs) | ({tuning.ACCUMULATION} if tuning.BATCH in knobs else set())
        for knob in sorted(touched & flat_yaml.FILE_KEYS.keys()):
            key = flat_yaml.FILE_KEYS[knob]
            for flag in {f"--{key}", f"--{key.replace('_', '-')}"}:
                if any(word == flag or word.startswith(f"{flag}=") for word in self.argv[self.script + 1 :]):
                    line = flat_yaml.line_of(self.config_path, data, key)
                    raise Refused(
                        Reason.KNOB_NOT_CHANGEABLE,
                        f"{self.config_path}:{line}: `{key}` is set here and by {flag} in the command, "
                        "and they may disagree; keep it in the file only",
                    )


def recognise(argv: Sequence[str], cwd: Path) -> LoraYaml | None:
    """The recipe when `argv` runs a Python script with `--config X.yaml` and the file looks like the articles'.

    A file that is damaged but has the articles' keys is recognised, so that the plan can say what is wrong with it.
    """
    script = find_script(argv)
    configs = option_values(argv, script.index + 1, "--config") if script else []
    if script is None or len(configs) != 1:
        return None
    word = configs[0][1]
    if not word.endswith(_SUFFIXES) or (script.changes_folder and not Path(word).is_absolute()):
        return None
    path = resolved(word, cwd)
    if not path.is_file():  # reading a pipe would wait for ever
        return None
    try:
        data = path.read_bytes()
    except OSError:
        return None
    if not _looks_right(data):
        return None
    return LoraYaml(
        config_path=path, config_sha256=flat_yaml.sha256(data), argv=tuple(argv), cwd=cwd, script=script.index
    )


def adjust_file(path: Path, knobs: Mapping[str, str]) -> ConfigPlan:
    """The plan for a person's own `tunewarden adjust`: a changed effective batch is warned about, not refused.

    Any flat YAML file will do. Raises Refused as Recipe.plan does.
    """
    path = path.absolute()
    return flat_yaml.plan(path, flat_yaml.read(path), knobs, allow_effective_batch_change=True, resuming=False)


def _looks_right(data: bytes) -> bool:
    if _MARK_LINES.search(data) is not None:  # mostly: and parsing takes ms, while an order waits
        return True
    try:
        return bool(_MARKS & yaml_splice.keys(yaml_splice.parse(data, where="config")))
    except Refused:
        return False
