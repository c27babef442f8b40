"""Find the Python script in a command line, behind the launchers that people put before it. Nothing is run."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath

_PYTHON = re.compile(r"python(\d+(\.\d+)*)?(\.exe)?")
_LAUNCHERS = frozenset({
    "accelerate", "torchrun", "deepspeed", "uv", "poetry", "pdm", "pipenv", "conda", "mamba", "micromamba",
    "env", "nice", "ionice", "nohup", "stdbuf", "taskset", "numactl", "time", "unbuffer",
})  # fmt: skip
_LAUNCHER_MODULES = frozenset({
    "accelerate.commands.launch", "accelerate.commands.accelerate_cli",
    "torch.distributed.run", "torch.distributed.launch",
})  # fmt: skip
_WITH_A_VALUE = frozenset({"-X", "-W"})
_FOLDER_OPTIONS = frozenset({"-C", "--chdir", "--cwd", "--directory", "--project"})


@dataclass(frozen=True, kw_only=True)
class Script:
    """A script in an argv: its place there, and whether a launcher changes the folder before it starts it."""

    index: int
    changes_folder: bool


def find_script(argv: Sequence[str]) -> Script | None:
    """The `.py` file that the command runs; None for a shell, `python -c`, a module or a program that we don't know."""
    index = next((i for i, word in enumerate(argv) if word.endswith(".py")), None)
    if index is None or not _is_known(argv[0]):
        return None
    before = argv[:index]
    pythons = [i for i, word in enumerate(before) if _PYTHON.fullmatch(PurePath(word).name)]
    if pythons and not _only_options(before[pythons[-1] + 1 :]):
        return None
    changes = any(word.partition("=")[0] in _FOLDER_OPTIONS for word in before)
    return Script(index=index, changes_folder=changes)


def _is_known(program: str) -> bool:
    name = PurePath(program).name
    return name in _LAUNCHERS or name.endswith(".py") or _PYTHON.fullmatch(name) is not None


def _only_options(words: Sequence[str]) -> bool:
    """Whether all words between the interpreter and the script are the interpreter's options, or `-m` of a launcher."""
    position = 0
    while position < len(words):
        word = words[position]
        if word == "-m":
            return position + 1 < len(words) and words[position + 1] in _LAUNCHER_MODULES
        if not word.startswith("-") or word.startswith("-c"):
            return False
        position += 2 if word in _WITH_A_VALUE else 1
    return True


def option_values(argv: Sequence[str], first: int, name: str) -> list[tuple[int, str]]:
    """The values of `--name VALUE` and `--name=VALUE` from argv[first] on, each with the index of its word."""
    found = []
    for index in range(first, len(argv)):
        if argv[index] == "--":
            break
        if argv[index] == name and index + 1 < len(argv):
            found.append((index + 1, argv[index + 1]))
        elif argv[index].startswith(f"{name}="):
            found.append((index, argv[index].partition("=")[2]))
    return found


def resolved(word: str, cwd: Path) -> Path:
    """The file that `word` names for a process in `cwd`, absolute, links kept."""
    return Path(cwd, word).absolute()
