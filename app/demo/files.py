"""The files of the demo: settings, Prometheus, Alertmanager, and the three training configs."""

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tunewarden.errors import SettingsError

STEPS = 600  # optimizer steps of each job, in all generations together
CARD = "24GiB/256MiB"  # 256 MiB of a job's real memory count as the whole card

PROMETHEUS = """\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{rules}/*.yaml"]
alerting:
  alertmanagers:
    - static_configs: [{{targets: ["127.0.0.1:{alertmanager_port}"]}}]
scrape_configs:
  - job_name: tunewarden
    static_configs: [{{targets: ["127.0.0.1:{service_port}"]}}]
"""

ALERTMANAGER = """\
route:
  receiver: tunewarden
  group_by: [alertname, node]
  group_wait: 0s
  group_interval: 1s
  repeat_interval: 1h
receivers:
  - name: tunewarden
    webhook_configs:
      - url: http://127.0.0.1:{service_port}/api/v1/alertmanager
        send_resolved: true
        http_config:
          authorization:
            credentials_file: {token_file}
"""

SETTINGS = """\
port: {service_port}
prometheus_url: http://127.0.0.1:{prometheus_port}
alertmanager_url: http://127.0.0.1:{alertmanager_port}
enforce: true
heartbeat: 1s
shipped_policies: false
policy_dirs: ["{policies}"]
dingtalk:
  - name: phone
    url_file: {url_file}
    secret_file: {secret_file}
    language: both
    verbose: true
    allowed_hosts: ["127.0.0.1"]
"""

# What each rule's and policy's windows become. Thresholds stay as shipped.
SHORTER_RULES: Mapping[str, str] = {"for: 3m": "for: 5s"}
SHORTER_POLICIES: Mapping[str, str] = {
    "[15m], 1800)": "[20s], 30)",
    "[5m]": "[5s]",
    "offset 10m": "offset 8s",
    "recheck: 15s": "recheck: 1s",
    "verify_for: 5m": "verify_for: 10s",
    "deadline: 15m": "deadline: 60s",
}


def shortened_policies(source: Path, target: Path) -> None:
    """Copy the shipped policies with the shorter times.

    Raises SettingsError when an entry changes nothing: the demo would not play what it says.
    """
    target.mkdir(parents=True)
    used = set()
    for path in sorted(source.glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        used |= {old for old in SHORTER_POLICIES if old in text}
        for old, new in SHORTER_POLICIES.items():
            text = text.replace(old, new)
        (target / path.name).write_text(text, encoding="utf-8")
    if unused := SHORTER_POLICIES.keys() - used:
        raise SettingsError(f"the shipped policies have no {', '.join(sorted(unused))}")


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One job of the story: its name, what its config says otherwise than the shipped example, and what is expected."""

    name: str
    title: str
    changes: Mapping[str, object]
    card: int


SCENES = (
    Scene(
        name="creeping",
        title="its memory creeps up: saved, stopped, half the batch, goes on",
        changes={"activation_mb_per_sample": 53, "leak_mb_per_step": 0.02, "step_seconds": 0.1},
        card=0,
    ),
    Scene(
        name="flat-97",
        title="97 % full and steady: left alone, one message",
        changes={"activation_mb_per_sample": 58, "step_seconds": 0.1},
        card=1,
    ),
    Scene(
        name="oom-night",
        title="dies of CUDA out of memory: comes back with half the batch",
        changes={
            "activation_mb_per_sample": 40,
            "leak_mb_per_step": 0.1,
            "oom_at_mb": 200,
            "step_seconds": 0.1,
            "save_steps": 40,
        },
        card=2,
    ),
)


def training_config(example: str, scene: Scene) -> str:
    """The shipped example's text with the scene's values; every other line as shipped."""
    values = {"train_samples": STEPS * 4 // 10, **scene.changes}
    for key, value in values.items():
        example, count = re.subn(rf"(?m)^({key}:\s*)[^\s#]+", rf"\g<1>{value}", example)
        if count != 1:
            raise ValueError(f"the example config has {count} lines for {key}")
    return example


@dataclass(frozen=True, kw_only=True)
class Robot:
    """The stand-in's address and signing secret."""

    url_file: Path
    secret_file: Path
    secret: str

    @classmethod
    def make(cls, folder: Path) -> "Robot":
        """Write a fresh secret; the URL follows when the stand-in has its port."""
        secret = "SEC" + secrets.token_hex(32)
        robot = cls(url_file=folder / "robot.url", secret_file=folder / "robot.secret", secret=secret)
        robot.secret_file.touch(mode=0o600)
        robot.secret_file.write_text(secret, encoding="ascii")
        return robot
