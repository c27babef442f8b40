"""The real agent with a boundary that suspends the keeper at one moment, once: `suspending_agent.py WHERE RUN_DIR`."""

import os
import signal
import sys
import time
from pathlib import Path

from tunewarden.processes.identity import read_stat
from tunewarden.supervisor.agent import main


class SuspendOnce:
    """`where` is `phase:point`. As Ctrl-Z does; goes on when the keeper stands still."""

    def __init__(self, where: str, run_dir: Path) -> None:
        self._where, self._mark = where, run_dir / "suspended"

    def reach(self, transition: str, point: str) -> None:
        if f"{transition}:{point}" != self._where or self._mark.exists():
            return
        os.kill(os.getppid(), signal.SIGTSTP)
        while (stat := read_stat(os.getppid())) is not None and stat.state != "T":
            time.sleep(0.01)
        self._mark.touch()


if __name__ == "__main__":
    sys.exit(main(sys.argv[2:], boundary=SuspendOnce(sys.argv[1], Path(sys.argv[2]))))
