"""Whether the training hook can reach a trainer: an interpreter that ignores PYTHONPATH never loads it."""

import re
from collections.abc import Sequence
from pathlib import Path, PurePath

from tunewarden.trainers.command import Command, find_commands

_PYTHON = re.compile(r"(python|pypy)(\d+(\.\d+)*)?(\.exe)?")
_WITH_A_VALUE = frozenset({"-X", "-W"})
_SHEBANG_BYTES = 256
_DEAF = {  # letters of the interpreter's options; -I implies -E
    "I": "ignores PYTHONPATH",
    "E": "ignores PYTHONPATH",
    "S": "runs no sitecustomize",
}


def why_unhooked(argv: Sequence[str], cwd: Path) -> str | None:
    """One sentence where the command's own interpreter options keep the training hook out; None where nothing does.

    Only what stands in the command, in a shell's text or in a script's first line is seen.
    """
    for command in find_commands(argv, cwd):
        letter = next((letter for letter in _letters(_options(command)) if letter in _DEAF), None)
        if letter is not None:
            return (
                f"python -{letter} {_DEAF[letter]}, so the training hook is not loaded: start the trainer without "
                f"-{letter}, or let it speak the control directory by itself"
            )
    return None


def _options(command: Command) -> Sequence[str]:
    """The options of the interpreter that runs the trainer itself; a launcher's own interpreter starts another one."""
    before = command.words[: command.program]
    pythons = [index for index, word in enumerate(before) if _PYTHON.fullmatch(PurePath(word).name)]
    if pythons:
        return _own_options(before[pythons[-1] + 1 :])
    return _shebang(command) if not before else ()


def _own_options(between: Sequence[str]) -> Sequence[str]:
    """The words between python and the trainer, () where a launcher's module stands there."""
    options, position = [], 0
    while position < len(between):
        word = between[position]
        if word == "-m" and position == len(between) - 1:  # python -I -m trainer
            break
        if word == "-m" or not word.startswith("-"):
            return ()
        options.append(word)
        position += 2 if word in _WITH_A_VALUE else 1
    return options


def _shebang(command: Command) -> Sequence[str]:
    """The options in the first line of a script that is started by its own name."""
    try:
        if command.script is None:
            return ()
        with command.script.open("rb") as file:
            words = file.readline(_SHEBANG_BYTES).decode("utf-8", "replace").removeprefix("#!").split()
    except OSError:
        return ()
    pythons = [index for index, word in enumerate(words) if _PYTHON.fullmatch(PurePath(word).name)]
    return words[pythons[-1] + 1 :] if pythons else ()


def _letters(options: Sequence[str]) -> str:
    """The letters of `-sE`, `-I`; none of long options, nor of -X, -W and -c, whose rest is a value."""
    found = ""
    for option in options:
        if not option.startswith("--"):
            found += re.split("[XWcm]", option[1:])[0]
    return found
