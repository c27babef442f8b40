"""A real Alertmanager 0.25 posts to the receiver."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.alertmanager_process import AlertmanagerProcess
from tests.acceptance.real_process import eventually
from tests.acceptance.receiver_process import ReceiverProcess
from tunewarden.adapters.tokens import ALERTMANAGER_TOKEN, alertmanager_lines, ensure_token
from tunewarden.api.wire import alerts_of
from tunewarden.domain.alert import AlertStatus, fingerprint_of

LABELS = {"alertname": "GpuMemoryNearlyFull", "uuid": "GPU-1", "node": "gpu-1", "owner": "李"}


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[ReceiverProcess]:
    process = ReceiverProcess(tmp_path / "receiver")
    process.start()
    yield process
    process.stop()


def test_its_delivery_is_in_the_store_with_the_fingerprint_that_we_compute(
    receiver: ReceiverProcess, tmp_path: Path
) -> None:
    """With the token in `credentials_file`; firing, then resolved."""
    with AlertmanagerProcess(
        tmp_path / "alertmanager", webhook_url=receiver.webhook, credentials_file=receiver.token_file
    ) as alertmanager:
        alertmanager.send([{"labels": {**LABELS}}])
        (firing,) = alerts_of(eventually(receiver.stored)[0])
        alertmanager.send(
            [{"labels": {**LABELS}, "endsAt": "2026-01-01T00:00:00Z", "startsAt": "2025-12-31T00:00:00Z"}]
        )
        bodies = eventually(lambda: receiver.stored()[1:])
    (resolved,) = alerts_of(bodies[0])

    assert (firing.status, resolved.status) == (AlertStatus.FIRING, AlertStatus.RESOLVED)
    assert firing.labels == LABELS
    assert firing.fingerprint == fingerprint_of(firing.labels)
    assert firing.ends_at is None
    assert resolved.ends_at is not None


def test_it_sends_again_what_could_not_be_stored(receiver: ReceiverProcess, tmp_path: Path) -> None:
    """The receiver is away when the alert fires, and comes back: the alert arrives."""
    with AlertmanagerProcess(
        tmp_path / "alertmanager", webhook_url=receiver.webhook, credentials_file=receiver.token_file
    ) as alertmanager:
        receiver.stop()
        alertmanager.send([{"labels": {**LABELS}}])
        eventually(lambda: "connection refused" in alertmanager.log_path.read_text())
        receiver.start()

        assert eventually(receiver.stored)


def test_the_printed_lines_are_a_whole_configuration(tmp_path: Path) -> None:
    """amtool 0.25 accepts them below a route, and they name the file that the printed copy makes."""
    token_file = tmp_path / "webhook.token"
    ensure_token(token_file)
    lines = alertmanager_lines("http://127.0.0.1:9750", token_file)
    copy = tmp_path / "copied.token"
    copy.write_text(token_file.read_text())
    config = tmp_path / "alertmanager.yml"
    config.write_text("route:\n  receiver: tunewarden\n" + lines.replace(ALERTMANAGER_TOKEN, str(copy)))

    done = subprocess.run(["amtool", "check-config", str(config)], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 receivers" in done.stdout
    assert f"sudo install -o prometheus -m 600 {token_file} {ALERTMANAGER_TOKEN}" in lines
