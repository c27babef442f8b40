"""The example trainer, run as a user runs it: real processes, a real control directory, killed for real."""

import ast
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tunewarden.trainers.beside import write_beside
from tunewarden.trainers.table import recognise

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
DEADLINE_S = 30.0


class Run:
    """Runs train.py on a config in a folder of its own; each launch is a generation with its own control directory."""

    def __init__(self, folder: Path, **keys: object) -> None:
        self.folder = folder
        self.generation = 0
        self.processes: list[subprocess.Popen[str]] = []
        self.config = folder / "my_style_lora.yaml"
        keys = {"output_dir": "./out/cat", "step_seconds": 0, "activation_mb_per_sample": 0, **keys}
        lines = (EXAMPLES / "my_style_lora.yaml").read_text(encoding="utf-8").splitlines()
        self.config.write_text(
            "\n".join(replaced(line, keys) for line in lines) + "\n",
            encoding="utf-8",
        )

    @property
    def argv(self) -> list[str]:
        return [sys.executable, str(EXAMPLES / "train.py"), "--config", str(self.config)]

    @property
    def control(self) -> Path:
        return self.folder / f"g{self.generation}"

    def start(self, *, resume: dict[str, Any] | None = None) -> subprocess.Popen[str]:
        self.generation += 1
        self.control.mkdir(mode=0o700)
        if resume is not None:
            wanted = {"protocol": 1, "step": resume["step"], "path": resume["path"], "from_generation": 1}
            (self.control / "resume.json").write_text(json.dumps(wanted), encoding="utf-8")
        environment = {**os.environ, "TUNEWARDEN_CONTROL_DIR": str(self.control)}
        with open(self.folder / f"log-{self.generation}", "w", encoding="utf-8") as log:
            process = subprocess.Popen(
                self.argv, cwd=self.folder, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True
            )
        self.processes.append(process)
        return process

    def finish(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        assert process.wait(DEADLINE_S) == 0, self.log
        result: dict[str, Any] = json.loads((self.folder / "out/cat/cat.json").read_text(encoding="utf-8"))
        return result

    @property
    def log(self) -> str:
        return (self.folder / f"log-{self.generation}").read_text(encoding="utf-8")

    def read(self, name: str) -> dict[str, Any] | None:
        try:
            content: dict[str, Any] = json.loads((self.control / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        return content

    def until(self, name: str, fits: Callable[[dict[str, Any]], bool] = lambda _: True) -> dict[str, Any]:
        """The content of a control file as soon as it is there and fits."""

        def look() -> dict[str, Any] | None:
            content = self.read(name)
            return content if content is not None and fits(content) else None

        return eventually(look, f"{name} in {self.control}")

    def request(self, mode: str, request_id: str = "r-1") -> None:
        draft = self.control / "stop.draft"
        draft.write_text(json.dumps({"request_id": request_id, "mode": mode}), encoding="utf-8")
        draft.rename(self.control / "stop")


def replaced(line: str, keys: dict[str, object]) -> str:
    key = line.partition(":")[0]
    return f"{key}: {json.dumps(keys[key])}" if key in keys else line


def eventually(look: Callable[[], Any], what: str) -> Any:
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        found = look()
        if found is not None:
            return found
        time.sleep(0.01)
    raise AssertionError(f"not seen within {DEADLINE_S:.0f} s: {what}")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Run]]:
    """Makes runs; what is still alive at the end is killed."""
    runs: list[Run] = []

    def build(name: str = "run", **keys: object) -> Run:
        folder = tmp_path / name
        folder.mkdir()
        runs.append(Run(folder, **keys))
        return runs[-1]

    yield build
    for run in runs:
        for process in run.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def rss_mb(process: subprocess.Popen[str]) -> float:
    return float(psutil.Process(process.pid).memory_info().rss) / 2**20


def at_step(count: int) -> Callable[[dict[str, Any]], bool]:
    return lambda progress: progress["step"] >= count


def test_the_articles_config_trains_to_its_planned_end(make: Callable[..., Run]) -> None:
    """10 epochs of 400 samples in batches of 4 are 1000 steps; the loss falls a hundredfold; a state each 100 steps."""
    run = make()

    result = run.finish(run.start())

    assert (result["steps"], result["samples"]) == (1000, 4000)
    assert result["loss"] < 0.05
    assert len(list((run.folder / "out/cat").glob("state-*.json"))) == 10
    progress = run.read("progress.json")
    assert progress is not None
    assert (progress["step"], progress["total_steps"], progress["step_seconds_count"]) == (1000, 1000, 1000)
    assert progress["last_state"]["step"] == 1000
    assert run.read("hello.json") == {"protocol": 1, "can": ["save", "stop", "resume"], "pid": run.processes[0].pid}
    assert run.read("pid.0.json") == {
        "pid": run.processes[0].pid,
        "rank": 0,
        "world_size": 1,
        "local_world_size": 1,
    }


def test_half_the_batch_after_a_stop_ends_with_the_same_loss(make: Callable[..., Run]) -> None:
    """Saved and stopped in the middle, adjusted 4×1 → 2×2, resumed: loss and total as if never stopped."""
    whole = make("whole", train_samples=80)
    expected = whole.finish(whole.start())
    run = make("stopped", train_samples=80, step_seconds=0.01)
    first = run.start()
    run.until("progress.json", at_step(20))

    run.request("save_and_stop")
    receipt = run.until("receipt.json")
    first.kill()
    first.wait()
    recipe = recognise(run.argv, run.folder)
    assert recipe is not None
    plan = recipe.plan({"batch_size": "/2"}, allow_effective_batch_change=False)
    run.config = write_beside(plan.copies[0], 2)
    result = run.finish(run.start(resume=receipt))

    assert (receipt["ok"], receipt["request_id"]) == (True, "r-1")
    assert 20 <= receipt["step"] < 200
    assert run.read("resumed.json") == {"step": receipt["step"], "path": receipt["path"]}
    assert (result["steps"], result["samples"]) == (expected["steps"], expected["samples"]) == (200, 800)
    assert result["loss"] == pytest.approx(expected["loss"], rel=1e-9)
    assert b"batch_size: 2" in run.config.read_bytes()


def test_killed_without_a_save_it_loses_steps(make: Callable[..., Run]) -> None:
    """SIGKILL between two states: the steps since the older state are lost and must be done again."""
    run = make(step_seconds=0.03, save_steps=25, train_samples=20)
    first = run.start()

    reached = run.until("progress.json", at_step(30))
    first.send_signal(signal.SIGKILL)
    first.wait()
    states = [path.name for path in (run.folder / "out/cat").iterdir()]
    result = run.finish(run.start(resume=reached["last_state"]))

    assert states == ["state-000025.json"]
    assert reached["last_state"]["step"] == 25
    assert result["steps"] == 50
    progress = run.read("progress.json")
    assert progress is not None
    assert progress["step_seconds_count"] == 25


def test_after_a_save_it_trains_on(make: Callable[..., Run]) -> None:
    """A save request gets a receipt with a whole state, and training goes on to the end; a second one gets its own."""
    run = make(step_seconds=0.005, train_samples=120)
    process = run.start()
    run.until("progress.json", at_step(5))

    run.request("save", "r-1")
    first = run.until("receipt.json")
    run.until("progress.json", at_step(first["step"] + 1))
    run.request("save", "r-2")
    second = run.until("receipt.json", lambda receipt: receipt["request_id"] == "r-2")
    result = run.finish(process)

    assert second["step"] > first["step"]
    for receipt in (first, second):
        state = json.loads(Path(receipt["path"]).read_text(encoding="utf-8"))
        assert state["step"] == receipt["step"]
    assert not (run.control / "stop").exists()
    assert json.loads((run.control / "stop.taken").read_text(encoding="utf-8"))["request_id"] == "r-2"
    assert result["steps"] == 300


def test_after_save_and_stop_it_parks(make: Callable[..., Run]) -> None:
    """It is alive but makes no further step, and it writes no final model."""
    run = make(step_seconds=0.002)
    process = run.start()
    run.until("progress.json", at_step(5))

    run.request("save_and_stop")
    receipt = run.until("receipt.json")
    cpu = sum(psutil.Process(process.pid).cpu_times()[:2])
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)

    progress = run.read("progress.json")
    assert progress is not None
    assert progress["step"] == receipt["step"]
    assert sum(psutil.Process(process.pid).cpu_times()[:2]) - cpu < 0.5
    assert not (run.folder / "out/cat/cat.json").exists()


