"""A run and a real Pushgateway (Debian's 1.5.1): the job's series come, and go with it, whatever happens in between."""

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.acceptance.agent_world import World, eventually, world
from tests.acceptance.real_process import RealProcess

TINY = str(Path(__file__).with_name("tiny_trainer.py"))
SECRET = "s3cr3t-of-the-gateway"
HASHED = "$2b$05$abcdefghijklmnopqrstuuUThce7ZCeDmQlZ0Xr4TKK6z/E.SHFqm"  # its bcrypt


class PushgatewayProcess(RealProcess):
    """A real one, that forgets when it is stopped."""

    name = "pushgateway"
    auth: tuple[str, str] | None = None

    def argv(self) -> list[str]:
        return ["prometheus-pushgateway", f"--web.listen-address=127.0.0.1:{self.port}"]

    def series(self) -> dict[str, dict[str, str]]:
        """The labels of each series of a job, by name."""
        text = httpx.get(f"{self.url}/metrics", trust_env=False, auth=self.auth).raise_for_status().text
        families = text_string_to_metric_families(text)
        samples = [sample for family in families for sample in family.samples]
        return {sample.name: dict(sample.labels) for sample in samples if sample.labels.get("training_job_id")}


class LockedPushgatewayProcess(PushgatewayProcess):
    """One that asks for a password."""

    ready_path = "/-/ready"
    auth = ("u", SECRET)

    def argv(self) -> list[str]:
        web = self.folder / "web.json"
        web.write_text(json.dumps({"basic_auth_users": {"u": HASHED}}), encoding="utf-8")  # JSON is YAML too
        return [*super().argv(), f"--web.config.file={web}"]

    def _wait_ready(self) -> bool:
        """It answers 401 to everybody without a password."""
        return bool(eventually(lambda: self._answers(), timeout=self.ready_within_s, what="the gateway"))

    def _answers(self) -> bool:
        try:
            return httpx.get(self.url, timeout=2, trust_env=False).status_code == 401
        except httpx.TransportError:
            return False


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[PushgatewayProcess]:
    with PushgatewayProcess(tmp_path / "gateway") as process:
        yield process


@pytest.fixture
def run(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made


def test_the_series_of_a_job_come_and_go(run: World, gateway: PushgatewayProcess) -> None:
    """As on /metrics, with job and training_job_id as the group; deleted when the run has ended."""
    run.start([sys.executable, TINY, "good"], pushgateway=gateway.url)
    run.until_step(2)
    eventually(lambda: "tunewarden_job_optimizer_steps_total" in gateway.series(), timeout=30)
    shown = gateway.series()
    run.interrupt()
    code = run.exit_code()

    labels = shown["tunewarden_job_optimizer_steps_total"]
    assert labels == {
        "job": "lora-training",
        "instance": "",
        "training_job": run.service.seen.registrations[-1]["name"],
        "training_job_id": run.job_id,
        "generation": "1",
        "node": "node-1",
        "model_type": "unknown",
        "owner": "li",
    }
    assert "push_time_seconds" in shown
    assert (code, gateway.series()) == (130, {})


def test_without_a_service_they_come_all_the_same(run: World, gateway: PushgatewayProcess) -> None:
    """A person who has only Prometheus and a Pushgateway."""
    run.service.stop()
    run.start([sys.executable, TINY, "good"], pushgateway=gateway.url)
    eventually(lambda: "tunewarden_job_cpu_cores" in gateway.series(), timeout=30)
    run.interrupt()

    assert (run.exit_code(), gateway.series()) == (130, {})


@pytest.mark.parametrize("victim", ["agent", "keeper"])
def test_they_go_after_the_death_of_one_of_us(run: World, gateway: PushgatewayProcess, victim: str) -> None:
    """The agent that comes after deletes what the one before has pushed."""
    run.start([sys.executable, TINY, "good"], pushgateway=gateway.url)
    run.until_step(2)
    eventually(gateway.series, timeout=30)
    before = run.identity("agent")
    os.kill(run.identity(victim).pid, signal.SIGKILL)
    if victim == "agent":
        eventually(lambda: run.identity("agent") != before, what="another agent")
    os.kill(run.trainer().pid, signal.SIGKILL)

    eventually(lambda: not gateway.series(), timeout=30, what="the series' end")


def test_the_password_of_the_address_is_given(run: World, tmp_path: Path) -> None:
    """http://user:password@host: basic authentication, as Pushgateways have it."""
    with LockedPushgatewayProcess(tmp_path / "locked") as locked:
        run.start([sys.executable, TINY, "good"], pushgateway=locked.url.replace("//", f"//u:{SECRET}@"))
        eventually(locked.series, timeout=30)
        run.interrupt()

        assert (run.exit_code(), locked.series()) == (130, {})


@contextmanager
def black_hole() -> Iterator[str]:
    """Takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://u:{SECRET}@127.0.0.1:{server.getsockname()[1]}/p?token={SECRET}"


def test_a_gateway_that_hangs_holds_nothing_up_and_its_password_is_not_told(run: World) -> None:
    """The job trains, `run` ends within seconds, and neither log, message nor process list holds the secret."""
    with black_hole() as url:
        run.start([sys.executable, TINY, "good"], pushgateway=url)
        run.until_step(3)
        eventually(lambda: "the Pushgateway at http://127.0.0.1:" in run.log(), timeout=30)
        words = b"".join(path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if is_ours(path, run))
        run.interrupt()
        code = run.exit_code(timeout=15)

    texts = b"".join(path.read_bytes() for path in run.folder.rglob("*") if path.is_file() and path.name != "spec.json")
    assert code == 130
    assert run.job_id.encode() in words
    assert SECRET.encode() not in words + texts
    assert (run.run_dir / "spec.json").stat().st_mode & 0o077 == 0


def is_ours(cmdline: Path, run: World) -> bool:
    """Whether it is the command line of the keeper or the agent of this run."""
    try:
        return run.job_id.encode() in cmdline.read_bytes()
    except OSError:
        return False
