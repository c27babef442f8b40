"""`tunewarden watch`: a GUI runs untouched, its trainings become jobs. The GUI kills as real ones do."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.acceptance.agent_world import eventually
from tests.acceptance.keeper_run import Terminal
from tests.acceptance.watched_world import TRAINER, WatchedWorld, children, watched
from tunewarden.processes.identity import alive

# What tells that a script is one of sd-scripts', and isn't run.
SD_SCRIPTS = "if False:\n    from library import train_util\n    train_util.read_config_from_file(1, 2)\n"
STATE = ("optimizer.bin", "scheduler.bin", "random_states_0.pkl", "model.safetensors", "train_state.json")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[WatchedWorld]:
    with watched(tmp_path) as made:
        yield made
        assert made.service.seen.faults == []


def test_a_training_of_a_gui_is_saved_and_goes_on(world: WatchedWorld) -> None:
    """It becomes a job by itself; a save touches nothing else."""
    world.start_gui("--name", "cats", "--label", "owner=li")
    job_id = world.train()

    world.service.issue("o-1", "save", job_id=job_id)
    saved = world.service.until_report("o-1", "saved")

    step = world.read(job_id, "progress.json")["step"]
    eventually(lambda: world.read(job_id, "progress.json")["step"] > step + 5)
    registration = world.registration(job_id)
    assert registration is not None
    assert Path(saved["detail"]["path"]).exists()
    assert registration["name"] == f"cats-{job_id[:6]}"
    assert registration["labels"] == {"owner": "li"}
    assert registration["can"] == ["save", "stop"]
    assert world.gui()["status"] is None


def test_a_stop_ends_the_training_and_nothing_of_the_gui(world: WatchedWorld) -> None:
    """The training ends by itself with 0, its children go, and the GUI starts the next one as if nothing had been."""
    world.start_gui()
    job_id = world.train()
    gui, trainer = world.process_of(world.gui()["gui"]), world.process_of(world.gui()["trainer"])
    workers = children(trainer.pid)

    world.service.issue("o-1", "stop", job_id=job_id)
    world.service.until_report("o-1", "stopped")

    assert not any(alive(each) for each in (trainer, *workers))
    assert len(workers) == 1
    assert alive(gui)
    assert eventually(lambda: world.gui()["status"] is not None) and world.gui()["status"] == 0
    assert world.event(job_id)["cause"] == "policy_stop"
    assert world.train() != job_id


def test_a_stop_tells_how_the_training_goes_on(world: WatchedWorld) -> None:
    """The trainer's own flags, with its state: the person starts it, for the GUI has launched it."""
    script = f"{SD_SCRIPTS}import runpy\nrunpy.run_path({TRAINER[1]!r}, run_name='__main__')\n"
    (world.folder / "train_network.py").write_text(script)
    world.start_gui()
    job_id = world.launch([sys.executable, "train_network.py", "--output_dir", "out", "--max_train_steps", "2000"])

    world.service.issue("o-1", "stop", job_id=job_id)
    saved = world.service.until_report("o-1", "saved")["detail"]
    world.service.until_report("o-1", "stopped")

    registration = world.registration(job_id)
    assert registration is not None and registration["trainer"] == "sd-scripts"
    eventually(lambda: f"--resume={saved['path']} --initial_step={saved['step']}" in world.said(), what=world.said())


def test_a_stop_without_a_save_ends_only_the_announced_tree(world: WatchedWorld) -> None:
    """`stop --now` signals the trainer and its children by pidfd; the GUI sees its training die."""
    world.start_gui()
    job_id = world.train()
    gui, trainer = world.process_of(world.gui()["gui"]), world.process_of(world.gui()["trainer"])
    workers = children(trainer.pid)

    world.service.issue("o-1", "stop", job_id=job_id, save_first=False, lose_unsaved=True)
    stopped = world.service.until_report("o-1", "stopped")

    assert sorted(stopped["detail"]["pids"]) == sorted(each.pid for each in (trainer, *workers))
    assert not any(alive(each) for each in (trainer, *workers))
    assert alive(gui)


