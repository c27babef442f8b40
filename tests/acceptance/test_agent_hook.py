"""Jobs with the training hook in them: what it is told before a launch, and what is done with what it says."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.agent_world import World, eventually, world
from tests.acceptance.test_agent_refusals import assert_trains_on, refused
from tunewarden.shipped import hook_dir

HOOKED = Path(__file__).with_name("hooked_trainer.py")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[World]:
    with world(tmp_path) as made:
        shutil.copy(HOOKED, tmp_path / "train.py")
        yield made
        assert made.service.seen.faults == []


def start(run: World, mode: str = "good", *, python: tuple[str, ...] = (), **more: Any) -> None:
    env = {"MODE": mode, **more.pop("env", {})}
    run.start([sys.executable, *python, "train.py", "--config", "lora.yaml"], hook=True, env=env, **more)


def replace(run: World, order_id: str = "o-1", **more: Any) -> dict[str, dict[str, Any]]:
    """Order a replacement and wait until it is launched; what was reported."""
    run.issue(order_id, "replace", **{"knobs": {"batch_size": "/2"}, **more})
    run.service.until_report(order_id, "launched")
    return run.service.reported(order_id)


def replace_dead(run: World, **more: Any) -> None:
    run.service.wait = True
    run.service.until(lambda: run.service.seen.events, what="the end")
    run.issue("o-1", "replace", knobs={"batch_size": "/2"}, after_oom=True, **more)


def environment(run: World, generation: int) -> dict[str, str]:
    path = run.folder / f"env-g{generation}.json"
    return dict(json.loads(eventually(lambda: path.exists() and path.read_text("utf-8"))))


def test_the_hook_is_told_before_each_launch(run: World) -> None:
    """hook.json is there when the trainer starts: base_step is 0, then the step that was saved."""
    start(run)
    run.until_step(4)
    first = run.read("hook.json")
    saved = replace(run)["saved"]["detail"]
    run.until_step(saved["step"] + 2, 2)

    assert (first["protocol"], first["base_step"], first["resume_by"]) == (1, 0, "hook")
    assert run.read("hook.json", 2) == {**first, "base_step": saved["step"], "total_steps": 200, "stop_at_total": True}
    assert run.read("resumed.json", 2)["step"] == saved["step"]
    assert saved["peak_bytes"] == 4096
    assert environment(run, 2)["PYTHONPATH"].split(":")[0] == str(hook_dir())


def test_without_the_hook_nothing_is_written_for_it(run: World) -> None:
    """--no-hook: no hook.json, and PYTHONPATH is what it was."""
    run.start([sys.executable, "train.py", "--config", "lora.yaml"], env={"PYTHONPATH": "/nowhere"})
    run.until_step(2)

    assert run.read("hook.json") == {}
    assert environment(run, 1)["PYTHONPATH"] == "/nowhere"


def test_the_service_hears_who_speaks_and_what_can_be_changed(run: World) -> None:
    """Registered again once the hook has said hello: its framework, the knobs, and those that an order may change."""
    start(run)
    run.until_step(2)
    replace(run)

    def registered() -> list[dict[str, Any]]:
        return [each for each in run.service.seen.registrations if each["generation"] == 2 and each["by"]]

    told = run.service.until(registered, what="the hook's hello")[0]

    assert (told["by"], told["framework"], told["no_hook"]) == ("hook", "accelerate", None)
    assert told["knobs"]["batch_size"] == "2" and told["knobs"]["gradient_accumulation"] == "2"
    assert told["knobs"]["expandable_segments"] == "false"
    assert {"batch_size", "gradient_accumulation", "expandable_segments"} <= set(told["changeable"])
    assert told["config_name"] == "lora.tunewarden-g2.yaml"


def test_each_generations_steps_are_kept_in_the_journal(run: World) -> None:
    """The count goes on over generations; the job may change its control directory, not this."""
    start(run)
    run.until_step(4)
    saved = replace(run)["saved"]["detail"]["step"]
    run.until_step(saved + 3, 2)
    run.issue("o-2", "stop", generation=2)
    run.exit_code()
    counted = [line["detail"] for line in run.journal() if line["phase"] == "counted"]

    assert [(each["generation"], each["resume_step"], each["total"]) for each in counted] == [
        (1, None, 200),
        (2, saved, 200),
    ]
    assert counted[0]["step"] == counted[0]["steps_made"] >= saved
    assert counted[1]["step"] == saved + counted[1]["steps_made"]


@pytest.mark.parametrize("kind", ["save", "replace"])
def test_out_of_memory_while_saving_is_told_and_the_job_trains_on(run: World, kind: str) -> None:
    """Saving is when a full card fails: nothing is stopped, and the reason says which memory was short."""
    start(run, "oom_save")
    run.until_step(2)
    run.issue("o-1", kind, knobs={"batch_size": "/2"} if kind == "replace" else {})

    assert refused(run) == "save_failed"
    assert "no memory left for the save" in run.service.reported("o-1")["refused"]["detail"]["text"]
    assert_trains_on(run)
    assert list(run.folder.glob("*.tunewarden-*")) == []


def test_a_request_while_the_trainer_samples_is_withdrawn(run: World) -> None:
    """No optimizer step ends while it samples: the request is taken back in time, and the report says what it does."""
    start(run, "sampling", grace_s=1.5)
    eventually(lambda: run.read("progress.json").get("phase") == "sample")
    run.issue("o-1", "replace", knobs={"batch_size": "/2"})

    assert refused(run) == "no_step_boundary"
    assert "sample" in run.service.reported("o-1")["refused"]["detail"]["text"]
    assert run.read("stop.withdrawn")["request_id"] == "r-o-1"
    assert run.process is not None and run.process.poll() is None


@pytest.mark.parametrize(("mode", "step"), [("dies", 12), ("dies_inside", 10), ("dies_dry", 10), ("half", 5)])
def test_a_death_of_out_of_memory_is_resumed_from_the_newest_good_state(run: World, mode: str, step: int) -> None:
    """What was saved after the error counts when it is consistent; else the newest complete one, never half of one."""
    start(run, mode)
    if mode == "half":
        journal = run.run_dir / "journal.jsonl"
        eventually(lambda: journal.exists() and b'"phase": "state"' in journal.read_bytes(), 30.0, "the first state")
        (run.folder / "go-on").touch()
    replace_dead(run)
    launched = run.service.until_report("o-1", "launched")["detail"]

    assert (launched["resume_step"], Path(launched["resume_path"]).name) == (step, f"step-{step:08d}")
    run.until_step(step + 1, 2)
    assert run.read("resumed.json", 2)["step"] == step


def test_a_state_of_another_rank_count_is_not_resumed_from(run: World) -> None:
    """Two ranks wrote it, one would read it: refused before anything is launched, naming both numbers."""
    start(run, "ranks")
    replace_dead(run)

    assert refused(run) == "cannot_resume"
    assert "2 ranks" in run.service.reported("o-1")["refused"]["detail"]["text"]
    assert list(run.folder.glob("*.tunewarden-*")) == []


def test_a_renamed_script_is_seen_before_the_stop(run: World) -> None:
    """What can't be started again is not stopped."""
    start(run)
    run.until_step(2)
    (run.folder / "train.py").rename(run.folder / "train_v2.py")
    run.issue("o-1", "replace", knobs={"batch_size": "/2"})

    assert refused(run) == "script_not_found"
    assert_trains_on(run)


