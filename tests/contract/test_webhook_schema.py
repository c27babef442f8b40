"""The webhook against its own OpenAPI description: whatever is generated from it gets an answer that it names."""

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings

from tests.receiver_app import receiver
from tunewarden.adapters.store.engine import Store
from tunewarden.api.app import with_webhook
from tunewarden.api.webhook import BODIES, Receiver

DESCRIPTION: dict[str, Any] = {"openapi": "3.1.0", "info": {"title": "tunewarden", "version": "1"}, "paths": {}}
schema = schemathesis.openapi.from_dict(with_webhook(DESCRIPTION))


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Store(tmp_path_factory.mktemp("store") / "t.db") as store:
        yield receiver(store, "the-token")


@schema.parametrize()
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_answer_is_one_of_the_fixed_ones(case: schemathesis.Case, app: Receiver) -> None:
    """Never 500, never a redirect; the status and the body are in the description."""
    case.headers = {**(case.headers or {}), "Authorization": "Bearer the-token"}

    response = case.call(app=app)

    wanted = {202, 400, 422} if case.method.upper() == "POST" else {405}
    assert response.status_code in wanted
    assert response.content == BODIES[response.status_code]
