"""The trainers that we know, in the order in which they are asked."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tunewarden.trainers import lora_yaml
from tunewarden.trainers.recipe import Recipe

RECIPES: tuple[Callable[[Sequence[str], Path], Recipe | None], ...] = (lora_yaml.recognise,)


def recognise(argv: Sequence[str], cwd: Path) -> Recipe | None:
    """The recipe of the trainer that `argv`, started in `cwd`, runs; None when we know none. Reads, never writes."""
    for ask in RECIPES:
        recipe = ask(argv, cwd)
        if recipe is not None:
            return recipe
    return None