def test_an_output_folder_that_can_not_be_written(run: World) -> None:
    """Asked before the save, which would fail there."""
    start(run, "proc")
    run.until_step(2)
    run.issue("o-1", "save")

    assert refused(run) == "output_not_writable"
    assert_trains_on(run)


@pytest.mark.parametrize(
    ("python", "hook", "says"), [(("-I",), True, "python -I ignores PYTHONPATH"), ((), False, "--no-hook")]
)
def test_a_job_without_the_hook_is_left_alone_and_told_why(
    run: World, python: tuple[str, ...], hook: bool, says: str
) -> None:
    """No hello.json: the reason names what kept the hook out, in the registration and in the refusal."""
    (run.folder / "silent.py").write_text("import time\ntime.sleep(60)\n", encoding="utf-8")
    run.start([sys.executable, *python, "silent.py"], hook=hook)
    told = run.service.until(lambda: run.service.seen.registrations)[0]
    run.issue("o-1", "save")

    assert refused(run) == "no_save_channel"
    assert says in run.service.reported("o-1")["refused"]["detail"]["text"]
    assert says in told["no_hook"]


def test_expandable_segments_are_put_into_the_environment(run: World) -> None:
    """Into what the person has set, for the next generation, and the one after it keeps them."""
    own = {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"}
    start(run, env=own)
    run.until_step(2)
    changes = replace(run, knobs={"expandable_segments": "true"})["planned"]["detail"]["changes"]
    run.until_step(run.read("hook.json", 2)["base_step"] + 2, 2)
    replace(run, "o-2", generation=2)
    run.until_step(run.read("hook.json", 3)["base_step"] + 1, 3)
    found = [environment(run, number)["PYTORCH_CUDA_ALLOC_CONF"] for number in (1, 2, 3)]

    assert [(each["knob"], each["from"], each["to"]) for each in changes] == [("expandable_segments", "false", "true")]
    assert found == [own["PYTORCH_CUDA_ALLOC_CONF"], *["max_split_size_mb:128,expandable_segments:True"] * 2]
    assert list(run.folder.glob("*.tunewarden-g2.*")) == []  # the first order changed no file


def sd_scripts(run: World) -> None:
    """A job of kohya's sd-scripts, as far as its words and files go: the batch size stands in the dataset's file."""
    script = (run.folder / "train.py").read_text("utf-8").replace("import torch ", "import library ")
    marks = "def read_config(args, parser):\n    from library.train_util import read_config_from_file\n\n"
    marks += "    return read_config_from_file(args, parser)\n\n\n"
    (run.folder / "train_network.py").write_text(script.replace("def options()", marks + "def options()"), "utf-8")
    config = '# my cat\noutput_dir = "models"\noutput_name = "cat"\nmax_train_steps = 200\n'
    config += 'dataset_config = "cat_data.toml"\ngradient_accumulation_steps = 1  # one\n'
    (run.folder / "cat.toml").write_text(config, encoding="utf-8")
    data = '[general]\nresolution = 512\n\n[[datasets]]\nbatch_size = 4\n\n[[datasets.subsets]]\nimage_dir = "cats"\n'
    (run.folder / "cat_data.toml").write_text(data, encoding="utf-8")
    run.start([sys.executable, "train_network.py", "--config_file", "cat.toml"], hook=True)
    run.until_step(3)


def test_a_trainer_that_resumes_by_itself_gets_its_own_words(run: World) -> None:
    """sd-scripts: two files are copied, the one names the other, and the command says where to go on from."""
    sd_scripts(run)
    report = replace(run)
    saved, planned = report["saved"]["detail"], report["planned"]["detail"]
    run.until_step(saved["step"] + 1, 2)
    words = json.loads((run.folder / "argv-g2.json").read_text("utf-8"))[1:]
    hook = run.read("hook.json", 2)

    assert Path(saved["path"]) == run.folder / "models" / f"cat-tunewarden-step{saved['step']:08d}"
    assert words[:2] == ["--config_file", "cat.tunewarden-g2.toml"]
    assert {f"--resume={saved['path']}", f"--initial_step={saved['step']}", "--output_name=cat-r2"} <= set(words)
    assert 'dataset_config = "cat_data.tunewarden-g2.toml"' in (run.folder / "cat.tunewarden-g2.toml").read_text(
        "utf-8"
    )
    assert "batch_size = 2" in (run.folder / "cat_data.tunewarden-g2.toml").read_text("utf-8")
    assert [Path(each["new_config_path"]).name for each in planned["copies"]] == [
        "cat_data.tunewarden-g2.toml",
        "cat.tunewarden-g2.toml",
    ]
    assert (hook["resume_by"], hook["base_step"], hook["total_steps"]) == ("trainer", saved["step"], 200)


def test_no_copy_of_several_is_left_of_a_plan_that_came_to_nothing(run: World) -> None:
    """The service takes the order back: both files go."""
    run.service.go = lambda _report: False
    sd_scripts(run)
    run.issue("o-1", "replace", knobs={"batch_size": "/2"})

    assert refused(run) == "withdrawn"
    assert list(run.folder.glob("*.tunewarden-*")) == []


def test_a_job_of_flags_alone_is_started_with_others(run: World) -> None:
    """Nothing is written: the next generation's words are changed, each in its own spelling."""
    words = ["--batch_size", "4", "--gradient_accumulation_steps=1", "--max_train_steps", "200"]
    run.start([sys.executable, "train.py", *words], hook=True)
    run.until_step(2)
    report = replace(run)
    run.until_step(run.read("hook.json", 2)["base_step"] + 1, 2)

    assert json.loads((run.folder / "argv-g2.json").read_text("utf-8"))[1:] == [
        *["--batch_size", "2", "--gradient_accumulation_steps=2", "--max_train_steps", "200"]
    ]
    assert report["planned"]["detail"]["effective_batch"] == {"from": 4, "to": 4}
    assert run.read("hook.json")["total_steps"] == 200
    assert list(run.folder.rglob("*.tunewarden-*")) == []


def test_a_restart_that_trains_nothing_is_no_success(run: World) -> None:
    """It ends at once with 0 and without a step, although steps are left: told as such, and `run` ends with 1."""
    run.service.wait = False
    start(run, "idle")
    run.until_step(4)
    replace(run)
    ended = run.service.until(lambda: [each for each in run.service.seen.events if each["generation"] == 2])[0]

    assert (ended["cause"], ended["exit_status"]) == ("finished_without_steps", 0)
    assert run.exit_code() == 1
