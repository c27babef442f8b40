"""How a run ends: by itself, by a person, by out-of-memory, without a service, without a keeper."""

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.agent_world import World, eventually, world
from tunewarden.processes.ending import signal_one
from tunewarden.processes.identity import ProcessId, alive, identify, read_proc

TINY = str(Path(__file__).with_name("tiny_trainer.py"))
OOM = {"activation_mb_per_sample": 1, "leak_mb_per_step": 1, "oom_at_mb": 64, "save_steps": 5, "epochs": 1}


@pytest.fixture
def run(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        yield made
        assert made.service.seen.faults == []


def tiny(run: World, mode: str, **more: Any) -> None:
    run.start([sys.executable, TINY, mode], **more)


def ended(run: World, generation: int = 1) -> dict[str, Any]:
    """The event of a generation's end."""
    event_id = f"{run.job_id}-g{generation}-ended"
    found = run.service.until(
        lambda: [event for event in run.service.seen.events if event["event_id"] == event_id], 20, event_id
    )
    return dict(found[0])


def said(run: World) -> list[str]:
    """What tunewarden has printed on standard error."""
    return [line for line in (run.folder / "stderr").read_text().splitlines() if line.startswith("tunewarden: ")]


def test_a_job_that_finishes(run: World) -> None:
    """Exit 0 at the last step is finished; `run` ends with 0 and the last heartbeat says ended."""
    run.write_config(epochs=1, step_seconds=0.01)
    run.start()

    assert run.exit_code() == 0
    assert ended(run)["cause"] == "finished"
    assert run.service.seen.heartbeats[-1]["state"] == "ended"
    assert said(run) == []


def test_a_job_that_fails_keeps_its_code(run: World) -> None:
    """A failure is told with its last words, and `run` ends with the job's own code."""
    run.start([sys.executable, "-c", "raise SystemExit(7)"])

    assert run.exit_code() == 7
    assert ended(run)["cause"] == "failed"


def test_a_killed_job_is_not_out_of_memory(run: World) -> None:
    """A bare SIGKILL is killed; `run` ends with 137 at once."""
    tiny(run, "good")
    run.until_step(2)

    os.kill(run.trainer().pid, signal.SIGKILL)

    assert run.exit_code() == 137
    assert ended(run)["cause"] == "killed"


def test_a_death_of_out_of_memory_is_answered_by_an_order(run: World) -> None:
    """`run` waits; an order after_oom launches generation 2 with half the batch from the newest whole state."""
    run.write_config(**OOM)
    run.start()
    event = ended(run)

    run.issue("o-1", "replace", knobs={"batch_size": "/2"}, after_oom=True)
    launched = run.service.until_report("o-1", "launched")["detail"]

    assert event["cause"] == "cuda_oom"
    assert event["waits_s"] == 60.0
    assert list(run.service.reported("o-1")) == ["planned", "launched"]
    assert launched["resume_step"] == event["last_state_step"]
    eventually(lambda: run.read("resumed.json", 2), what="generation 2 resumes")
    assert "batch_size: 2 " in (run.folder / "lora.tunewarden-g2.yaml").read_text()
    assert said(run) == [
        "tunewarden: out of memory; waiting up to 60 s for the service to bring it back",
        f"tunewarden: restarted as generation 2 with lora.tunewarden-g2.yaml, from step {launched['resume_step']}",
    ]


def test_a_death_of_out_of_memory_before_the_first_step(run: World) -> None:
    """The model itself does not fit: `run` waits for nothing and ends with the job's code."""
    run.write_config(**{**OOM, "activation_mb_per_sample": 20, "leak_mb_per_step": 0})
    run.start()
    event = ended(run)

    assert (event["cause"], event["waits_s"]) == ("oom_at_load", 0.0)
    assert run.exit_code() == 1


QUIET = """
import subprocess, sys
sys.exit(subprocess.run(sys.argv[1:], stderr=subprocess.DEVNULL).returncode != 0)
"""


def test_a_kill_that_a_quiet_launcher_hides(run: World) -> None:
    """Exit code 1 and not a word amid the training: an unknown kill, never out-of-memory, and nothing is launched."""
    run.start([sys.executable, "-c", QUIET, sys.executable, TINY, "good"])
    run.until_step(2)

    os.kill(run.trainer().pid, signal.SIGKILL)
    event = ended(run)

    assert run.exit_code() == 1
    assert (event["cause"], event["waits_s"]) == ("unknown", 0.0)
    assert "perhaps it was killed" in event["evidence"]


def test_a_restart_that_trains_nothing(run: World) -> None:
    """Generation 2 ends with 0 before its first step: that is no success, and the previous knobs may come back."""
    run.start([sys.executable, TINY, "idle"])
    run.until_step(2)

    run.issue("o-1", "replace", knobs={})
    run.service.until_report("o-1", "launched")
    event = ended(run, 2)

    assert (event["cause"], event["waits_s"]) == ("finished_without_steps", 60.0)
    assert event["facts"]["steps_made"] == 0


def test_an_agent_that_is_killed_while_it_waits(run: World) -> None:
    """The next agent waits on, and takes the order."""
    run.write_config(**OOM)
    run.start()
    ended(run)
    beats = run.service.seen.heartbeats
    run.service.until(lambda: "waiting" in [beat["state"] for beat in beats], 20, "waiting")

    os.kill(run.identity("agent").pid, signal.SIGKILL)
    run.issue("o-1", "replace", knobs={"batch_size": "/2"}, after_oom=True)

    assert run.service.until_report("o-1", "launched")["detail"]["generation"] == 2


def test_ctrl_c_ends_the_waiting(run: World) -> None:
    """A person who does not want to wait for an order gets the prompt back at once."""
    run.write_config(**OOM)
    run.start()
    ended(run)

    run.interrupt()

    assert run.exit_code(10) == 130


def test_back_to_the_previous_knobs(run: World) -> None:
    """Generation 2 dies before its first step: `run` waits, and an order brings the previous values back."""
    run.write_config(step_seconds=0.2)
    run.start()
    run.until_step(2)
    run.config.with_name("lora.tunewarden-g2.yaml").write_text("a name that is taken")

    run.issue("o-1", "replace", knobs={"batch_size": "/2"})
    launched = run.service.until_report("o-1", "launched")["detail"]
    os.kill(launched["pid"], signal.SIGKILL)
    event = ended(run, 2)
    run.issue("o-2", "replace", generation=2, knobs={"batch_size": "4", "gradient_accumulation": "1"}, after_oom=True)
    again = run.service.until_report("o-2", "launched")["detail"]

    assert (event["cause"], event["waits_s"]) == ("killed", 60.0)
    assert again["resume_step"] == launched["resume_step"]
    run.until_step(again["resume_step"] + 1, generation=3)
    assert "batch_size: 4 " in (run.folder / "lora.tunewarden-g4.yaml").read_text()


def test_out_of_memory_without_a_service_ends_the_run(run: World) -> None:
    """The service away: `run` ends with the job's code within seconds."""
    run.write_config(**OOM)
    run.service.down = True
    run.start()
    eventually(lambda: run.read("crash.json"), what="the death")
    died = time.monotonic()

    assert run.exit_code(12) == 1
    assert time.monotonic() - died < 10


def test_the_service_says_that_nothing_will_come(run: World) -> None:
    """`wait: false` in the answer to the event ends the waiting."""
    run.write_config(**OOM)
    run.service.wait = False
    run.start()

    assert run.exit_code(15) == 1
    assert said(run)[1:] == ["tunewarden: nobody brings it back: ended"]


def test_ctrl_c_saves_and_stops(run: World) -> None:
    """The first Ctrl-C saves, says so, ends everything; `run` ends with 130."""
    run.start()
    run.until_step(2)

    run.interrupt()

    assert run.exit_code() == 130
    assert list((run.folder / "output" / "lora").glob("state-*"))
    assert "tunewarden: saved at step" in (run.folder / "stderr").read_text()
    assert ended(run)["cause"] == "user_stop"
    assert run.members() == []


def test_sigterm_saves_and_stops(run: World) -> None:
    """SIGTERM to `run` is as the first Ctrl-C."""
    run.start()
    run.until_step(2)

    run.interrupt(signal.SIGTERM)

    assert run.exit_code() == 130
    assert list((run.folder / "output" / "lora").glob("state-*"))


def test_the_second_ctrl_c_stops_now(run: World) -> None:
    """A trainer that does not answer is ended by TERM at the second Ctrl-C."""
    tiny(run, "never")
    run.until_step(2)

    run.interrupt()
    eventually(lambda: "waiting for the next optimizer step" in (run.folder / "stderr").read_text(), what="said")
    run.interrupt()

    assert run.exit_code() == 130
    assert not (run.folder / "requests").exists()


def test_the_third_ctrl_c_kills(run: World) -> None:
    """A trainer that ignores TERM is killed at the third Ctrl-C, not before."""
    deaf = "import signal, sys; signal.signal(signal.SIGTERM, signal.SIG_IGN); sys.argv = ['t', 'never']; "
    run.start([sys.executable, "-c", f"{deaf} exec(open({TINY!r}).read())"])
    run.until_step(2)
    trainer = run.trainer()

    run.interrupt()
    eventually(lambda: "waiting for the next optimizer step" in (run.folder / "stderr").read_text(), what="said")
    run.interrupt()
    eventually(lambda: "stopping now" in (run.folder / "stderr").read_text(), what="said")
    run.until_step(run.step() + 5)
    survived = alive(trainer)
    run.interrupt()

    assert run.exit_code() == 130
    assert survived
    assert run.members() == []


def test_a_job_that_can_not_save_gets_the_interrupt(run: World) -> None:
    """Without hello.json the trainer's process gets SIGINT, as from a terminal."""
    tiny(run, "silent")
    run.until_step(2)

    run.interrupt()

    assert run.exit_code() == 130
    assert "KeyboardInterrupt" in (run.folder / "stderr").read_text()


def test_ctrl_c_during_an_order_wins(run: World) -> None:
    """The order is superseded by user_stop, and nothing is launched."""
    tiny(run, "never")
    run.until_step(2)
    run.issue("o-1", "replace")
    eventually(lambda: (run.control() / "stop").exists(), what="the request")

    run.interrupt()
    superseded = run.service.until(lambda: run.service.reported("o-1").get("superseded"), 20, "superseded")
    run.interrupt()

    assert superseded["reason"] == "user_stop"
    assert run.exit_code() == 130
    assert not run.control(2).exists()


def test_ctrl_c_while_the_trainer_saves_for_an_order(run: World) -> None:
    """The save that is under way is used: one save, then the stop."""
    tiny(run, "slow")
    run.until_step(2)
    run.issue("o-1", "replace")
    eventually(lambda: (run.control() / "stop.taken").exists(), what="taken")

    run.interrupt()

    assert run.exit_code() == 130
    assert (run.folder / "requests").read_text().splitlines() == ["r-o-1"]
    assert not run.control(2).exists()


def test_a_job_that_ends_during_an_order(run: World) -> None:
    """The job's own end supersedes the order, and its exit code is kept."""
    tiny(run, "never")
    run.until_step(2)
    run.issue("o-1", "replace")
    eventually(lambda: (run.control() / "stop").exists(), what="the request")

    os.kill(run.trainer().pid, signal.SIGKILL)
    superseded = run.service.until(lambda: run.service.reported("o-1").get("superseded"), 20, "superseded")

    assert superseded["reason"] == "job_ended"
    assert run.exit_code() == 137
    assert not run.control(2).exists()


def test_a_service_that_restarts_during_an_order(run: World) -> None:
    """Reports are sent again until they are taken; the job is replaced once."""
    tiny(run, "slow")
    run.until_step(2)
    run.issue("o-1", "replace")
    eventually(lambda: (run.control() / "stop.taken").exists(), what="taken")

    run.service.stop()
    eventually(lambda: run.read("receipt.json"), what="the receipt")
    run.service.start()

    assert run.service.until_report("o-1", "launched")["detail"]["generation"] == 2
    assert set(run.service.reported("o-1")) - {"accepted"} == {"planned", "saved", "stopped", "launched"}


def test_a_job_without_a_service(run: World) -> None:
    """The service away from the start: the job trains and ends as without us, and Ctrl-C saves."""
    run.service.stop()
    run.start()
    run.until_step(3)

    run.interrupt()

    assert run.exit_code() == 130
    assert list((run.folder / "output" / "lora").glob("state-*"))


def test_a_person_hears_that_no_service_answers(run: World) -> None:
    """One line when nobody answers at the start, one when the service is there."""
    run.service.stop()
    run.start()
    eventually(lambda: said(run), what="no service")
    run.service.start()
    eventually(lambda: len(said(run)) > 1, what="it answers")

    url = run.service.url
    assert said(run) == [
        f"tunewarden: no service answers at {url}: this run is not watched until one does "
        "(start it with `tunewarden serve`)",
        f"tunewarden: the service at {url} answers: this run is watched from now on",
    ]


def test_a_person_hears_that_the_token_is_refused(run: World) -> None:
    """The line names the file."""
    run.service.tokens[:] = ["another"]
    run.start()
    eventually(lambda: said(run), what="the token")

    assert said(run) == [
        f"tunewarden: the service refuses the token in {run.folder / 'token'} (401): "
        "this run is not watched until that is mended"
    ]


def test_a_person_hears_that_there_is_no_token(run: World) -> None:
    """The line names the file, and what makes it."""
    run.service.down = True
    run.start()
    (run.folder / "token").unlink()
    eventually(lambda: said(run), what="the token")

    assert said(run) == [
        f"tunewarden: no token lies in {run.folder / 'token'} (`tunewarden serve` makes it, on its host): "
        "this run is not watched until that is mended"
    ]


def test_a_proxy_is_not_asked_for_loopback(run: World) -> None:
    """http_proxy in the environment leads nowhere; the agent reaches the service all the same."""
    run.start(
        env={"http_proxy": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9", "all_proxy": "http://127.0.0.1:9"}
    )

    run.service.until(lambda: run.service.seen.heartbeats, 20, "a heartbeat")


def test_a_rotated_token_works_at_once(run: World) -> None:
    """The token file is read for each call."""
    run.start()
    run.service.until(lambda: run.service.seen.heartbeats, 20, "a heartbeat")

    (run.folder / "token").write_text("another")
    run.service.tokens[:] = ["another"]
    seen = len(run.service.seen.heartbeats)

    run.service.until(lambda: len(run.service.seen.heartbeats) > seen + 1, 20, "heartbeats go on")


def test_a_service_that_forgot_the_job_hears_of_it_again(run: World) -> None:
    """404 to a heartbeat: the agent registers again."""
    run.start()
    run.service.until(lambda: run.service.seen.heartbeats, 20, "a heartbeat")
    known = len(run.service.seen.registrations)

    run.service.registered = False

    run.service.until(lambda: len(run.service.seen.registrations) > known, 20, "registered again")


def test_a_keeper_that_is_killed(run: World) -> None:
    """Training goes on, its output still reaches the log, a replace is refused, a stop works, the status is unknown."""
    run.start()
    run.until_step(2)
    trainer = run.trainer()
    assert run.process is not None
    os.kill(run.process.pid, signal.SIGKILL)
    size = (run.run_dir / "output.log").stat().st_size
    eventually(lambda: (run.run_dir / "output.log").stat().st_size > size, what="drained output")

    run.issue("o-1", "replace", knobs={"batch_size": "/2"})
    refused = run.service.until(lambda: run.service.reported("o-1").get("refused"), 20, "refused")
    trains = alive(trainer)
    run.issue("o-2", "stop")
    run.service.until_report("o-2", "stopped")

    assert refused["reason"] == "keeper_lost"
    assert trains
    assert run.members() == []
    assert ended(run)["exit_status"] is None
    eventually(lambda: not alive(run.identity("agent")), what="the agent ends")


# A process that is not ours to signal: as root of another user, else in a pid namespace of its own.
ELSEWHERE = "setpriv --reuid=65534 --clear-groups" if os.getuid() == 0 else "unshare -Upf"
OWN_PIDS = "unshare -pf" if os.getuid() == 0 else "unshare -Upf"


@pytest.fixture
def asleep(run: World) -> Iterator[Callable[[str], ProcessId]]:
    """The process of this run's session or job that sleeps so many seconds, once it does. It is killed in the end."""
    found: list[ProcessId] = []

    def find(seconds: str) -> ProcessId:
        def look() -> list[ProcessId]:
            pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]
            return [
                process
                for pid in pids
                if read_proc(pid, "cmdline") == f"sleep\0{seconds}\0".encode() and (process := identify(pid))
            ]

        found.extend(eventually(look, what=f"sleep {seconds}"))
        (process,) = found
        return process

    yield find
    for each in found:
        signal_one(each, signal.SIGKILL)


def press(run: World) -> None:
    """Ctrl-C, and wait until `run` has answered it or is over."""
    assert run.process is not None
    lines = len(said(run))
    if run.process.poll() is None:
        run.interrupt()
        eventually(lambda: len(said(run)) > lines or (run.process and run.process.poll() is not None), what="an answer")


@pytest.mark.parametrize("program", [ELSEWHERE, OWN_PIDS])
@pytest.mark.parametrize("launcher", ["sh -c '{}; touch went-on'", "{}"])
def test_a_job_that_is_not_all_ours_is_not_stopped(
    run: World, asleep: Callable[[str], ProcessId], program: str, launcher: str
) -> None:
    """A part of the job runs as another user, or has pids of its own: the order is refused, the job is left as it was.

    Ctrl-C ends what is ours, names what lives on, and never says that it has stopped.
    """
    seconds = f"{4000 + os.getpid() % 1000}.{len(program) + len(launcher)}"
    run.start(shlex.split(launcher.format(f"{program} sleep {seconds}")))
    stranger = asleep(seconds)
    ours = run.members()

    run.issue("o-1", "stop", save_first=False, lose_unsaved=True)
    refused = run.service.until(lambda: run.service.reported("o-1").get("refused"), 20, "refused")
    left_as_it_was = (run.members(), alive(stranger))
    for _ in range(3):  # unshare is deaf to TERM
        press(run)
    eventually(lambda: any("not stopped" in line for line in said(run)), what="not stopped")
    lives_on = alive(stranger)
    signal_one(stranger, signal.SIGKILL)

    assert (refused["reason"], left_as_it_was, lives_on) == ("still_alive", (ours, True), True)
    assert f"pid {stranger.pid} runs " in refused["detail"]["text"]
    assert any(f"not stopped: pid {stranger.pid} runs " in line for line in said(run))
    assert run.exit_code() == 130
    assert f"pid {stranger.pid} runs " in ended(run)["evidence"]
    assert not (run.folder / "went-on").exists()


def test_a_keeper_that_is_gone_is_told_with_the_stop(run: World, asleep: Callable[[str], ProcessId]) -> None:
    """What hid its marker and left the tree can't be seen then: the report says so."""
    seconds = f"{6000 + os.getpid() % 1000}"
    run.start(["bash", "-c", f"(setsid env -i sleep {seconds} &); exec sleep 600"])
    hidden = asleep(seconds)
    run.service.until(lambda: run.service.seen.registrations, what="registered")
    assert run.process is not None
    os.kill(run.process.pid, signal.SIGKILL)

    run.issue("o-1", "stop", save_first=False, lose_unsaved=True)
    stopped = run.service.until_report("o-1", "stopped")

    assert alive(hidden)
    assert stopped["detail"]["keeper_lost"] is True
    assert "could not be seen" in stopped["detail"]["text"]


def test_a_job_that_ends_after_its_keeper(run: World) -> None:
    """Nobody can reap it: the cause is unknown."""
    run.write_config(epochs=1)
    run.start()
    run.until_step(2)
    assert run.process is not None

    os.kill(run.process.pid, signal.SIGKILL)

    assert ended(run)["cause"] == "unknown"
