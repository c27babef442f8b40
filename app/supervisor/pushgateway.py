"""A Prometheus Pushgateway, for those who have one: the job's series, pushed while it runs, deleted at its end.

Its own thread; nothing waits for it but the end of the run, a moment. The address may hold a password: what is logged
of it is scheme, host and port.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

import httpx

from tunewarden.domain.job_series import families, job_labels
from tunewarden.domain.sample import Heartbeat
from tunewarden.domain.series_text import rendered
from tunewarden.supervisor.client import is_loopback

EVERY_S = 15.0
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
JOB = "lora-training"  # the label `job`, as the articles push it; the grouping key is training_job_id
_TIMEOUT_S = 2.0
_FIRST_LOOK_S = 0.5
log = logging.getLogger(__name__)


class Pushgateway:
    """`newest` gives the newest registration and heartbeat, or None before the first."""

    def __init__(
        self,
        url: str,
        job_id: str,
        *,
        newest: Callable[[], tuple[Mapping[str, Any], Mapping[str, Any]] | None],
        every_s: float = EVERY_S,
    ) -> None:
        base = httpx.URL(url)
        path = f"{base.path.rstrip('/')}/metrics/job/{JOB}/training_job_id/{quote(job_id, safe='')}"
        self._group = base.copy_with(path=path)
        self._shown = f"{base.scheme}://{base.host}" + (f":{base.port}" if base.port else "")
        self._newest, self._every_s = newest, every_s
        self._closing = threading.Event()
        self._said: str | None = None
        # A proxy is for the world outside: it can't reach our own loopback.
        self._http = httpx.Client(timeout=_TIMEOUT_S, trust_env=not is_loopback(url), follow_redirects=False)
        self._thread = threading.Thread(target=self._run, name="pushgateway", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout: float) -> None:
        """Delete the job's series; waits at most `timeout` seconds for it."""
        self._closing.set()
        self._thread.join(timeout)

    def _run(self) -> None:
        pushed: object = None
        while not self._closing.wait(_FIRST_LOOK_S if pushed is None else self._every_s):
            newest = self._newest()
            if newest is None or newest is pushed:  # an old one again would look fresh
                continue
            pushed = newest
            try:
                self._call("PUT", text_of(*newest))
            except Exception:
                log.exception("nothing is pushed this time")
        self._call("DELETE", None)

    def _call(self, method: str, body: bytes | None) -> None:
        try:
            answer = self._http.request(method, self._group, content=body, headers={"Content-Type": CONTENT_TYPE})
            trouble = None if answer.is_success else f"it answers {answer.status_code}"
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            trouble = type(error).__name__  # its text may hold the address, and so a password
        if trouble is not None and trouble != self._said:
            log.warning("the Pushgateway at %s can't be told: %s", self._shown, trouble)
        self._said = trouble


def text_of(registration: Mapping[str, Any], heartbeat: Mapping[str, Any]) -> bytes:
    """The job's series in Prometheus's text format, as the service's /metrics shows them."""
    beat = Heartbeat.from_wire(heartbeat)
    labels = job_labels(
        name=registration["name"],
        job_id=str(registration["run_id"]).rpartition("-g")[0],
        generation=beat.generation,
        node=registration["node"],
        config_name=registration.get("config_name") or "",
        model_type=registration.get("model_type") or registration["trainer"],
        user=registration["labels"],
    )
    return rendered(families([(labels, beat.job)]))
