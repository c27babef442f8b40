"""What the tests of all trainers share: a folder with files, a command in it, and one change with its inverse."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tunewarden.trainers.beside import write_all
from tunewarden.trainers.recipe import ConfigPlan, Recipe
from tunewarden.trainers.table import recognise

HALF = {"batch_size": "/2"}


@dataclass(frozen=True, kw_only=True)
class Case:
    """A folder and a command that was started in it."""

    folder: Path
    argv: tuple[str, ...]

    @property
    def recipe(self) -> Recipe:
        """The recipe of the command, read anew."""
        recipe = recognise(self.argv, self.folder)
        assert recipe is not None
        return recipe

    def knobs(self) -> dict[str, tuple[str, str, int]]:
        """Value, file name (or `argv`) and line of each knob."""
        read = self.recipe.read_knobs()
        return {name: (knob.value, knob.file.name if knob.file else "argv", knob.line) for name, knob in read.items()}

    def half(self) -> ConfigPlan:
        """The plan for half the batch."""
        return self.recipe.plan(HALF, allow_effective_batch_change=False)

    def changed(self, knobs: Mapping[str, str]) -> "Case":
        """The case after the change: copies are written, the argv names them."""
        plan = self.recipe.plan(knobs, allow_effective_batch_change=False)
        argv = list(plan.argv)
        named = {place.path for copy in plan.copies for place in copy.references}
        for old, new in write_all(plan.copies, 2).items():
            if old not in named:
                argv = self.recipe.argv_with(argv, old, new)
        return Case(folder=self.folder, argv=tuple(argv))


def case(folder: Path, line: str, files: Mapping[str, str]) -> Case:
    """`files` written as they are, and `line` split as a shell does."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return Case(folder=folder, argv=tuple(shlex.split(line)))


def changes(plan: ConfigPlan) -> set[tuple[str, str, str, str, int]]:
    """Knob, old, new, file name (or `argv`) and line of each change."""
    return {
        (each.knob, each.old, each.new, each.file.name if each.file else "argv", each.line) for each in plan.changes
    }


def changed_lines(plan: ConfigPlan, name: str) -> list[str]:
    """The lines of the copy of file `name` that differ from the original's."""
    copy = next(copy for copy in plan.copies if copy.config_path.name == name)
    old = copy.config_path.read_bytes().decode("utf-8-sig").splitlines()
    new = copy.new_bytes.decode("utf-8-sig").splitlines()
    assert len(old) == len(new)
    return [after for before, after in zip(old, new, strict=True) if before != after]
