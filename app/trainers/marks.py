"""By which marks a trainer is known: the name that its source gives to a script, else what the script's text uses.

The text decides where it can be read, so that a renamed copy is known and another's script of the same name isn't.
"""

import re
from pathlib import PurePath

from tunewarden.trainers import python_code
from tunewarden.trainers.command import Command, Kind


def script_name(command: Command) -> str:
    """The file name of the script, or the last part of the module's name with .py; empty for a program."""
    if command.kind is Kind.PROGRAM:
        return ""
    if command.kind is Kind.MODULE:
        return command.name.rpartition(".")[2] + ".py"
    return PurePath(command.name).name


def is_program(command: Command, programs: set[str], word: str) -> bool:
    """Whether an installed program, or its module, is told to do `word`, such as `axolotl train`."""
    return command.kind is not Kind.SCRIPT and command.name in programs and command.args[:1] == (word,)


def is_module(command: Command, *modules: str) -> bool:
    """Whether one of these modules is run with -m."""
    return command.kind is Kind.MODULE and command.name in modules


def is_named(command: Command, pattern: str) -> bool:
    """Whether the script has a name that fits, where its text can't be read."""
    return not command.text and re.fullmatch(pattern, script_name(command)) is not None


def imports(command: Command, *modules: str) -> bool:
    """Whether the script's text imports one of these modules."""
    return bool(python_code.imports(command.text) & set(modules))


def imports_like(command: Command, pattern: str) -> bool:
    """Whether the script's text imports a module whose dotted name fits."""
    return any(re.fullmatch(pattern, name) for name in python_code.imports(command.text))


def calls(command: Command, *names: str) -> bool:
    """Whether the script's text calls one of these, by the last part of the name."""
    return bool(python_code.calls(command.text) & set(names))


def declares(command: Command, *options: str) -> bool:
    """Whether the script's text declares all of these options."""
    return set(options) <= python_code.options(command.text)
