"""Reports and events on their way to the service, in order, until it takes them. What it took is journaled."""

import logging
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tunewarden.domain.order import Phase
from tunewarden.errors import Permanent, Retryable
from tunewarden.supervisor.client import Service, UnknownJob
from tunewarden.supervisor.journal import Journal, Kind

EVENT = "event"
_LONGEST_PAUSE_S = 5.0
_HOLD_S = 0.2  # how long `accepted` waits for `planned`: one round trip less before the save
_TRIES_WHEN_UNKNOWN = 5  # 404: we register again; after so many the service has forgotten what is reported
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Letter:
    """One report (`phase` of order `id`) or event (`phase` is `event`, `id` its event_id)."""

    id: str
    phase: str
    body: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, str]:
        return (self.id, self.phase)


class Outbox:
    """A thread that sends letters one after another, and calls `on_answer` when one was answered or dropped."""

    def __init__(
        self,
        service: Service,
        journal: Journal,
        *,
        on_unknown_job: Callable[[], None],
        on_answer: Callable[[], None],
    ) -> None:
        self._service, self._journal = service, journal
        self._on_unknown_job, self._on_answer = on_unknown_job, on_answer
        self._changed = threading.Condition()
        self._letters: list[Letter] = []
        self._answers: dict[tuple[str, str], Mapping[str, Any]] = {}
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, letter: Letter) -> None:
        """Send this after what waits already. A letter with the same key that still waits is replaced in its place.

        `planned` takes the place of an `accepted` that still waits: the service takes it for both.
        """
        with self._changed:
            if letter.phase == Phase.PLANNED:
                self._letters = [each for each in self._letters if each.key != (letter.id, Phase.ACCEPTED)]
            keys = [each.key for each in self._letters]
            if letter.key in keys:
                self._letters[keys.index(letter.key)] = letter
            else:
                self._letters.append(letter)
            self._changed.notify_all()

    def drop(self, letter_id: str, phase: str) -> None:
        """Forget a letter that has not been answered."""
        with self._changed:
            self._letters = [each for each in self._letters if each.key != (letter_id, phase)]
            self._changed.notify_all()

    def answer(self, letter_id: str, phase: str) -> Mapping[str, Any] | None:
        """What the service answered; None: nothing yet."""
        with self._changed:
            return self._answers.get((letter_id, phase))

    def forget_answer(self, letter_id: str, phase: str) -> None:
        """Make `answer` wait for a new one."""
        with self._changed:
            self._answers.pop((letter_id, phase), None)

    def empty(self) -> bool:
        with self._changed:
            return not self._letters

    def flush(self, timeout: float) -> bool:
        """Wait until all is sent, at most `timeout` seconds; whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._letters, timeout)

    def close(self) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def _run(self) -> None:
        failures = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._letters or self._closing)
                self._changed.wait_for(lambda: self._goes_now() or self._closing, _HOLD_S)
                if self._closing:
                    return
                if not self._letters:
                    continue
                letter = self._letters[0]
            failures = 0 if self._delivered(letter, failures) else failures + 1
            if failures:
                self._pause(failures)

    def _goes_now(self) -> bool:
        """Whether something waits that need not wait for company. `accepted` does: the plan mostly follows at once."""
        return not self._letters or any(each.phase != Phase.ACCEPTED for each in self._letters)

    def _pause(self, failures: int) -> None:
        longest = min(_LONGEST_PAUSE_S, 0.1 * 2.0**failures)
        deadline = time.monotonic() + longest * random.uniform(0.5, 1.0)  # noqa: S311 - spreads retries, guards nothing
        with self._changed:
            self._changed.wait_for(lambda: self._closing, max(0.0, deadline - time.monotonic()))

    def _delivered(self, letter: Letter, failures: int) -> bool:
        try:
            return self._deliver(letter, failures)
        except Exception:
            log.exception("letter %s", letter.key)
            return False

    def _deliver(self, letter: Letter, failures: int) -> bool:
        """One try; false: try again later."""
        answer: Mapping[str, Any] = {}
        try:
            answer = self._send(letter)
        except UnknownJob as error:
            self._on_unknown_job()
            if failures < _TRIES_WHEN_UNKNOWN:
                return False
            log.warning("given up: %s", error)
        except Retryable as error:
            log.info("%s", error)
            return False
        except Permanent as error:
            log.warning("given up: %s", error)
        except Exception:
            log.exception("letter %s could not be sent", letter.key)
        with self._changed:
            if letter in self._letters:
                self._letters.remove(letter)
            self._answers[letter.key] = answer
            self._changed.notify_all()
        self._on_answer()
        # Last: an order waits for the answer. After a kill before it the letter goes out again; the service keeps one.
        self._journal.append(letter.id, letter.phase, Kind.ACKED)
        return True

    def _send(self, letter: Letter) -> Mapping[str, Any]:
        if letter.phase == EVENT:
            return self._service.event(letter.body)
        return self._service.report(letter.id, letter.phase, letter.body)
