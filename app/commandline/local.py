"""The commands that look at settings and policies and need no service: check, simulate."""

import json
from pathlib import Path

from tunewarden.adapters.dingtalk_address import robot_address, warnings_of
from tunewarden.adapters.tokens import alertmanager_lines
from tunewarden.bootstrap import policies_of, simulated
from tunewarden.commandline.output import Output
from tunewarden.config import Settings, load_settings
from tunewarden.errors import SettingsError, StoreError, TunewardenError


def check(config: Path | None, alertmanager: bool, output: Output) -> None:
    """Check settings and policies, and say what was found good; or print the lines for alertmanager.yml.

    Raises FaultsFound with every fault of both.
    """
    settings = load_settings({"config": config})
    policies = policies_of(settings)
    for target in (section.target() for section in settings.dingtalk):
        robot_address(target)
        for warning in warnings_of(target):
            output.aside(f"warning: {warning}", "yellow")
    if alertmanager:
        output.line(alertmanager_lines(settings.service_url, settings.webhook_token))
        return
    output.table(
        ("policy", "mode", "enabled", "file"),
        [(policy.name, policy.mode, "yes" if policy.enabled else "no", policy.file) for policy in policies],
        "no policy",
    )
    for warning in _gaps(settings):
        output.aside(f"warning: {warning}", "yellow")
    output.aside(f"settings and {len(policies)} policies are good", "green")


def _gaps(settings: Settings) -> list[str]:
    """What is not wrong, and still leaves a person unprotected."""
    gaps = []
    if not settings.prometheus_url:
        gaps.append("`prometheus_url` is not set: nothing can be confirmed, so no living job is ever stopped")
    if not settings.dingtalk:
        gaps.append("no `dingtalk` target is set: nobody is told")
    return gaps


def simulate(settings: Settings, payload: Path, as_json: bool, output: Output) -> None:
    """Print what would be decided about the webhook body in `payload`, an alert a row, or as JSON.

    Raises SettingsError for a file that can't be read or holds no Alertmanager payload.
    """
    try:
        body = payload.read_bytes()
    except OSError as error:
        raise SettingsError(f"{payload} can't be read: {error.strerror}") from None
    try:
        rows = simulated(body, settings)
    except StoreError:
        raise
    except TunewardenError as error:
        raise SettingsError(
            f"{payload}: {str(error).rstrip('.')}; give a body as Alertmanager posts it to a webhook"
        ) from None
    if as_json:
        output.line(json.dumps(rows, ensure_ascii=False, indent=2))
        return
    headers = ("fingerprint", "alert", "status", "verdict", "reason", "policy", "steps")
    cells = [
        (
            row["fingerprint"],
            row["alertname"],
            row["status"],
            row["verdict"],
            row["reason"],
            row["policy"],
            ", ".join(row["steps"]),
        )
        for row in rows
    ]
    output.table(headers, cells, "no alert in this body")
