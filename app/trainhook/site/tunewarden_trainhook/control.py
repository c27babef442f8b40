"""The files of the control directory, from the trainer's side. See docs/reference/control-directory.md."""

import contextlib
import json
import os


class Control:
    """Every file is a JSON object, written whole under a temporary name and renamed."""

    def __init__(self, folder):
        self.folder = folder
        self._stop = self.path("stop")

    def path(self, name):
        return os.path.join(self.folder, name)

    def read(self, name):
        """The object in the file, or None when it is absent, half or no object."""
        try:
            with open(self.path(name), encoding="utf-8") as file:
                content = json.load(file)
        except (OSError, ValueError):
            return None
        return content if isinstance(content, dict) else None

    def write(self, name, content):
        """Give whether it was written. On a full disk the room that the agent set aside is given up for it."""
        data = json.dumps(content).encode("utf-8")
        for _ in range(2):
            try:
                self._write(name, data)
                return True
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(self.path(".room"))
        return False

    def _write(self, name, data):
        temporary = self.path(f"{name}.tmp-{os.getpid()}")
        try:
            with open(temporary, "wb") as file:
                file.write(data)
            os.replace(temporary, self.path(name))
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    def remove(self, name):
        with contextlib.suppress(OSError):
            os.unlink(self.path(name))

    def take_stop(self):
        """The stop request, if there is one and we take it; else None.

        Renaming decides: the agent withdraws by renaming the same file, and exactly one of the two succeeds.
        """
        try:
            os.stat(self._stop)  # one stat at each step; the rest only when it is there
            os.rename(self._stop, self.path("stop.taken"))
        except OSError:
            return None
        request = self.read("stop.taken")
        return request if request is not None and isinstance(request.get("request_id"), str) else None
