"""Reading a YAML mapping field by field: each fault is kept with its line, and none stops the reading."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

T = TypeVar("T")
MOST_BYTES = 256 * 1024
_MOST_DEPTH = 30
# What ruamel.yaml raises besides YAMLError on odd input.
_ODD = (ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError, TypeError, ValueError)


@dataclass(kw_only=True)
class Faults:
    """The faults of one file, each `file:line: what, why, what to do`."""

    file: str
    found: list[tuple[int, str]] = field(default_factory=list)

    def add(self, line: int, text: str) -> None:
        if (line, text) not in self.found:
            self.found.append((line, text))

    @property
    def lines(self) -> list[str]:
        """By line."""
        return [f"{self.file}:{line}: {text}" for line, text in sorted(self.found, key=lambda item: item[0])]


def load_tree(path: Path, text: str, faults: Faults) -> CommentedMap | None:
    """The mapping that the text holds; None after a fault."""
    if len(text) > MOST_BYTES:
        faults.add(1, f"the file is larger than {MOST_BYTES // 1024} KiB; a policy is a few dozen lines")
        return None
    if _depth(text) > _MOST_DEPTH:
        faults.add(1, "the file is nested too deep; write it plainly")
        return None
    try:
        tree = YAML(typ="rt").load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = str(error.problem or error.context or "it can't be read").splitlines()[0]
        faults.add(mark.line + 1 if mark else 1, f"no YAML: {problem}")
        return None
    except (YAMLError, RecursionError, *_ODD):
        faults.add(1, "no YAML: it can't be read")
        return None
    if not isinstance(tree, CommentedMap):
        faults.add(1, f"{path.name} must hold a mapping that begins with `name:`")
        return None
    return tree


class Fields:
    """One mapping. What is taken by `get` and its kin is known; `done` makes a fault of every other key."""

    def __init__(self, tree: Any, faults: Faults, line: int, what: str) -> None:
        self._tree: Mapping[Any, Any] = tree if isinstance(tree, CommentedMap) else {}
        self._faults = faults
        self._line = line
        self._what = what
        self._known: list[str] = []
        if not isinstance(tree, CommentedMap):
            self.fault(None, f"{what} must be a mapping (key: value)")

    def line(self, key: str | None) -> int:
        """The line of a key, from 1; of the mapping where there is no such key."""
        positions = getattr(self._tree, "lc", None)
        data = getattr(positions, "data", None) or {}
        return data[key][0] + 1 if key in data else self._line

    def fault(self, key: str | None, text: str) -> None:
        self._faults.add(self.line(key), text)

    def has(self, key: str) -> bool:
        return key in self._tree

    def raw(self, key: str) -> Any:
        self._known.append(key)
        return self._tree.get(key)

    def read(self, key: str, convert: Callable[[Any], T], default: T) -> T:
        """The value by `convert`, whose ValueError becomes a fault; the default where the key is absent."""
        value = self.raw(key)
        if key not in self._tree:
            return default
        try:
            return convert(value)
        except ValueError as error:
            self.fault(key, f"`{key}`: {error}")
            return default

    def section(self, key: str) -> "Fields | None":
        """The mapping under a key; None where the key is absent."""
        value = self.raw(key)
        return Fields(value, self._faults, self.line(key), f"`{key}`") if key in self._tree else None

    def items(self, key: str) -> list[tuple[int, Any]]:
        """The items of a list, each with its line; a fault where it is no list."""
        value = self.raw(key)
        if key not in self._tree:
            return []
        if not isinstance(value, CommentedSeq):
            self.fault(key, f"`{key}` must be a list (lines that begin with `- `)")
            return []
        rows = value.lc.data or {}
        return [(rows[at][0] + 1 if at in rows else self.line(key), item) for at, item in enumerate(value)]

    def fault_at(self, line: int, text: str) -> None:
        self._faults.add(line, text)

    def inner(self, item: Any, line: int, what: str) -> "Fields":
        return Fields(item, self._faults, line, what)

    def keys(self) -> list[str]:
        return [str(key) for key in self._tree]

    def done(self) -> None:
        """Make a fault of every key that nobody asked for."""
        for key in self._tree:
            if key not in self._known:
                known = ", ".join(dict.fromkeys(self._known))
                self._faults.add(self._key_line(key), f"{self._what} has no key `{key}`; its keys are {known}")

    def _key_line(self, key: Any) -> int:
        return self.line(key) if isinstance(key, str) else self._line


def text_of(value: Any) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("must be a text; put it in quotes")
    return str(value)


def truth_of(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def count_of(value: Any, *, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= 1_000_000:
        raise ValueError(f"must be a whole number from {least}")
    return int(value)


def share_of(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise ValueError("must be a number between 0 and 1")
    return float(value)


def texts_of(value: Any) -> tuple[str, ...]:
    if not isinstance(value, CommentedSeq):
        raise ValueError("must be a list of texts")
    return tuple(text_of(item) for item in value)


def _depth(text: str) -> int:
    """An upper bound of the nesting: brackets in flow style, and indentation."""
    flow = deepest = 0
    for char in text:
        flow = flow + 1 if char in "[{" else max(0, flow - 1) if char in "]}" else flow
        deepest = max(deepest, flow)
    indents = {len(line) - len(line.lstrip(" -?:")) for line in text.splitlines()}
    return max(deepest, len(indents))