def test_a_withdrawn_request_is_not_obeyed(make: Callable[..., Run]) -> None:
    """When the request was renamed away before it was taken, the trainer goes on and writes no receipt."""
    run = make(step_seconds=0.02, train_samples=40)
    process = run.start()
    run.until("hello.json")

    (run.control / "stop.withdrawn").write_text('{"request_id": "r-1", "mode": "save_and_stop"}', encoding="utf-8")
    run.finish(process)

    assert run.read("receipt.json") is None


def test_the_receipt_comes_only_when_the_state_is_whole(make: Callable[..., Run]) -> None:
    """While a slow save is under way there is a growing .partial file, the phase is checkpoint, and no receipt."""
    run = make(step_seconds=0.6, save_seconds=2)
    process = run.start()
    run.until("progress.json", at_step(1))

    run.request("save")
    run.until("progress.json", lambda progress: progress["phase"] == "checkpoint")
    partial = eventually(lambda: next((run.folder / "out/cat").glob("*.partial"), None), "a partial state")
    early = run.read("receipt.json")
    receipt = run.until("receipt.json")

    assert early is None
    assert not partial.exists()
    assert receipt["path"] == str(partial).removesuffix(".partial")
    assert receipt["seconds"] >= 1.5
    assert process.poll() is None


def test_a_save_that_fails_says_so_and_trains_on(make: Callable[..., Run]) -> None:
    """Where no state can be written the receipt says ok: false and why, and no step is lost."""
    run = make(step_seconds=0.02, save_steps=100000)
    (run.folder / "out").mkdir()
    (run.folder / "out/cat").write_text("a file where the folder should be", encoding="utf-8")
    process = run.start()
    run.until("progress.json", at_step(1))

    run.request("save_and_stop")
    receipt = run.until("receipt.json")
    later = run.until("progress.json", at_step(run.read("progress.json")["step"] + 1))  # type: ignore[index]

    assert (receipt["ok"], receipt["request_id"]) == (False, "r-1")
    assert receipt["error"]
    assert later["phase"] == "train"
    assert process.poll() is None


