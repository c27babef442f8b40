"""What the demo believes: only other programs' counters, /proc and files. Never our own word."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

PROC = Path("/proc")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One line of the final check."""

    what: str
    source: str
    found: str
    holds: bool


def generation_pids(job_id: str, generation: int) -> set[int]:
    """The live processes whose environment says that they are this generation of this job; from /proc."""
    marks = {f"TUNEWARDEN_JOB={job_id}".encode(), f"TUNEWARDEN_GENERATION={generation}".encode()}
    found = set()
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            try:
                if marks <= set((folder / "environ").read_bytes().split(b"\0")):
                    found.add(int(folder.name))
            except OSError:  # it ended meanwhile, or is another user's
                continue
    return found


def gone(pids: set[int], job_id: str) -> bool:
    """True when none of these pids is still a process of the job. A pid that something else took is gone too."""
    mark = f"TUNEWARDEN_JOB={job_id}".encode()
    for pid in pids:
        try:
            if mark in (PROC / str(pid) / "environ").read_bytes().split(b"\0"):
                return False
        except OSError:
            continue
    return True


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one when the file is not there or not whole."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def sha256(path: Path) -> str:
    """Of a file's bytes."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def query(prometheus: str, expression: str) -> list[tuple[Mapping[str, str], float]]:
    """The samples of an instant query; empty when Prometheus does not answer."""
    try:
        answer = httpx.get(f"{prometheus}/api/v1/query", params={"query": expression}, timeout=5.0, trust_env=False)
        results = answer.json()["data"]["result"]
        return [(item["metric"], float(item["value"][1])) for item in results]
    except (httpx.HTTPError, KeyError, ValueError):
        return []


def counter(url: str, name: str, **labels: str) -> float:
    """The sum of a counter in a /metrics page, over the series that carry these labels."""
    text = httpx.get(url, timeout=5.0, trust_env=False).text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def posts(log: Path) -> list[dict[str, Any]]:
    """What the DingTalk stand-in wrote down, a post a line."""
    if not log.exists():
        return []
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line]
