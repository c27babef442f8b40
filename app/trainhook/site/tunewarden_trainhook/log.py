"""hook.log in the control directory. The hook never writes to the trainer's stdout."""

import contextlib
import os
import time
import traceback


class Log:
    """Lines with a time and a pid. A log that can't be written is no reason for anything."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "hook.log")

    def say(self, text):
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        with contextlib.suppress(OSError), open(self.path, "a", encoding="utf-8") as file:
            file.write(f"{stamp} pid {os.getpid()}: {text}\n")

    def fault(self, error):
        """A fault of the hook's own, with its traceback."""
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        self.say("the hook steps aside: " + "".join(lines).rstrip())


def log_outside(error):
    """A fault where there is no session yet."""
    folder = os.environ.get("TUNEWARDEN_CONTROL_DIR")
    if folder and os.path.isdir(folder):
        Log(folder).fault(error)