def test_the_creep_grows_with_the_batch(make: Callable[..., Run]) -> None:
    """Memory grows step by step, half as fast with half the batch, and what the batch itself holds is halved too."""
    grown, held = {}, {}
    for batch, accumulation in ((4, 1), (2, 2)):
        run = make(
            f"batch-{batch}",
            batch_size=batch,
            gradient_accumulation_steps=accumulation,
            activation_mb_per_sample=8,
            leak_mb_per_step=0.5,
            train_samples=40,
            step_seconds=0.02,
        )
        process = run.start()
        run.until("progress.json", at_step(1))
        start = rss_mb(process)
        first = run.read("progress.json")
        assert first is not None
        last = run.until("progress.json", at_step(first["step"] + 50))
        grown[batch] = (rss_mb(process) - start) / (last["step"] - first["step"])
        held[batch] = start

    assert grown[4] == pytest.approx(2.0, rel=0.35)
    assert grown[2] == pytest.approx(grown[4] / 2, rel=0.35)
    assert held[4] - held[2] > 12


def test_out_of_memory_dies_as_torch_does(make: Callable[..., Run]) -> None:
    """Over the simulated card's limit it dies with torch's words, exit code 1, a crash.json, and without a save."""
    run = make(activation_mb_per_sample=8, leak_mb_per_step=0.25, oom_at_mb=64, step_seconds=0.001)

    process = run.start()

    assert process.wait(DEADLINE_S) == 1
    last_line = run.log.splitlines()[-1]
    assert last_line.startswith("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 MiB. GPU 0 has a ")
    assert "Traceback (most recent call last):" in run.log
    assert run.read("crash.json") == {"error": last_line, "step": 32, "phase": "train"}
    assert list(run.folder.glob("out/**/*.json")) == []