def test_an_adjusted_config_is_written_and_told_and_nothing_is_stopped(world: WatchedWorld) -> None:
    """A GUI's run can't be launched again by us: the person gets the file and the way."""
    config = world.folder / "lora.yaml"
    config.write_text("base_model: x\ntrain_data_dir: y\nlora_rank: 4\nbatch_size: 4\ngradient_accumulation_steps: 1\n")
    world.start_gui()
    job_id = world.train("--config", "lora.yaml")

    world.service.issue("o-1", "replace", job_id=job_id, knobs={"batch_size": "/2"})
    world.service.until(lambda: "refused" in world.service.reported("o-1"), what="refused")

    refused = world.service.reported("o-1")["refused"]
    written = world.folder / "lora.tunewarden-g2.yaml"
    assert refused["reason"] == "started_elsewhere"
    assert str(written) in refused["detail"]["text"]
    assert "batch_size: 2" in written.read_text()
    assert world.gui()["status"] is None
    assert f"tunewarden stop {world.folder.name}"[:20] in world.said()


def test_the_guis_stop_button_is_an_end_that_nobody_undoes(world: WatchedWorld) -> None:
    """SIGKILL of the trainer: the watch sees it by itself, tells it, and starts nothing."""
    world.start_gui()
    job_id = world.train()

    world.command("kill")
    event = world.event(job_id)

    assert event["cause"] == "killed"
    assert event["waits_s"] == 0.0
    assert event["exit_status"] is None
    assert eventually(lambda: world.gui()["status"] is not None) and world.gui()["status"] == -signal.SIGKILL


def test_a_training_that_ends_is_told_as_finished(world: WatchedWorld) -> None:
    """Its exit status is nobody's to reap for us: the trainer says it."""
    world.start_gui()
    job_id = world.train("--steps", "40")

    assert world.event(job_id)["cause"] == "finished"


def test_two_trainings_are_two_jobs(world: WatchedWorld) -> None:
    """Each has an agent; a stop of one leaves the other."""
    world.start_gui()
    first = world.train()
    trainer = world.process_of(world.gui()["trainer"])
    second = world.train()

    world.service.issue("o-1", "stop", job_id=second)
    # The stand-in gives every agent every order: the other one refuses it, so its own report decides here.
    eventually(lambda: world.read(second, "ended.json") or None)

    step = world.read(first, "progress.json")["step"]
    eventually(lambda: world.read(first, "progress.json")["step"] > step)
    assert alive(trainer)


def test_watch_ends_with_the_guis_exit_code(world: WatchedWorld) -> None:
    """And its output went where it would have gone without us."""
    world.start_gui()
    world.command("quit 7")

    assert world.exit_code() == 7
    assert (world.folder / "stdout").read_text() == "the GUI listens\n"
    assert list((world.folder / "state" / "watch").iterdir()) == []


def test_a_gui_keeps_its_terminal(world: WatchedWorld) -> None:
    """It is a terminal to it, Ctrl-C reaches it as without us, and the watch ends with its code."""
    terminal = Terminal()
    said = "import sys, time; print('a terminal:', sys.stdout.isatty(), sys.stdin.isatty(), flush=True); time.sleep(60)"
    world.start("watch", "--", sys.executable, "-c", said, terminal=terminal)

    terminal.shows(b"a terminal: True True", within_s=20)
    terminal.type(b"\x03")

    assert world.exit_code() == 128 + signal.SIGINT
    assert b"KeyboardInterrupt" in terminal.shows(b"KeyboardInterrupt")
    terminal.close()


def test_a_training_that_outlives_its_gui_is_still_watched(world: WatchedWorld) -> None:
    """The watch waits for it, and says so."""
    world.start_gui()
    job_id = world.train()
    world.command("quit 0")
    eventually(lambda: "trains on: watching" in world.said())

    world.service.issue("o-1", "stop", job_id=job_id)
    world.service.until_report("o-1", "stopped")

    assert world.exit_code() == 0


def test_a_kernel_is_never_signalled(world: WatchedWorld) -> None:
    """What trains in a cell ends its cell; the process lives on, and a stop without a save is refused."""
    world.start_gui()
    job_id = world.train("--ends-with", "cell")
    kernel = world.process_of(world.gui()["trainer"])

    world.service.issue("o-1", "stop", job_id=job_id, save_first=False, lose_unsaved=True)
    world.service.until(lambda: "refused" in world.service.reported("o-1"), what="refused")
    world.service.issue("o-2", "stop", job_id=job_id)
    stopped = world.service.until_report("o-2", "stopped")

    assert world.service.reported("o-1")["refused"]["reason"] == "started_elsewhere"
    assert stopped["detail"]["pids"] == []
    assert world.event(job_id)["cause"] == "policy_stop"
    assert alive(kernel)


