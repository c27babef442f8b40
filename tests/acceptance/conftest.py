"""The stock rule takes more than three minutes: its world begins before the other tests here, and plays beside them."""

import contextlib
import os
import sys
from collections.abc import Iterator

import pytest

from tests.acceptance.world import CONFIG, GRUMBLING_TRAINER, World

FULL = {"train_samples": 40000, "step_seconds": 0.1, "activation_mb_per_sample": 58}


@pytest.fixture(scope="session")
def stock_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Rules and policies as shipped, only `verify_for` shortened; `enforce` is on. One job, full from its start."""
    folder = tmp_path_factory.mktemp("stock")
    with World(folder, settings={"enforce": True}, rules={}, policies={"verify_for: 5m": "verify_for: 10s"}) as world:
        command = [sys.executable, str(GRUMBLING_TRAINER), "--config", CONFIG]
        world.run("stock", config=FULL, command=command, env={"GRUMBLE_AT_S": "1"})
        yield world


@pytest.fixture(scope="session", autouse=True)
def _begin_early(request: pytest.FixtureRequest) -> None:
    """Not under xdist, where each worker would play it."""
    wanted = any("stock_world" in getattr(item, "fixturenames", ()) for item in request.session.items)
    if wanted and "PYTEST_XDIST_WORKER" not in os.environ:
        with contextlib.suppress(AssertionError):  # it is the stock test that fails then, not each test here
            request.getfixturevalue("stock_world")
