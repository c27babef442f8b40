"""Settings in a user's Python: found in the parsed source and told as file:line, never changed there.

Only what is written as a plain number, word or switch is a setting; anything computed is left alone.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, kw_only=True)
class CodeSetting:
    """`name` with its value, on line `line` (from 1); `start` and `end` are the value's columns there, in bytes.

    `flag` is the option that sets it, when the value is only the default of one.
    """

    name: str
    value: str
    line: int
    start: int
    end: int
    flag: str | None = None


@lru_cache(maxsize=8)
def parse(source: str) -> ast.Module | None:
    """The parsed source; None when it is no Python that this interpreter reads."""
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None


def settings_in(source: str, names: Mapping[str, str]) -> dict[str, tuple[CodeSetting, ...]]:
    """All plain settings of `source`, by the canonical name that `names` gives to a keyword, constant or option.

    Names are compared in lower case, `-` as `_`: `BATCH_SIZE = 4`, `batch_size=4` and `"--batch-size", default=4`.
    """
    tree = parse(source)
    found: dict[str, tuple[CodeSetting, ...]] = {}
    for setting in () if tree is None else _settings(tree):
        canonical = names.get(setting.name.lower().replace("-", "_"))
        if canonical is not None:
            found[canonical] = (*found.get(canonical, ()), setting)
    return found


def new_line(source: str, setting: CodeSetting, value: str) -> str:
    """The line of `setting` as it would read with `value`; a word keeps its quotes."""
    line = source.splitlines()[setting.line - 1]
    raw = line.encode()
    old = raw[setting.start : setting.end].decode(errors="replace")
    quote = old[0] if old[:1] in "\"'" else ""
    written = f"{quote}{value}{quote}" if quote else {"true": "True", "false": "False"}.get(value, value)
    return (raw[: setting.start] + written.encode() + raw[setting.end :]).decode(errors="replace")


@lru_cache(maxsize=8)
def imports(source: str) -> frozenset[str]:
    """The modules that the source imports, as dotted names with their first parts: `a.b.c` gives a, a.b and a.b.c."""
    tree = parse(source)
    names: set[str] = set()
    for node in () if tree is None else ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names |= _parents(alias.name)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= _parents(node.module)
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


@lru_cache(maxsize=8)
def calls(source: str) -> frozenset[str]:
    """The last part of the name of everything that the source calls, such as Accelerator or add_argument."""
    tree = parse(source)
    return frozenset(
        name
        for node in (() if tree is None else ast.walk(tree))
        if isinstance(node, ast.Call) and (name := _last_name(node.func))
    )


def keyword_value(source: str, call: str, keyword: str) -> CodeSetting | None:
    """The first plain `keyword=value` of a call of `call`."""
    tree = parse(source)
    for node in () if tree is None else ast.walk(tree):
        if isinstance(node, ast.Call) and _last_name(node.func) == call:
            for each in node.keywords:
                if each.arg == keyword and (setting := _plain(keyword, each.value)) is not None:
                    return setting
    return None


@lru_cache(maxsize=8)
def options(source: str) -> frozenset[str]:
    """The long options that the source declares for its command line, as written."""
    tree = parse(source)
    return frozenset(
        option
        for node in (() if tree is None else ast.walk(tree))
        if isinstance(node, ast.Call) and _last_name(node.func) == "add_argument"
        for option in _option_strings(node)
    )


def _settings(tree: ast.Module) -> Iterator[CodeSetting]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _of_call(node)
        elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                if (name := _last_name(target)) and (setting := _plain(name, node.value)) is not None:
                    yield setting
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and isinstance(key.value, str):
                    setting = _plain(key.value, value)
                    if setting is not None:
                        yield setting


def _of_call(node: ast.Call) -> Iterator[CodeSetting]:
    if _last_name(node.func) == "add_argument":
        for option in _option_strings(node):
            for each in node.keywords:
                if each.arg == "default" and (setting := _plain(option.lstrip("-"), each.value, flag=option)):
                    yield setting
        return
    for each in node.keywords:
        if each.arg is not None and (setting := _plain(each.arg, each.value)) is not None:
            yield setting


def _option_strings(node: ast.Call) -> list[str]:
    words = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)]
    return [word for word in words if word.startswith("--")]


def _plain(name: str, node: ast.expr, flag: str | None = None) -> CodeSetting | None:
    if not isinstance(node, ast.Constant) or node.lineno != node.end_lineno or node.end_col_offset is None:
        return None
    value = node.value
    if isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, int | float):
        text = str(value)
    elif isinstance(value, str) and re.fullmatch(r"[\w./,+:~-]{1,200}", value):
        text = value
    else:
        return None
    return CodeSetting(
        name=name, value=text, line=node.lineno, start=node.col_offset, end=node.end_col_offset, flag=flag
    )


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _parents(dotted: str) -> set[str]:
    parts = dotted.split(".")
    return {".".join(parts[: count + 1]) for count in range(len(parts))}
