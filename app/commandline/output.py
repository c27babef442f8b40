"""How the commands print: tables and colour on a terminal, tab-separated plain text in a pipe."""

import sys
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

STYLES = {
    "running": "green",
    "waiting": "yellow",
    "lost": "red",
    "ended": "dim",
    "recovered": "green",
    "done": "green",
    "broken": "red",
    "uncertain": "red",
    "refused": "yellow",
    "cancelled": "dim",
    "superseded": "dim",
    "running (held)": "yellow",
    "waiting (held)": "yellow",
    "act": "bold",
}


class Output:
    """Where a command's answer goes: stdout for the answer, stderr for what is said beside it."""

    def __init__(self, *, plain: bool | None = None) -> None:
        self.plain = not sys.stdout.isatty() if plain is None else plain
        self._out = Console(highlight=False, soft_wrap=True, markup=False)
        self._err = Console(stderr=True, highlight=False, soft_wrap=True, markup=False)

    def line(self, text: str, style: str = "") -> None:
        """One line of the answer."""
        self._out.print(Text(text, style=style))

    def aside(self, text: str, style: str = "") -> None:
        """One line beside the answer, on stderr."""
        self._err.print(Text(text, style=style))

    def error(self, text: str) -> None:
        """What went wrong, on stderr."""
        self._err.print(Text("tunewarden: ", style="red") + Text(text))

    def table(self, headers: Sequence[str], rows: Iterable[Sequence[object]], empty: str) -> None:
        """A table on a terminal; in a pipe a header line and a line a row, cells apart by a tab."""
        cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
        if self.plain:
            flat = [[cell.replace("\n", "; ").replace("\t", " ") for cell in row] for row in cells]
            sys.stdout.write("".join("\t".join(row) + "\n" for row in [list(headers), *flat]))
            return
        if not cells:
            self.line(empty, "dim")
            return
        table = Table(box=None, header_style="bold", pad_edge=False)
        for header in headers:
            table.add_column(header, overflow="fold")
        for row in cells:
            table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
        self._out.print(table)

    def diff(self, text: str) -> None:
        """A unified diff, in colour on a terminal."""
        if self.plain:
            sys.stdout.write(text if text.endswith("\n") or not text else text + "\n")
        else:
            self._out.print(Syntax(text, "diff", background_color="default"))