def test_half_the_batch_survives_where_the_whole_one_died(make: Callable[..., Run]) -> None:
    """The same card and the same training: 4×1 dies of memory, 2×2 reaches the end."""
    keys = {"activation_mb_per_sample": 8, "leak_mb_per_step": 0.1, "oom_at_mb": 48, "train_samples": 40}
    whole, half = make("whole", **keys), make("half", batch_size=2, gradient_accumulation_steps=2, **keys)

    died, lived = whole.start(), half.start()

    assert died.wait(DEADLINE_S) == 1
    assert half.finish(lived)["steps"] == 100


def test_a_sleeping_loader_shows_as_data_wait(make: Callable[..., Run]) -> None:
    """Time spent waiting for samples is counted apart and is part of the step."""
    run = make(loader_sleep=0.02, train_samples=8, epochs=10)

    run.finish(run.start())

    progress = run.read("progress.json")
    assert progress is not None
    assert 0.02 * 20 <= progress["data_wait_seconds_sum"] <= progress["step_seconds_sum"]
    assert progress["data_wait_seconds_sum"] > 0.8 * progress["step_seconds_sum"]


@pytest.mark.parametrize("key", ["no_control", "ignore_stop"])
def test_it_can_be_deaf(make: Callable[..., Run], key: str) -> None:
    """`no_control` writes nothing into the control directory; `ignore_stop` never takes a request."""
    run = make(step_seconds=0.02, train_samples=20, **{key: True})
    process = run.start()
    run.request("save_and_stop")

    result = run.finish(process)

    assert result["steps"] == 50
    assert (run.control / "stop").exists()
    assert (run.read("hello.json") is None) == (key == "no_control")
    assert run.read("receipt.json") is None


def test_progress_is_written_at_most_twice_a_second(make: Callable[..., Run]) -> None:
    """A fast loop doesn't hammer the disk: the file's versions are counted by inode and time."""
    run = make(step_seconds=0.002, train_samples=400, epochs=4, save_steps=100000)
    process = run.start()
    began = time.monotonic()
    versions = set()
    while process.poll() is None:
        with contextlib.suppress(FileNotFoundError):
            versions.add((run.control / "progress.json").stat().st_mtime_ns)
        time.sleep(0.002)
    seconds = time.monotonic() - began

    assert 2 <= len(versions) <= 2 * seconds + 3  # the first and the last are written at once


def test_a_control_file_is_renamed_into_place(make: Callable[..., Run]) -> None:
    """A reader that holds the old progress.json open still reads it whole while a newer one has taken its name."""
    run = make(step_seconds=0.02)
    run.start()
    first = run.until("progress.json")

    with open(run.control / "progress.json", encoding="utf-8") as held:
        held_step = json.load(held)["step"]
        run.until("progress.json", at_step(max(first["step"], held_step) + 1))
        held.seek(0)

        assert json.load(held)["step"] == held_step
        assert os.fstat(held.fileno()).st_nlink == 0


