"""The product's DingTalk stand-in, a process for one test; `python -m tests.acceptance.dingtalk_stand_in` by hand."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from tests.acceptance.real_process import RealProcess
from tunewarden.demo.dingtalk_stand_in import main
from tunewarden.domain.target import Language, Secret, Target

SECRET = "SEC0f3a9c1de2b84567"
TOKEN = "7c1e5d0ab9f24e6f"


class DingTalkStandIn(RealProcess):
    """A strict robot on loopback. `options` are those of its command line; its log is the evidence."""

    name = "dingtalk_stand_in"
    ready_path = "/healthy"

    def __init__(self, folder: Path, *options: str, signed: bool = True) -> None:
        super().__init__(folder)
        self._options = options
        self._secret_file = folder / "secret.txt"
        self._secret_file.write_text(SECRET, encoding="utf-8")
        self._signed = signed
        self.evidence = folder / "posts.jsonl"

    def argv(self) -> list[str]:
        secret = ["--secret-file", str(self._secret_file)] if self._signed else []
        program = [sys.executable, "-m", "tunewarden.demo.dingtalk_stand_in"]
        return [*program, "--port", str(self.port), "--log", str(self.evidence), *secret, *self._options]

    def posts(self) -> list[dict[str, Any]]:
        """Every post so far, oldest first."""
        if not self.evidence.exists():
            return []
        return [json.loads(line) for line in self.evidence.read_text(encoding="utf-8").splitlines()]

    def taken(self) -> list[dict[str, Any]]:
        """The posts that a person would see."""
        return [post for post in self.posts() if post["taken"]]

    def script(self, answers: Sequence[str]) -> None:
        """The answers to the next posts."""
        httpx.post(f"{self.url}/script", content=json.dumps(list(answers)), trust_env=False).raise_for_status()

    def target(self, name: str = "ops", **changes: Any) -> Target:
        """A target that reaches this robot."""
        values: dict[str, Any] = {
            "name": name,
            "robot_url": Secret(f"{self.url}/robot/send?access_token={TOKEN}"),
            "secret": Secret(SECRET) if self._signed else None,
            "language": Language.EN,
            "allowed_hosts": ("127.0.0.1",),
        }
        return Target(**(values | changes))


if __name__ == "__main__":
    main()
