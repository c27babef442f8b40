"""A trainer that starts under a GUI or a notebook: it has no control directory of its own, so it makes one.

TUNEWARDEN_WATCH_DIR names a folder. The control directory is `<it>/<pid>`, or `<it>/<pid of the launcher>` when there
are several ranks; `announce.<pid>.json` in the folder tells `tunewarden watch` of it. Nothing is waited for.
"""

import os
import sys
import time

from .control import Control


def watched_folder(framework, rank, world_size):
    """Make the control directory and announce it. None: nobody watches."""
    watch = os.environ.get("TUNEWARDEN_WATCH_DIR")
    if not watch or not os.path.isdir(watch):
        return None
    folder = os.path.join(watch, str(os.getppid() if world_size > 1 else os.getpid()))
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError:
        return None
    content = {"protocol": 1, "pid": os.getpid(), "ppid": os.getppid(), "control_dir": folder, "framework": framework}
    content.update(rank=rank, world_size=world_size, cwd=os.getcwd(), started=time.time())
    content["argv"] = list(getattr(sys, "orig_argv", None) or [sys.executable, *sys.argv])
    content["executable"] = sys.executable
    content["notebook"] = "ipykernel" in sys.modules
    Control(watch).write(f"announce.{os.getpid()}.json", content)
    return folder