def test_training_goes_on_when_the_watcher_is_killed(world: WatchedWorld) -> None:
    """The agent still saves and stops it."""
    world.start_gui()
    job_id = world.train()
    trainer = world.process_of(world.gui()["trainer"])
    assert world.process is not None

    os.kill(world.process.pid, signal.SIGKILL)
    world.process.wait(5)
    world.service.issue("o-1", "stop", job_id=job_id)
    world.service.until_report("o-1", "stopped")

    assert not alive(trainer)


def test_a_gui_that_is_started_elsewhere_needs_two_lines(world: WatchedWorld) -> None:
    """`tunewarden watch` alone prints them; what is started with them becomes a job."""
    world.start("watch")
    printed = eventually(lambda: [line for line in (world.folder / "stdout").read_text().splitlines() if "=" in line])
    script = "\n".join([*printed, f"exec {' '.join(TRAINER)}"])
    before = set(world.runs())

    world.beside(["bash", "-c", script])
    job_id = world.new_job(before)
    world.service.issue("o-1", "stop", job_id=job_id)
    world.service.until_report("o-1", "stopped")
    assert world.process is not None
    os.kill(world.process.pid, signal.SIGINT)

    assert world.exit_code() == 130


def test_what_did_not_ask_to_be_watched_is_passed_over(world: WatchedWorld) -> None:
    """An announcement that names a process whose environment does not name this watch."""
    world.start_gui()
    watch_dir = next((world.folder / "state" / "watch").iterdir())
    victim = world.beside(["sleep", "300"])
    ticks = world.process_of(victim.pid).start_ticks
    (watch_dir / ".a").write_text(
        f'{{"protocol": 1, "pid": {victim.pid}, "start_ticks": {ticks}, "job": "0123456789ab", "ends_with": "process"}}'
    )

    (watch_dir / ".a").rename(watch_dir / "announce.1.json")

    eventually(lambda: "passed over" in world.said())
    assert world.runs() == []
    assert victim.poll() is None


def test_a_command_that_is_not_there(world: WatchedWorld) -> None:
    """127, as `run` and a shell."""
    world.start("watch", "--", "no-such-gui")

    assert world.exit_code() == 127


@pytest.mark.parametrize("pid", [1, 2**22 - 1])
def test_not_every_process_can_be_adopted(world: WatchedWorld, pid: int) -> None:
    """Only a living one of our own: exit 2, with why."""
    world.start("adopt", str(pid))

    assert world.exit_code() == 2
    assert f"pid {pid} can't be adopted" in world.said()


def test_adopting_says_what_is_on_disk(world: WatchedWorld) -> None:
    """A complete state that the training has made since its start is what a stop would go back to; a half one isn't."""
    (world.folder / "train_network.py").write_text(f"{SD_SCRIPTS}import time\ntime.sleep(300)\n")
    process = world.beside([sys.executable, "train_network.py", "--output_dir", "out"])
    started = time.time()
    eventually(
        lambda: time.time() > started + 1.0
    )  # the kernel tells a start in clock ticks since the boot: give or take
    for name, files in (("last-000002-state", STATE), ("last-000004-state", STATE[:2])):
        (world.folder / "out" / name).mkdir(parents=True)
        for file in files:
            (world.folder / "out" / name / file).write_text('{"current_epoch": 2, "current_step": 20}')
    world.start("adopt", str(process.pid))

    said = eventually(lambda: (world.folder / "stdout").read_text(), what=world.said())
    assert "would lose what it did in the last" in said
    assert said.rstrip().endswith("last-000002-state.")


def test_an_adopted_run_is_watched_and_left_alone(world: WatchedWorld) -> None:
    """It is told about until its end; save, stop and replace are refused; what a stop would lose is said."""
    process = world.beside([sys.executable, "-c", "import time; time.sleep(300)"])
    before = set(world.runs())
    world.start("adopt", str(process.pid), "--name", "old")
    job_id = eventually(lambda: set(world.runs()) - before).pop().name
    eventually(lambda: world.registration(job_id), what=world.said())

    for order_id, kind in (("o-1", "save"), ("o-2", "stop"), ("o-3", "replace")):
        world.service.issue(order_id, kind, job_id=job_id, save_first=False, lose_unsaved=True)
        world.service.until(lambda order_id=order_id: "refused" in world.service.reported(order_id), what=order_id)

    reasons = {world.service.reported(order_id)["refused"]["reason"] for order_id in ("o-1", "o-2", "o-3")}
    assert reasons == {"started_elsewhere"}
    assert "would lose everything since its start" in (world.folder / "stdout").read_text()
    assert process.poll() is None
    process.kill()
    assert world.event(job_id)["cause"] == "unknown"
    assert world.exit_code() == 0
