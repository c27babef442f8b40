"""What the person sees while the story plays: a live table on a terminal, lines of news in a pipe."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tunewarden.demo.evidence import Finding, posts, query
from tunewarden.demo.files import SCENES, STEPS

ORANGE, RED = 0.90, 0.95
BAR = 24
PIPE_WIDTH = 160


def demo_console() -> Console:
    """The terminal; in a pipe lines are not folded at 80 columns."""
    console = Console(highlight=False, markup=False)
    return console if console.is_terminal else Console(highlight=False, markup=False, width=PIPE_WIDTH)


class News:
    """The messages that DingTalk got, each told once, as they arrive."""

    def __init__(self, console: Console, log: Path) -> None:
        self._console = console
        self._log = log
        self._told = 0

    def tell(self) -> None:
        """Print what is new."""
        received = posts(self._log)
        for post in received[self._told :]:
            self._console.print(Text("  DingTalk  ", style="cyan") + Text(str(post.get("title", ""))))
        self._told = len(received)


def board(prometheus: str) -> Table:
    """The three jobs as Prometheus sees them: generation, steps, the card's memory, and whether the alert fires."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for header in ("job", "generation", "step", "card memory", "alert"):
        table.add_column(header)
    steps = {m["training_job"]: (m, value) for m, value in query(prometheus, "tunewarden_job_optimizer_steps_total")}
    ratios = query(prometheus, "gpu:memory_used:ratio")
    firing = {
        m.get("uuid", ""): m.get("alertstate", "")
        for m, _ in query(prometheus, 'ALERTS{alertname="GpuMemoryNearlyFull"}')
    }
    for scene in SCENES:
        metric, step = steps.get(scene.name, ({}, 0.0))
        uuid, ratio = next(((m["uuid"], value) for m, value in ratios if m.get("gpu") == str(scene.card)), ("", None))
        table.add_row(
            scene.name, metric.get("generation", ""), f"{step:.0f}/{STEPS}", _gauge(ratio), firing.get(uuid, "")
        )
    return table


def _gauge(ratio: float | None) -> Text:
    if ratio is None:
        return Text("")
    style = "red" if ratio > RED else "yellow" if ratio > ORANGE else "green"
    filled = round(min(ratio, 1.0) * BAR)
    return Text("█" * filled + "░" * (BAR - filled) + f" {ratio:6.1%}", style=style)


def findings_table(findings: Sequence[Finding]) -> Table:
    """The final check: what must hold, where it was looked up, what was found."""
    table = Table(title="Checked from outside", title_justify="left", box=None, pad_edge=False, header_style="bold")
    for header in ("", "what", "found", "source"):
        table.add_column(header, overflow="fold")
    for finding in findings:
        mark = Text("✓", style="green") if finding.holds else Text("✗", style="bold red")
        table.add_row(mark, finding.what, finding.found, Text(finding.source, style="dim"))
    return table


def urls(rows: Iterable[tuple[str, str]]) -> Table:
    """Where to look around."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, url in rows:
        table.add_row(name, Text(url, style="underline"))
    return table
