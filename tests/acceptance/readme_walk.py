"""Does what README.md says, in its own order, on its own ports; prints what came of it as JSON.

    [unshare --net] python -m tests.acceptance.readme_walk FOLDER

The fenced blocks are taken as printed. Adapted, for they need a real system: `make setup` is left out (the environment
that runs this is what it made, and the link leads into it), `sudo` and `-o prometheus` are left out, and
/etc/prometheus is FOLDER/etc/prometheus. HOME is FOLDER/home. PATH has ~/.local/bin and a `python` of the
trainer's own, never our environment. Each step that fails raises.
"""

import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1


def blocks(readme: Path, language: str) -> list[str]:
    """The fenced blocks of a language, in order, to the byte."""
    return re.findall(rf"^```{language}\n(.*?)^```$", readme.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def block_with(language: str, word: str) -> str:
    """The only block that holds this word."""
    (found,) = (text for text in blocks(ROOT / "README.md", language) if word in text)
    return found


def loopback_up() -> None:
    """In a fresh network namespace `lo` is down. Harmless where it is up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        (flags,) = struct.unpack_from("16xH", fcntl.ioctl(sock, _SIOCGIFFLAGS, struct.pack("16sH14x", b"lo", 0)))
        if not flags & _IFF_UP:
            fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))


class Walk:
    """The steps, and the processes that they leave running."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home, self.etc = folder / "home", folder / "etc" / "prometheus"
        trainers = folder / "trainer" / "bin"
        for path in (self.home, self.etc, trainers):
            path.mkdir(parents=True)
        (trainers / "python").symlink_to(Path(sys.executable).resolve())
        keep = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
        ours = {str(Path(sys.executable).parent), str(Path(sys.prefix) / "bin")}
        others = [each for each in keep["PATH"].split(":") if each not in ours]
        paths = [str(self.home / ".local" / "bin"), str(trainers), *others]
        self.environment = {**keep, "HOME": str(self.home), "PATH": ":".join(paths)}
        self.running: list[subprocess.Popen[bytes]] = []

    def adapted(self, text: str) -> str:
        text = text.replace("make setup\n", "").replace("$PWD/.venv", sys.prefix)
        text = text.replace("sudo ", "").replace("-o prometheus ", "")
        return re.sub(r"(?<![\w/])/etc/prometheus", str(self.etc), text)

    def shell(self, text: str, cwd: Path = ROOT) -> str:
        """Run a block; its output. RuntimeError when a line of it fails."""
        done = subprocess.run(
            ["sh", "-ec", self.adapted(text)],
            cwd=cwd,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{text!r} ended with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def start(self, name: str, argv: list[str]) -> None:
        with (self.folder / f"{name}.log").open("wb") as log:
            self.running.append(
                subprocess.Popen(argv, cwd=self.folder, env=self.environment, stdout=log, stderr=subprocess.STDOUT)
            )

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text("utf-8")

    def until(self, what: str, read: Callable[[], object], within_s: float = 40.0) -> object:
        deadline = time.monotonic() + within_s
        while True:
            with contextlib.suppress(httpx.HTTPError, sqlite3.OperationalError, KeyError, IndexError):
                if found := read():
                    return found
            if time.monotonic() > deadline:
                logs = "\n".join(f"== {path.name}\n{path.read_text()[-2000:]}" for path in self.folder.glob("*.log"))
                raise RuntimeError(f"{what}: not within {within_s} s\n{logs}")
            time.sleep(0.1)

    def stop(self) -> None:
        for process in reversed(self.running):
            process.send_signal(signal.SIGTERM)
        for process in self.running:
            process.wait(20)


@contextlib.contextmanager
def walk(folder: Path) -> Iterator[Walk]:
    made = Walk(folder)
    try:
        yield made
    finally:
        made.stop()


def serve(steps: Walk) -> None:
    steps.shell(block_with("sh", "make setup\nmkdir"))
    serving = next(text for text in blocks(ROOT / "README.md", "sh") if text.startswith("tunewarden serve"))
    steps.start("serve", ["sh", "-c", f"exec {serving}"])
    steps.until("the service", lambda: httpx.get("http://127.0.0.1:9750/-/ready", trust_env=False).status_code == 200)


def alertmanager(steps: Walk) -> None:
    steps.shell(block_with("sh", "webhook.token"))
    config = steps.etc / "alertmanager.yml"
    config.write_text(steps.adapted(block_with("yaml", "webhook_configs")), encoding="utf-8")
    steps.shell(f"amtool check-config {config}")
    storage = f"--storage.path={steps.folder}/alertmanager"
    steps.start(
        "alertmanager", ["prometheus-alertmanager", f"--config.file={config}", storage, "--cluster.listen-address="]
    )
    steps.until("Alertmanager", lambda: httpx.get("http://127.0.0.1:9093/-/ready", trust_env=False).status_code == 200)
    steps.shell("amtool --alertmanager.url=http://127.0.0.1:9093 alert add GpuMemoryNearlyFull node=gpu-1 uuid=GPU-1")


def prometheus(steps: Walk) -> None:
    steps.shell(block_with("sh", "rules/recording"))
    config = steps.etc / "prometheus.yml"
    config.write_text(steps.adapted(block_with("yaml", "rule_files")), encoding="utf-8")
    steps.shell(f"promtool check config {config}")
    steps.start("prometheus", ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={steps.folder}/tsdb"])


def ask_prometheus(query: str) -> list[dict[str, object]]:
    answer = httpx.get("http://127.0.0.1:9090/api/v1/query", params={"query": query}, trust_env=False)
    found: list[dict[str, object]] = answer.json()["data"]["result"]
    return found


def check(steps: Walk) -> str:
    """The settings and the robot's files as printed."""
    steps.shell(block_with("sh", "access_token="))
    settings = steps.home / ".local" / "state" / "tunewarden" / "settings.yaml"
    settings.write_text(block_with("yaml", "secret_file"), encoding="utf-8")
    return steps.shell(block_with("sh", "tunewarden check").replace("tunewarden message test\n", ""))


def train(steps: Walk) -> str:
    """The run as printed, beside the shipped example, which is made short."""
    folder = steps.folder / "training"
    folder.mkdir()
    for name in ("train.py", "my_style_lora.yaml"):
        text = (ROOT / "docs" / "examples" / name).read_text(encoding="utf-8")
        text = text.replace("\nepochs: 10\n", "\nepochs: 1\n").replace("step_seconds: 0.05", "step_seconds: 0.02")
        (folder / name).write_text(text, encoding="utf-8")
    return steps.shell("command -v python\n" + block_with("sh", "--name cat-lora"), cwd=folder)


def delivered(steps: Walk) -> list[tuple[object, ...]]:
    store = steps.home / ".local" / "state" / "tunewarden" / "tunewarden.db"
    with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as conn:
        query = "select alertname, json_extract(labels, '$.node') from episodes where alertname = 'GpuMemoryNearlyFull'"
        return conn.execute(query).fetchall()


def main() -> None:
    loopback_up()
    with walk(Path(sys.argv[1])) as steps:
        serve(steps)
        prometheus(steps)
        alertmanager(steps)
        found = {
            "checked": check(steps),
            "trained": train(steps),
            "jobs": steps.shell("tunewarden jobs"),
            "episodes": steps.until("the alert in the store", lambda: delivered(steps)),
            "printed": steps.log("serve"),
            "scraped": steps.until("a scrape", lambda: ask_prometheus('up{job="tunewarden"} == 1')),
            "rules": len(httpx.get("http://127.0.0.1:9090/api/v1/rules", trust_env=False).json()["data"]["groups"]),
        }
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
