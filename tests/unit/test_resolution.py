"""Which job an alert means."""

from typing import Any

import pytest

from tests.unit.deciding_values import a_heartbeat, a_job, an_alert
from tunewarden.domain.alert import Alert, AlertStatus
from tunewarden.domain.job import Gpu, Job, JobState
from tunewarden.domain.reason import Reason
from tunewarden.domain.resolution import others_holding_more, resolve

MAP = (Gpu(uuid="GPU-aa", index=0), Gpu(uuid="GPU-bb", index=1))
ONE = a_job(job_id="one", name="one", gpus=MAP[:1], host_gpus=MAP)
TWO = a_job(job_id="two", name="two", gpus=MAP[1:], host_gpus=MAP)
SHARED = a_job(job_id="three", name="three", gpus=MAP[:1], host_gpus=MAP)
ELSEWHERE = a_job(
    job_id="four", name="four", node="n2", gpus=(Gpu(uuid="GPU-cc", index=0),), host_gpus=(Gpu(uuid="GPU-cc", index=0),)
)
UNKNOWN = a_job(job_id="five", name="five", gpus=None, host_gpus=MAP)
LOST = a_job(job_id="six", name="six", gpus=MAP[:1], host_gpus=MAP, state=JobState.LOST)
ENDED = a_job(job_id="seven", name="seven", gpus=MAP[:1], host_gpus=MAP, state=JobState.ENDED)
NAMELESS = a_job(job_id="eight", name="eight", node="", gpus=MAP[:1], host_gpus=MAP)
ALL = (ONE, TWO, ELSEWHERE, UNKNOWN)
NODE = "gpu-node-1"


def alert(**labels: str) -> Alert:
    return Alert(fingerprint="f", status=AlertStatus.FIRING, labels={"alertname": "A", **labels})


MEANT: list[tuple[str, dict[str, str], tuple[Job, ...], str | None]] = [
    ("the job's id", {"training_job_id": "two"}, ALL, "two"),
    ("the job's id wins over a card", {"training_job_id": "two", "uuid": "GPU-aa"}, ALL, "two"),
    ("an ended job's id", {"training_job_id": "seven"}, (ENDED,), "seven"),
    ("another's id", {"training_job_id": "nine", "uuid": "GPU-aa"}, ALL, None),
    ("uuid and node", {"uuid": "GPU-aa", "node": NODE}, ALL, "one"),
    ("uuid in capitals, dcgm's names", {"UUID": "GPU-AA", "Hostname": NODE}, ALL, "one"),
    ("uuid without GPU-", {"uuid": "aa", "hostname": NODE}, ALL, "one"),
    ("uuid of another node", {"uuid": "GPU-aa", "node": "n2"}, ALL, None),
    ("uuid alone", {"uuid": "GPU-cc"}, ALL, "four"),
    ("index and node", {"gpu": "1", "node": NODE}, ALL, "two"),
    ("the article's device and node", {"device": "0", "node": NODE}, ALL, "one"),
    ("a minor number is no index", {"device": "nvidia0", "node": NODE}, ALL, None),
    ("a model name is no index", {"gpu": "RTX 3090", "node": NODE}, ALL, None),
    ("index without a node", {"gpu": "0"}, (ELSEWHERE,), None),
    ("index without a node, and a job without one", {"gpu": "0"}, (NAMELESS,), None),
    ("an index that the host has not", {"gpu": "7", "node": NODE}, ALL, None),
    ("only the label job", {"job": "one"}, ALL, None),
    ("nothing, and there is only one job", {}, (ONE,), None),
    ("a job whose cards are unknown", {"uuid": "GPU-aa", "node": NODE}, (UNKNOWN,), None),
    ("a card of an ended job", {"uuid": "GPU-aa", "node": NODE}, (ENDED,), None),
    ("a card of a lost job", {"uuid": "GPU-aa", "node": NODE}, (LOST,), "six"),
    ("a lost and a living one", {"uuid": "GPU-aa", "node": NODE}, (LOST, ONE), "one"),
    ("a node by its alias", {"uuid": "GPU-aa", "node": "container-7"}, ALL, "one"),
]


@pytest.mark.parametrize(("labels", "jobs", "expected"), [case[1:] for case in MEANT], ids=[case[0] for case in MEANT])
def test_an_alert_means_one_job_or_none(labels: dict[str, str], jobs: tuple[Job, ...], expected: str | None) -> None:
    """By id, by card and node, by the host's own index map; by nothing else."""
    meant = resolve(alert(**labels), jobs, {"container-7": NODE})

    assert (meant.job.job_id if meant.job else None, meant.reason) == (
        expected,
        None if expected else Reason.NO_TARGET,
    )


def test_several_jobs_are_none_and_are_named() -> None:
    """Two jobs on one card: neither is touched."""
    meant = resolve(alert(uuid="GPU-aa", node=NODE), (ONE, SHARED), {})

    assert (meant.job, meant.reason, meant.names) == (
        None,
        Reason.AMBIGUOUS_TARGET,
        ("one (one)", "three (three)"),
    )


def test_the_card_is_the_one_that_the_host_registered() -> None:
    """Prometheus is asked by NVML's spelling, whatever the alert's is."""
    assert resolve(alert(UUID="AA", node=NODE), ALL, {}).uuid == "GPU-aa"


def process(pid: int, memory: int | None, ours: bool) -> dict[str, Any]:
    return {"pid": pid, "memory": memory, "ours": ours, "name": f"p{pid}"}


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        ([process(1, 10, True), process(2, 9, False)], ()),
        ([process(1, 10, True), process(2, 6, False), process(3, 7, False)], ("p3 (3)", "p2 (2)")),
        ([process(1, 10, True), process(2, 10, False)], ()),
        ([process(1, None, True), process(2, 10, False)], ()),
        ([process(2, 10, False)], ("p2 (2)",)),
        ([], ()),
    ],
)
def test_others_that_hold_more_are_named(processes: list[dict[str, Any]], expected: tuple[str, ...]) -> None:
    """Largest first; where the driver can't tell, nobody is accused."""
    card = a_heartbeat(processes=processes).gpus[0]

    assert others_holding_more(card) == expected


def test_the_shipped_alert_s_labels_mean_its_job() -> None:
    """node, gpu, uuid: as rules/alerts writes them."""
    job = a_job()

    assert resolve(an_alert(gpu="0"), (job,), {}).job == job
