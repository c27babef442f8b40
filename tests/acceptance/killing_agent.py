"""The real agent with a boundary that kills it by SIGKILL at one moment, once: `killing_agent.py WHERE RUN_DIR`."""

import os
import signal
import sys
from pathlib import Path

from tunewarden.supervisor.agent import main


class KillOnce:
    """`where` is `phase:point`. A mark in the run folder spares the next agent, but for `always:phase:point`."""

    def __init__(self, where: str, run_dir: Path) -> None:
        self._where, self._mark = where, run_dir / "killed"

    def reach(self, transition: str, point: str) -> None:
        if self._where == f"always:{transition}:{point}":
            os.kill(os.getpid(), signal.SIGKILL)
        if f"{transition}:{point}" != self._where or self._mark.exists():
            return
        self._mark.write_text(self._where, encoding="utf-8")
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:], boundary=KillOnce(sys.argv[1], Path(sys.argv[2]))))
