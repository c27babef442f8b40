"""Where settings come from: a YAML file that remembers its lines, and TUNEWARDEN_ variables handed in by config.py."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

PREFIX = "TUNEWARDEN_"
_SECTION = "__"

# Variables with our prefix that are no settings: the one that names the file, and what a job finds in its environment.
NOT_SETTINGS = frozenset({"CONFIG", "CONTROL_DIR", "JOB", "JOB_ID", "GENERATION", "RUN_ID", "RANK"})


@dataclass(frozen=True, kw_only=True)
class SettingsFile:
    """What a settings file holds. `path` is None when there is no file."""

    path: Path | None = None
    values: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    tree: CommentedMap | None = None

    def line_of(self, loc: Iterable[int | str]) -> int:
        """The line (from 1) of the innermost key or item on the way `loc` that the file has."""
        line, node = 1, self.tree
        for part in loc:
            if isinstance(node, CommentedMap) and part in node:
                line = node.lc.key(part)[0] + 1
            elif isinstance(node, CommentedSeq) and isinstance(part, int) and part < len(node):
                line = node.lc.item(part)[0] + 1
            else:
                break
            node = node[part]
        return line


def read_file(path: Path, *, must_exist: bool) -> SettingsFile:
    """Read `path`; a file that must not exist and doesn't is empty. Faults are returned, not raised."""
    try:
        if path.exists() and not path.is_file():  # reading a pipe would wait for ever
            return SettingsFile(path=path, faults=[f"{path}: is no regular file"])
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        return SettingsFile(faults=[f"{path}: there is no such file"] if must_exist else [])
    except (OSError, UnicodeDecodeError) as error:
        return SettingsFile(path=path, faults=[f"{path}: can't be read: {error}"])
    try:
        tree = YAML(typ="rt").load(text)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        # Only the first line of the problem: the rest quotes the text, and that may be a secret.
        problem = str(error.problem or "no YAML").splitlines()[0]
        return SettingsFile(path=path, faults=[f"{path}:{line}: {problem}"])
    except (YAMLError, RecursionError):
        return SettingsFile(path=path, faults=[f"{path}:1: no YAML"])
    if tree is None:
        return SettingsFile(path=path)
    if not isinstance(tree, CommentedMap):
        return SettingsFile(path=path, faults=[f"{path}:1: settings are `name: value` lines"])
    return SettingsFile(path=path, values=_plain(tree), tree=tree)


def _plain(node: Any) -> Any:
    if isinstance(node, Mapping):
        return {str(key): _plain(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_plain(item) for item in node]
    return node


def read_environment(environ: Mapping[str, str], known: set[str]) -> tuple[dict[str, Any], list[str]]:
    """The settings in `environ`, nested by `__`, and the faults: unknown names and broken JSON."""
    values: dict[str, Any] = {}
    faults = []
    for name in sorted(environ):
        rest = name.removeprefix(PREFIX)
        if rest == name or rest in NOT_SETTINGS:
            continue
        path = rest.lower().split(_SECTION)
        if path[0] not in known:
            faults.append(f"{name}: unknown setting")
            continue
        try:
            values = merge(values, _nested(path, _value(environ[name])))
        except ValueError:
            faults.append(f"{name}: begins like JSON but is none")
    return values, faults


def _value(text: str) -> Any:
    """Lists and sections are given as JSON; everything else stays text, and its setting reads it."""
    return json.loads(text) if text[:1] in ("[", "{") else text


def _nested(path: list[str], value: Any) -> dict[str, Any]:
    for part in reversed(path):
        value = {part: value}
    return value  # type: ignore[no-any-return]


def merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`under` with everything of `over` laid on it; sections are merged key by key, lists replaced whole."""
    result = dict(under)
    for key, value in over.items():
        below = result.get(key)
        result[key] = merge(below, value) if isinstance(below, Mapping) and isinstance(value, Mapping) else value
    return result


def holds(values: Mapping[str, Any], loc: Iterable[int | str]) -> bool:
    """True when `values` has something at the whole way `loc`, or ends on the way in a value of its own."""
    node: Any = values
    for part in loc:
        if isinstance(node, Mapping):
            if part not in node:
                return False
            node = node[part]
        else:
            return True
    return node is not values


def variable_of(loc: Iterable[int | str]) -> str:
    """The variable that a setting is given by; items of lists belong to their list's variable."""
    names = []
    for part in loc:
        if isinstance(part, int):
            break
        names.append(part.upper())
    return PREFIX + _SECTION.join(names)
