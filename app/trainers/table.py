"""The trainers that we know, in the order in which they are asked."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tunewarden.trainers import (
    axolotl,
    diffusers_examples,
    kohya_gui,
    llama_factory,
    lora_scripts,
    lora_yaml,
    musubi_tuner,
    named,
    own_script,
    sd_scripts,
)
from tunewarden.trainers.command import Command, find_commands
from tunewarden.trainers.in_script import from_script
from tunewarden.trainers.known import Known
from tunewarden.trainers.recipe import Recipe

# The more special first: a LoRA of lora-scripts is also one of sd-scripts, and both are accelerate loops.
RECIPES: tuple[Callable[[Command, Path], Recipe | None], ...] = (
    lora_yaml.recognise,
    lora_scripts.recognise,
    kohya_gui.recognise,
    sd_scripts.recognise,
    musubi_tuner.recognise,
    llama_factory.recognise,
    axolotl.recognise,
    named.recognise,
    diffusers_examples.recognise,
    own_script.recognise_unsloth,
    own_script.recognise_transformers,
    own_script.recognise_accelerate,
    own_script.recognise_python,
)
GENERIC = frozenset({"python"})


def recognise(argv: Sequence[str], cwd: Path) -> Recipe | None:
    """The recipe of the trainer that `argv`, started in `cwd`, runs; None when we know none. Reads, never writes.

    A shell that runs more than one, or one in a loop, gives none: it can't be told which is meant.
    """
    found = [(command, recipe) for command in find_commands(argv, cwd) if (recipe := recipe_of(command, cwd))]
    known = [each for each in found if each[1].trainer not in GENERIC] or found
    if len(known) != 1 or known[0][0].in_loop:
        return None
    return known[0][1]


def recipe_of(command: Command, cwd: Path) -> Recipe | None:
    """The recipe of one command."""
    for ask in RECIPES:
        recipe = ask(command, cwd)
        if recipe is not None:
            return from_script(recipe) if isinstance(recipe, Known) else recipe
    return None
