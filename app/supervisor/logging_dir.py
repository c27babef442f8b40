"""Where a trainer may write its TensorBoard events, by its flags and its config. A wrong guess costs little."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path

_LARGEST_CONFIG = 1 << 20
_KEYS = ("logging_dir", "output_dir")
# One form for TOML, YAML and JSON: `logging_dir = "logs"`, `logging_dir: logs  # ...`, `"logging_dir": "x",`.
_LINE = re.compile(rf"""^\s*["']?({"|".join(_KEYS)})["']?\s*[:=]\s*(?:"([^"\n]+)"|'([^'\n]+)'|([^\s"',#]+))""", re.M)
_FLAG = re.compile(rf"--({'|'.join(_KEYS)})(?:=(.*))?", re.S)


def logging_folders(argv: Sequence[str], cwd: Path, config: Path | None) -> tuple[Path, ...]:
    """Folders, absolute, the likeliest first; none of them need exist.

    `logging_dir` itself; below `output_dir` where diffusers puts it; `output_dir/runs`, transformers' default.
    """
    said = {**_in_config(config), **_in_flags(argv)}
    logging_dir, output_dir = said.get("logging_dir"), said.get("output_dir")
    found = [cwd / logging_dir] if logging_dir else []
    if output_dir:
        found += [cwd / output_dir / below for below in (logging_dir or "logs", "runs")]
    return tuple(dict.fromkeys(found))


def _in_flags(argv: Sequence[str]) -> Mapping[str, str]:
    said = {}
    for word, after in zip_longest(argv, argv[1:], fillvalue=""):
        flag = _FLAG.fullmatch(word.replace("-", "_").replace("__", "--", 1) if word.startswith("--") else word)
        if flag:
            said[flag.group(1)] = word.partition("=")[2] if "=" in word else after
    return {key: value for key, value in said.items() if value}


def _in_config(config: Path | None) -> Mapping[str, str]:
    text = ""
    with contextlib.suppress(OSError):
        if config is not None and config.is_file() and config.stat().st_size <= _LARGEST_CONFIG:
            text = config.read_text(encoding="utf-8-sig", errors="replace")
    return {found[1]: next(value for value in found.groups()[1:] if value) for found in _LINE.finditer(text)}
