"""Find the trainer in a command line, behind the launchers and shells that people put before it. Nothing is run."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path, PurePath

from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.trainers.paths import is_file
from tunewarden.trainers.shell_text import MAX_BYTES, NotPlainError, Statement, statements

_PYTHON = re.compile(r"(python|pypy)(\d+(\.\d+)*)?(\.exe)?")
_ENVIRONMENTS = frozenset({
    "uv", "uvx", "pipx", "poetry", "pdm", "pipenv", "conda", "mamba", "micromamba", "pixi", "hatch", "rye",
})  # fmt: skip
_DISTRIBUTORS = frozenset({"accelerate", "torchrun", "deepspeed", "accelerate-launch"})
_PREFIXES = frozenset({
    "env", "nice", "ionice", "nohup", "stdbuf", "taskset", "numactl", "time", "unbuffer", "setsid", "chrt", "timeout",
    "exec", "command",
})  # fmt: skip
_LAUNCHERS = _ENVIRONMENTS | _DISTRIBUTORS | _PREFIXES
_LAUNCHER_MODULES = frozenset({
    "accelerate.commands.launch", "accelerate.commands.accelerate_cli", "accelerate",
    "torch.distributed.run", "torch.distributed.launch", "deepspeed.launcher.runner",
})  # fmt: skip
# Programs that are trainers by themselves; what their words mean is their recipe's.
_PROGRAMS = frozenset({"llamafactory-cli", "lmf", "axolotl", "tune", "unsloth", "lightning", "fabric", "trl"})
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash"})
_WITH_A_VALUE = frozenset({"-X", "-W"})  # of the interpreter
_FOLDER_OPTIONS = frozenset({"-C", "--chdir", "--cwd", "--directory"})
# Options before the trainer whose value could be taken for a program: `conda run -n axolotl …`.
_NAMES_SOMETHING = _FOLDER_OPTIONS | {
    "-n", "--name", "-p", "--prefix", "--project", "--with", "--python", "--env-file", "--extra", "--group",
    "--package", "--from", "-e", "--environment", "-u", "--unset",
}  # fmt: skip
_MAX_TEXT = 1 << 20  # bytes of a script that is read to see what it is
_MAX_SHELLS = 3  # shells in shells


class Kind(StrEnum):
    """How the trainer is named."""

    SCRIPT = "script"  # a file
    MODULE = "module"  # behind -m
    PROGRAM = "program"  # an installed command


@dataclass(frozen=True, kw_only=True)
class Shell:
    """A shell around the trainer: `words[index]` is its text (`-c`), or the script's name when `file` is set."""

    words: tuple[str, ...]
    index: int
    file: Path | None
    text: str
    statement: Statement

    @property
    def where(self) -> str:
        """How messages name the place."""
        return f"{self.file}:{self.statement.line}" if self.file else "the text behind -c"

    def words_with(self, inner: Sequence[str]) -> list[str]:
        """The shell's own words when its statement reads `inner`. Raises Refused(command_is_a_script)."""
        words, old, tail = list(self.words), list(self.statement.words), self.statement.positional
        if list(inner) == old:
            return words
        if tail is not None and list(inner[:tail]) == old[:tail]:  # `exec python train.py "$@"`
            return [*words[: self.index + 1], *words[self.index + 1 : self.index + 1 + self._kept()], *inner[tail:]]
        written = self.text[self.statement.start : self.statement.end]
        if self.file is not None or not self.statement.whole or set("<>") & set(written):
            raise Refused(
                Reason.COMMAND_IS_A_SCRIPT,
                f"{self.where}: the trainer's words stand in a shell's text, which is not rewritten; end its line with "
                '"$@", or start the trainer itself with `tunewarden run`',
            )
        words[self.index] = self.text[: self.statement.start] + shlex.join(inner) + self.text[self.statement.end :]
        return words

    def _kept(self) -> int:
        """Words between the text and "$@": the name that `bash -c TEXT NAME` gives."""
        return 1 if self.file is None else 0


