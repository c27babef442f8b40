"""Whether the service answers, as the person at the terminal is told: a line for each change, none when all is well."""

import threading

from tunewarden.supervisor.client import NoToken

_AT_THE_START_S = 3.0
_LOST_S = 60.0  # a service that is restarted, or a token that is changed, is no news
_ANSWERS = ""  # what was said last: nothing, or that it answers


class ServiceWatch:
    """Fed by the thread that sends heartbeats, asked by the main thread. Times are monotonic, in seconds.

    `said` is what an agent before this one, of the same run, has said last.
    """

    def __init__(self, url: str, *, now: float, said: str = _ANSWERS) -> None:
        self._url, self._said = url, said
        self._lock = threading.Lock()
        self._answers: bool | None = None  # None: nothing is known yet
        self._failing_since = now
        self._patience_s = _AT_THE_START_S
        self._failure = ""

    def answered(self) -> None:
        """A registration or heartbeat was taken."""
        with self._lock:
            self._answers, self._patience_s = True, _LOST_S

    def failed(self, error: Exception, now: float) -> None:
        """A registration or heartbeat did not get through."""
        with self._lock:
            if self._answers:
                self._failing_since = now
            self._answers, self._failure = False, self._text(error)

    def news(self, now: float) -> tuple[str, str] | None:
        """What is to be remembered as `said`, and the line for the person; None: nothing has changed for them."""
        with self._lock:
            if self._answers and self._said != _ANSWERS:
                self._said = _ANSWERS
                return _ANSWERS, f"the service at {self._url} answers: this run is watched from now on"
            late = self._answers is False and now >= self._failing_since + self._patience_s
            if late and self._said != self._failure:
                self._said = self._failure
                return self._said, self._failure
            return None

    def _text(self, error: Exception) -> str:
        if isinstance(error, NoToken):
            return f"{error}: this run is not watched until that is mended"
        return (
            f"no service answers at {self._url}: this run is not watched until one does "
            "(start it with `tunewarden serve`)"
        )