def test_a_control_directory_that_fails_does_not_end_the_training(make: Callable[..., Run]) -> None:
    """Training is worth more than talking about it: without a place to write, it trains to its end."""
    run = make(step_seconds=0.02, train_samples=30)
    process = run.start()
    run.until("progress.json", at_step(1))

    shutil.rmtree(run.control)

    assert run.finish(process)["steps"] == 75


def test_ctrl_c_ends_it_as_any_python(make: Callable[..., Run]) -> None:
    """SIGINT is not caught: nothing is saved and the exit status is the signal's."""
    run = make(step_seconds=0.01)
    process = run.start()
    run.until("progress.json", at_step(3))

    process.send_signal(signal.SIGINT)

    assert process.wait(DEADLINE_S) == -signal.SIGINT
    assert "KeyboardInterrupt" in run.log
    assert run.read("crash.json") is None


def test_it_trains_without_tunewarden(make: Callable[..., Run]) -> None:
    """Without TUNEWARDEN_CONTROL_DIR it is a plain script, and an isolated Python needs no package of ours."""
    run = make(train_samples=40)
    environment = {key: value for key, value in os.environ.items() if not key.startswith("TUNEWARDEN")}

    ended = subprocess.run(
        [sys.executable, "-I", "-S", *run.argv[1:]],
        cwd=run.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )

    assert ended.returncode == 0, ended.stderr
    assert "model saved" in ended.stdout
    assert "100%|##########| 100/100" in ended.stderr


@pytest.mark.parametrize("text", ["a: 1\n  b: 2\n", "- x\n", "batch_size 4\n"], ids=["nested", "list", "no colon"])
def test_a_config_that_it_can_not_read_is_named_with_its_line(tmp_path: Path, text: str) -> None:
    """The example's own reader says file and line, and ends with 1."""
    config = tmp_path / "c.yaml"
    config.write_text(text, encoding="utf-8")

    ended = subprocess.run(
        [sys.executable, str(EXAMPLES / "train.py"), "--config", str(config)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )

    assert ended.returncode == 1
    assert f"{config}:" in ended.stderr


def test_the_files_bom_crlf_and_quotes_are_read(make: Callable[..., Run]) -> None:
    """A config saved by a Windows editor trains as the plain one does."""
    run = make(train_samples=40)
    text = run.config.read_text(encoding="utf-8").replace("batch_size: 4 ", "'batch_size' : 4 ")
    run.config.write_bytes(("\ufeff" + text.replace("\n", "\r\n")).encode())

    assert run.finish(run.start())["steps"] == 100


def test_the_example_config_holds_the_articles_values() -> None:
    """Every key of the articles stands in the shipped file with the article's value, accumulation beside it."""
    knobs = recognise(["python", "train.py", "--config", "my_style_lora.yaml"], EXAMPLES)
    assert knobs is not None
    text = (EXAMPLES / "my_style_lora.yaml").read_text(encoding="utf-8")

    assert {name: knob.value for name, knob in knobs.read_knobs().items()} == {
        "network_dim": "8",
        "gradient_checkpointing": "true",
        "mixed_precision": "fp16",
        "batch_size": "4",
        "gradient_accumulation": "1",
    }
    for line in (
        'train_data_dir: "./data/style_train"',
        'metadata_path: "./data/style_train/metadata.csv"',
        'base_model: "./models/Stable-diffusion/v1-5-pruned.safetensors"',
        "epochs: 10",
        "learning_rate: 2e-4",
        'optimizer: "adamw_8bit"',
        'output_dir: "./output/my_style_lora"',
        "save_steps: 100",
        'logging_dir: "./output/my_style_lora/logs"',
    ):
        assert f"\n{line}\n" in text


def test_it_is_python_3_8() -> None:
    """No syntax newer than 3.8: the trainer's Python is the user's, not ours."""
    text = (EXAMPLES / "train.py").read_text(encoding="utf-8")

    assert ast.parse(text, feature_version=(3, 8)).body