@dataclass(frozen=True, kw_only=True)
class Command:
    """A program in a command line. `argv` is the job's, `words` those that name the program, in their order.

    `words` differ from `argv` only inside a shell. `cwd` is where the program starts, None when that can't be told.
    `interpreter` are the options between python and the script, such as -u.
    """

    argv: tuple[str, ...]
    words: tuple[str, ...]
    program: int
    kind: Kind
    cwd: Path | None
    interpreter: tuple[str, ...] = ()
    shells: tuple[Shell, ...] = ()  # outermost first

    @property
    def name(self) -> str:
        """The script as written, the module or the program's file name."""
        word = self.words[self.program]
        return PurePath(word).name if self.kind is Kind.PROGRAM else word

    @property
    def args(self) -> tuple[str, ...]:
        """The words behind the program."""
        return self.words[self.program + 1 :]

    @property
    def script(self) -> Path | None:
        """The Python file that is run, absolute; None for what is installed elsewhere."""
        word = self.words[self.program]
        if self.kind is Kind.MODULE:
            word = word.replace(".", "/") + ".py"
        path = None if self.kind is Kind.PROGRAM else self.resolve(word)
        return path if is_file(path) else None

    @property
    def in_loop(self) -> bool:
        """Whether a shell runs it more than once."""
        return any(shell.statement.in_loop for shell in self.shells)

    @cached_property
    def text(self) -> str:
        """The script's source, read once; empty when it can't be read or is too large to be one."""
        path = self.script
        try:
            if path is None or path.stat().st_size > _MAX_TEXT:
                return ""
            return path.read_text(encoding="utf-8-sig", errors="replace")
        except OSError:
            return ""

    def resolve(self, word: str) -> Path | None:
        """The file that `word` names for the program, absolute, links kept; None when its folder isn't known."""
        if self.cwd is None:
            return Path(word) if Path(word).is_absolute() else None
        return resolved(word, self.cwd)

    def argv_with(self, words: Sequence[str]) -> list[str]:
        """The job's argv when `words` are these. Raises Refused(command_is_a_script) where a script holds them."""
        inner = list(words)
        for shell in reversed(self.shells):
            inner = shell.words_with(inner)
        return inner


def find_commands(argv: Sequence[str], cwd: Path) -> tuple[Command, ...]:
    """The Python programs and known trainers that `argv`, started in `cwd`, runs; more than one only in a shell.

    A shell's text that can't be read without running it gives none.
    """
    return _found(tuple(argv), cwd, 0)


def _found(words: tuple[str, ...], cwd: Path | None, depth: int) -> tuple[Command, ...]:
    if not words or depth > _MAX_SHELLS:
        return ()
    place = _place(words)
    if place is None:
        return ()
    index, kind = place
    cwd = _folder(words[:index], cwd)
    if kind is None:
        return _in_shell(words, index, cwd, depth)
    interpreter = _interpreter_options(words[:index])
    return (Command(argv=words, words=words, program=index, kind=kind, cwd=cwd, interpreter=interpreter),)


def _place(words: Sequence[str]) -> tuple[int, Kind | None] | None:
    """Where the program stands, and what it is; None as kind: a shell."""
    if not _is_known(words[0]):
        return None
    distributed = False
    for index, word in enumerate(words):
        name = PurePath(word).name
        if index and words[index - 1] in _NAMES_SOMETHING and not distributed:
            continue
        if word.endswith(".py"):
            return (index, Kind.SCRIPT) if _runs_script(words[:index]) else None
        runs_modules = distributed or "uv" in words[:index]
        if word in ("-m", "--module") and runs_modules and words[index + 1 : index + 2]:
            if words[index + 1] in _LAUNCHER_MODULES:
                continue
            return index + 1, Kind.MODULE
        if name in _PROGRAMS and (not distributed or _behind_python(words[:index])):
            return index, Kind.PROGRAM
        if (name in _SHELLS or name.endswith(".sh")) and not distributed:
            return index, None
        distributed = distributed or name in _DISTRIBUTORS or _PYTHON.fullmatch(name) is not None
    return None


def _is_known(program: str) -> bool:
    name = PurePath(program).name
    known = name in _LAUNCHERS | _PROGRAMS | _SHELLS or name.endswith((".py", ".sh"))
    return known or _PYTHON.fullmatch(name) is not None


def _runs_script(before: Sequence[str]) -> bool:
    """Whether all words between the interpreter and the script are options of one of them, or `-m` of a launcher."""
    pythons = [i for i, word in enumerate(before) if _PYTHON.fullmatch(PurePath(word).name)]
    return not pythons or _only_options(before[pythons[-1] + 1 :])


