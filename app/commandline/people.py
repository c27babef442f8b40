"""The commands that ask the running service: jobs, save, stop, hold, release, remediations, breaker, message test."""

import json
from typing import Any
from urllib.parse import quote

from tunewarden.commandline.client import ServiceClient
from tunewarden.commandline.output import Output


def jobs(client: ServiceClient, output: Output) -> None:
    """Every job that the service knows, living ones first."""
    rows = [
        (
            job["name"],
            job["job_id"],
            _state(job),
            job["generation"],
            _progress(job),
            job["node"],
            job.get("trainer") or "",
            "enforce" if job.get("enforce") else "inherit",  # the settings and the policy decide
            _age(job.get("seen_ago_s")),
            job.get("no_hook") or "",
        )
        for job in client.get("/api/v1/jobs")["jobs"]
    ]
    headers = ("name", "job", "state", "generation", "step", "node", "trainer", "mode", "seen", "note")
    output.table(headers, rows, "no jobs yet: start one with `tunewarden run -- CMD`")


def act(client: ServiceClient, output: Output, ref: str, action: str, body: dict[str, Any] | None = None) -> None:
    """save, stop, hold or release one job."""
    answer = client.post(f"/api/v1/jobs/{quote(ref, safe='')}/{action}", body)
    remediation = answer.get("remediation_id")
    if remediation:
        output.line(
            f"{action} asked of {ref} as {remediation}: `tunewarden remediations {remediation}` shows how far it is"
        )
    else:
        output.line(f"{ref}: {action} done")


def remediations(client: ServiceClient, output: Output) -> None:
    """The newest remediations."""
    rows = [
        (
            entry["remediation_id"],
            entry.get("job_name") or entry["job_id"],
            entry["policy"],
            entry["state"],
            entry["reason"],
            _age(entry.get("opened_ago_s")),
        )
        for entry in client.get("/api/v1/remediations")["remediations"]
    ]
    output.table(("remediation", "job", "policy", "state", "reason", "opened"), rows, "no remediation yet")


def remediation(client: ServiceClient, output: Output, remediation_id: str) -> None:
    """One remediation, whole."""
    entry = client.get(f"/api/v1/remediations/{quote(remediation_id, safe='')}")
    rows = [(key, _shown(value)) for key, value in entry.items() if value not in (None, "", {}, [])]
    output.table(("field", "value"), rows, "nothing")


def _shown(value: Any) -> str:
    """Names and values as a person reads them; what is deeper than one level as JSON."""
    if isinstance(value, dict):
        return "\n".join(
            f"{name}: {_shown(item) if not isinstance(item, dict) else _json(item)}" for name, item in value.items()
        )
    if isinstance(value, list):
        return "\n".join(item if isinstance(item, str) else _json(item) for item in value)
    return str(value)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def cancel(client: ServiceClient, output: Output, remediation_id: str) -> None:
    """Cancel a remediation that has not begun to save or stop."""
    client.post(f"/api/v1/remediations/{quote(remediation_id, safe='')}/cancel")
    output.line(f"{remediation_id} is cancelled: the job is as it was")


def close_breaker(client: ServiceClient, output: Output) -> None:
    """Close the breaker."""
    client.post("/api/v1/breaker/close")
    output.line("the breaker is closed: policies act again")


def message_test(client: ServiceClient, output: Output, target: str | None) -> None:
    """Send a test message through the outbox and say how it went."""
    answer = client.post("/api/v1/messages/test", {"target": target} if target else {})
    output.line(answer.get("text") or f"a test message to {answer.get('target')} is {answer.get('state')}")


def _state(job: dict[str, Any]) -> str:
    """The state; a hold matters as long as there is something to hold."""
    living = job["state"] in ("running", "waiting")
    return f"{job['state']} (held)" if living and job.get("held") else str(job["state"])


def _progress(job: dict[str, Any]) -> str:
    step, total = job.get("step"), job.get("total_steps")
    if step is None:
        return ""
    return f"{step}/{total}" if total else str(step)


def _age(seconds: float | None) -> str:
    if seconds is None:
        return ""
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"
