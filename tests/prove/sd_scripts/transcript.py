"""What was seen, as a page that a person can read: facts in order, each with what it should have been."""

import time
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

_HEAD = """\
# sd-scripts under tunewarden: what was seen

Written by `make prove-sd-scripts`, from an unmodified checkout of kohya-ss/sd-scripts. Each "yes" is a check from
outside: files, /proc, and what a fresh process of the trainer's environment reads from the states. OUT, SD_SCRIPTS and
VENV stand for folders.
"""


@dataclass
class Transcript:
    """`hidden`: paths of this machine, by the word that stands for them on the page."""

    hidden: dict[str, str]
    lines: list[str] = field(default_factory=list)
    failed: int = 0
    _began: float = field(default_factory=time.monotonic)
    _console: Console = field(default_factory=lambda: Console(highlight=False))

    def part(self, title: str) -> None:
        self._write(f"\n## {title}\n")

    def say(self, text: str) -> None:
        """Something that happened."""
        self._write(f"- {time.monotonic() - self._began:.0f} s: {text}")

    def block(self, text: str) -> None:
        """Text as it was."""
        self._write(f"\n```\n{text.rstrip()}\n```\n")

    def check(self, what: str, good: bool, seen: object) -> None:
        """Something that must hold."""
        self.failed += not good
        self._write(f"- {time.monotonic() - self._began:.0f} s: **{'yes' if good else 'NO'}**, {what}: {seen}")

    def save(self, path: Path) -> None:
        path.write_text(_HEAD + "\n".join(self.lines) + "\n", encoding="utf-8")

    def _write(self, line: str) -> None:
        for shown, path in sorted(self.hidden.items(), key=lambda item: -len(item[1])):
            line = line.replace(path, shown)
        self.lines.append(line)
        self._console.print(line, markup=False, soft_wrap=True)