def _behind_python(before: Sequence[str]) -> bool:
    """Whether only options stand between here and an interpreter: so /proc shows an installed command."""
    pythons = [i for i, word in enumerate(before) if _PYTHON.fullmatch(PurePath(word).name)]
    return bool(pythons) and "-m" not in before and _only_options(before[pythons[-1] + 1 :])


def _only_options(words: Sequence[str]) -> bool:
    position = 0
    while position < len(words):
        word = words[position]
        if word == "-m":
            return position + 1 < len(words) and words[position + 1] in _LAUNCHER_MODULES
        if PurePath(word).name in _DISTRIBUTORS:  # `python /venv/bin/accelerate launch …`, as /proc shows it
            return True
        if not word.startswith("-") or word.startswith("-c"):
            return False
        position += 2 if word in _WITH_A_VALUE else 1
    return True


def _interpreter_options(before: Sequence[str]) -> tuple[str, ...]:
    pythons = [i for i, word in enumerate(before) if _PYTHON.fullmatch(PurePath(word).name)]
    options = []
    for word in before[pythons[-1] + 1 :] if pythons else ():
        if word == "-m":
            break
        options.append(word)
    return tuple(options)


def _folder(before: Sequence[str], cwd: Path | None) -> Path | None:
    """Where the program starts after the launchers' own options have changed the folder."""
    for index, word in enumerate(before):
        option, equals, value = word.partition("=")
        if option not in _FOLDER_OPTIONS:
            continue
        to = value if equals else "".join(before[index + 1 : index + 2])
        cwd = Path(to) if Path(to).is_absolute() else (cwd / to if cwd is not None else None)
    return cwd


def _in_shell(words: tuple[str, ...], index: int, cwd: Path | None, depth: int) -> tuple[Command, ...]:
    source = _shell_source(words, index, cwd)
    if source is None:
        return ()
    at, file, text = source
    arguments = words[at + 1 :] if file else words[at + 2 :]
    found: list[Command] = []
    try:
        for each in statements(text, arguments, file.parent if file else None):
            if each.words[:1] and each.words[0] in ("cd", "pushd"):
                cwd = _folder(("-C", *each.words[1:2]), cwd) if each.whole and len(each.words) == 2 else None
                continue
            shell = Shell(words=words, index=at, file=file, text=text, statement=each)
            inner = _found(each.words, cwd, depth + 1)
            found += [replace(one, argv=words, shells=(shell, *one.shells)) for one in inner]
    except NotPlainError:
        return ()
    return tuple(found)


def _shell_source(words: Sequence[str], index: int, cwd: Path | None) -> tuple[int, Path | None, str] | None:
    """The index of the shell's text or script, the script's path, and the text."""
    at = index
    if not words[index].endswith(".sh"):
        at, is_text = _shell_operand(words, index)
        if at >= len(words):
            return None
        if is_text:
            return at, None, words[at]
    if cwd is None and not Path(words[at]).is_absolute():
        return None
    path = resolved(words[at], cwd or Path("/"))
    try:
        if not is_file(path) or path.stat().st_size > MAX_BYTES:
            return None
        return at, path, path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _shell_operand(words: Sequence[str], index: int) -> tuple[int, bool]:
    """The index behind a shell's options, and whether `-c` was among them."""
    at, is_text = index + 1, False
    while at < len(words) and words[at][:1] in "-+" and len(words[at]) > 1:
        option = words[at]
        is_text = is_text or (not option.startswith("--") and "c" in option)
        at += 2 if option in ("-o", "+o", "-O", "+O", "--rcfile", "--init-file") else 1
        if option == "--":
            break
    return at, is_text


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


@dataclass(frozen=True, kw_only=True)
class Script:
    """A script in an argv: its place there, and whether a launcher changes the folder before it starts it."""

    index: int
    changes_folder: bool


def find_script(argv: Sequence[str]) -> Script | None:
    """The `.py` file that the command itself runs; None for a shell, `python -c`, a module or an unknown program."""
    place = _place(argv) if argv else None
    if place is None or place[1] is not Kind.SCRIPT:
        return None
    changes = any(word.partition("=")[0] in _FOLDER_OPTIONS for word in argv[: place[0]])
    return Script(index=place[0], changes_folder=changes)
