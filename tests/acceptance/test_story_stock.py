"""GpuMemoryNearlyFull with its shipped `for: 3m`, once: the real three minutes, then the rescue."""

import pytest

from tests.acceptance.world import World
from tunewarden.demo.evidence import sha256

WITHIN_S = 330.0  # pending 180 s, the start of everything, the rescue and its proof


@pytest.mark.slow
def test_the_stock_rule_fires_after_three_minutes_and_the_job_is_rescued(stock_world: World) -> None:
    """It was pending for three minutes, then fired; the job goes on with half the batch and is found recovered."""
    job = stock_world.jobs["stock"]
    stock_world.until(lambda: stock_world.titles("stock")[1:], within_s=WITHIN_S)
    pending = stock_world.prometheus.value(
        'count_over_time(ALERTS{alertname="GpuMemoryNearlyFull", alertstate="pending"}[30m])'
    )

    assert pending is not None
    assert 175 <= pending <= 190  # evaluated once a second
    # Titles after these say that the job has finished: it goes on while other tests run.
    assert [title.split()[0] for title in stock_world.titles("stock")[:2]] == ["Acting", "Recovered"]
    assert job.receipt(1)["step"] == job.file(2, "resumed.json")["step"]
    assert job.pids(1) == set()
    assert len(job.pids(2)) == 1
    assert sha256(job.config) == job.config_sha256
