"""How many broken remediations open the breaker is a setting."""

from pathlib import Path

import pytest

from tunewarden.adapters.store import budgets
from tunewarden.adapters.store.engine import Store


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_the_breaker_opens_at_the_limit(tmp_path: Path, limit: int) -> None:
    """The one before the limit leaves it closed."""
    with Store(tmp_path / "t.db") as store:
        opened = [store.write_now(lambda conn: budgets.count_broken(conn, now=1.0, limit=limit)) for _ in range(limit)]

    assert opened == [False] * (limit - 1) + [True]
