"""The causes of low utilisation, as a table. Real processes provoke each in tests/acceptance."""

import math
from collections.abc import Mapping

import pytest

from tunewarden.domain.diagnosis import DIAGNOSIS_QUERIES, Cause, diagnose, queries

WAITING = {
    "gpu_utilization": 0.2,
    "cpu_busy": 0.3,
    "cpu_iowait": 0.0,
    "disk_busy": 0.1,
    "job_cpu_cores": 0.05,
    "job_read_rate": 0.0,
    "step_rate": 2.0,
    "step_seconds": 0.5,
    "data_wait_share": 0.9,
}


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({}, Cause.LOADER),
        ({"data_wait_share": 0.5}, Cause.LOADER),
        ({"cpu_busy": 1.0}, Cause.LOADER),  # neighbours load the host; this job sleeps
        ({"job_cpu_cores": 1.0}, Cause.LOADER),  # one busy worker, a host with CPUs to spare
        ({"cpu_busy": 0.9, "job_cpu_cores": 0.15}, Cause.CPU),
        ({"cpu_busy": 1.0, "job_cpu_cores": 0.14}, Cause.LOADER),
        ({"cpu_busy": 0.89, "job_cpu_cores": 2.0}, Cause.LOADER),
        ({"cpu_busy": 0.95, "job_cpu_cores": 2.0, "job_read_rate": 1e8, "disk_busy": 1.0}, Cause.CPU),
        ({"job_read_rate": 65536.0}, Cause.DISK),  # blocked in its reads
        ({"job_read_rate": 65536.0, "job_cpu_cores": 0.49}, Cause.DISK),
        ({"job_read_rate": 65536.0, "job_cpu_cores": 0.5}, Cause.LOADER),
        ({"job_read_rate": 65535.0}, Cause.LOADER),
        ({"job_read_rate": 1e8, "job_cpu_cores": 1.0}, Cause.LOADER),  # it reads, and decoding is what takes the time
        ({"job_read_rate": 1e8, "job_cpu_cores": 1.0, "disk_busy": 0.7}, Cause.DISK),
        ({"job_read_rate": 1e8, "job_cpu_cores": 1.0, "cpu_iowait": 0.25}, Cause.DISK),
        ({"disk_busy": 1.0, "cpu_iowait": 0.5}, Cause.LOADER),  # somebody else's disk traffic
        ({"data_wait_share": 0.49, "step_seconds": 0.09}, Cause.SMALL_KERNELS),
        ({"data_wait_share": 0.1, "step_seconds": 0.01, "step_rate": 90.0}, Cause.SMALL_KERNELS),
        ({"data_wait_share": 0.0, "step_seconds": 0.05}, Cause.UNKNOWN),
        ({"gpu_utilization": 0.5}, Cause.UNKNOWN),  # it is at work again
        ({"step_rate": 0.0}, Cause.NOT_TRAINING),
        ({"step_rate": 0.0, "step_seconds": math.nan, "data_wait_share": math.nan}, Cause.NOT_TRAINING),
        ({"step_rate": 0.0, "step_seconds": None, "data_wait_share": None}, Cause.NOT_TRAINING),
        ({"step_rate": 0.0, "gpu_utilization": 0.9}, Cause.UNKNOWN),
    ],
)
def test_the_numbers_decide(changes: Mapping[str, float | None], cause: Cause) -> None:
    """One line for each rule and each side of its threshold."""
    diagnosis = diagnose({**WAITING, **changes})

    assert (diagnosis.cause, diagnosis.missing) == (cause, ())


@pytest.mark.parametrize("name", DIAGNOSIS_QUERIES)
@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_without_an_input_it_is_unknown(name: str, value: float | None) -> None:
    """The missing input is named, and the others are still told."""
    diagnosis = diagnose({**WAITING, name: value})

    assert (diagnosis.cause, diagnosis.missing) == (Cause.UNKNOWN, (name,))
    assert diagnosis.numbers == {other: number for other, number in WAITING.items() if other != name}


def test_nothing_measured_is_unknown() -> None:
    """No Prometheus, no answer: everything is missing."""
    diagnosis = diagnose({})

    assert (diagnosis.cause, set(diagnosis.missing)) == (Cause.UNKNOWN, set(DIAGNOSIS_QUERIES))


def test_the_queries_name_the_card_the_node_the_job_and_the_window() -> None:
    """Nothing of the template is left, and a label's value can't end its string."""
    made = queries(uuid="GPU-a", node='n"} or vector(1) #\\', training_job_id="j1", window="10m")

    assert set(made) == set(DIAGNOSIS_QUERIES) and not any("$" in text for text in made.values())
    assert made["gpu_utilization"] == 'max(avg_over_time(gpu:utilization:ratio{uuid="GPU-a"}[10m]))'
    assert '{node="n\\"} or vector(1) #\\\\"}' in made["cpu_busy"]
