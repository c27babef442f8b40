"""Proves that an unmodified checkout of kohya-ss/sd-scripts can be saved, re-configured and resumed from outside.

    make prove-sd-scripts SD_SCRIPTS=DIR [SD_PYTHON=DIR/venv/bin/python] [OUT=DIR]

The checkout and its environment are the user's; nothing of them is changed. Its train_network.py runs by accelerate
launch, under the real `tunewarden run`, against a stand-in for the service. Two loader workers, batch 2 → 1,
accumulation 1 → 2, two restarts. What is believed is /proc, files, and what a fresh process of the trainer's
environment reads from the states. Takes some minutes on a CPU; README.md here says what the environment needs.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.acceptance.stand_in_service import TOKEN, StandIn
from tests.prove.sd_scripts.transcript import Transcript
from tunewarden.processes.ending import end_generation
from tunewarden.processes.tree import members

HERE = Path(__file__).resolve().parent
COMMAND = str(Path(sys.executable).parent / "tunewarden")
WITHIN_S = 600.0
EPOCH = 10  # optimizer steps: 20 images, batch 2
PLANNED = 50
CONFIG = """\
# The user's own file: it must stay as it is, and its copies keep this comment.
[model]
pretrained_model_name_or_path = "{bed}/model"
tokenizer_cache_dir = "{bed}/tokenizer"

[training]
train_data_dir = "{bed}/images"
output_dir = "{out}"
output_name = "cat"
resolution = "128,128"
network_module = "networks.lora"
network_dim = 4
network_alpha = 4
train_batch_size = 2   # fills the card
gradient_accumulation_steps = 1
{length}
learning_rate = 1e-3
lr_scheduler = "cosine"
max_data_loader_n_workers = 2
persistent_data_loader_workers = true
mixed_precision = "no"
cache_latents = true
save_state_on_train_end = true
seed = 1
"""
# Read by a fresh process of the trainer's own environment.
READ_STATE = """
import json, sys, torch
optimizer = torch.load(sys.argv[1] + "/optimizer.bin", map_location="cpu", weights_only=False)
scheduler = torch.load(sys.argv[1] + "/scheduler.bin", weights_only=False)
steps = {int(entry["step"]) for entry in optimizer["state"].values()}
print(json.dumps({"updates": sorted(steps), "last_epoch": scheduler["last_epoch"]}))
"""


class Proof:
    """One run of the trainer with all its generations. `length` is the line of the config that plans it."""

    def __init__(self, words: argparse.Namespace, folder: Path, length: str, page: Transcript) -> None:
        self.checkout, self.python, self.page = words.sd_scripts, words.python, page
        self.folder, self.bed = folder, words.out / "bed"
        folder.mkdir()
        self.config = folder / "cat.toml"
        self.config.write_text(CONFIG.format(bed=self.bed, out=folder / "out", length=length), encoding="utf-8")
        self.original = self.config.read_bytes()
        self.service = StandIn()
        self.service.start()
        self.process: subprocess.Popen[bytes] | None = None

    # What happens

    def start(self) -> None:
        (self.folder / "token").write_text(TOKEN + "\n", encoding="utf-8")
        accelerate = [str(self.python.parent / "accelerate"), "launch", "--num_processes=1", "--num_machines=1"]
        launch = [*accelerate, "--num_cpu_threads_per_process=1", "--mixed_precision=no", "--dynamo_backend=no"]
        command = [*launch, str(self.checkout / "train_network.py"), "--config_file", "cat.toml"]
        ours = {
            "TUNEWARDEN_URL": self.service.url,
            "TUNEWARDEN_STATE_DIR": str(self.folder / "state"),
            "TUNEWARDEN_AGENT_TOKEN_FILE": str(self.folder / "token"),
            "TUNEWARDEN_HEARTBEAT": "1s",
            "PYTHONPATH": str(HERE / "bed"),
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }
        self.page.block(f"$ tunewarden run --name cat -- {' '.join(command)}")
        with (self.folder / "printed").open("wb") as printed:
            self.process = subprocess.Popen(
                [COMMAND, "run", "--name", "cat", "--", *command],
                cwd=self.folder,
                env={**os.environ, **ours},
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
            )

    def replace(self, order_id: str, generation: int, knobs: dict[str, str]) -> dict[str, dict[str, Any]]:
        """Order it, and wait until the next generation is launched. Gives the reports by phase."""
        self.service.issue(
            order_id, "replace", job_id=self.job_id, generation=generation, knobs=knobs, expires_in_s=300.0
        )
        before = set(self.members())
        launched = ("launched", "refused", "superseded")
        self.until(lambda: set(launched) & set(self.service.reported(order_id)), f"the order {order_id}")
        reported = self.service.reported(order_id)
        self.page.check("the order is carried out", "launched" in reported, _answer(reported))
        if "launched" not in reported:
            raise SystemExit(1)
        self._check_stopped(reported, before)
        return reported

    def _check_stopped(self, reported: dict[str, dict[str, Any]], before: set[int]) -> None:
        saved, stopped = reported["saved"]["detail"], reported["stopped"]["detail"]
        self.page.say(f"saved at step {saved['step']} in {saved['seconds']:.2f} s: {saved['path']}")
        left = before & set(self.members())
        self.page.check("nothing of it is alive", not left, f"{len(before)} processes before, {len(left)} after")
        self.page.check("no step was lost", stopped["unsaved_steps"] == 0, stopped["unsaved_steps"])

    # What is there

    @property
    def run_dir(self) -> Path:
        return next((self.folder / "state" / "runs").iterdir())

    @property
    def job_id(self) -> str:
        return self.run_dir.name

    def read(self, name: str, generation: int) -> dict[str, Any]:
        file = self.run_dir / f"g{generation}" / name
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}

    def step(self, generation: int) -> int:
        return int(self.read("progress.json", generation).get("step", 0))

    def members(self) -> list[int]:
        return [member.id.pid for member in members((), self.job_id)]

    def printed(self) -> str:
        return (self.folder / "printed").read_text("utf-8", "replace")

    def state(self, path: str) -> dict[str, Any]:
        """What a fresh process finds in a state."""
        done = subprocess.run([self.python, "-c", READ_STATE, path], capture_output=True, text=True, check=True)
        own = json.loads((Path(path) / "train_state.json").read_text())
        return {**json.loads(done.stdout), "train_state": own}

    def until(self, done: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + WITHIN_S
        while not (found := done()):
            ended = self.process is not None and self.process.poll() is not None
            if ended or time.monotonic() > deadline:
                self.page.check(f"{what} within {WITHIN_S:.0f} s", False, "the run has ended" if ended else "no")
                self.page.block(self.printed()[-3000:])
                raise SystemExit(1)
            time.sleep(0.1)
        return found

    def close(self) -> None:
        self.service.stop()
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                end_generation(None, (), self.job_id)
                self.process.kill()


def _answer(reported: dict[str, dict[str, Any]]) -> str:
    phase, body = list(reported.items())[-1]
    return f"{phase} {body.get('reason') or ''} {body['detail'].get('text', '')}".strip()


def two_restarts(words: argparse.Namespace, page: Transcript) -> None:
    """batch 2 → 1 with accumulation 1 → 2, then once more as it is; planned by max_train_steps."""
    page.part(f"Two restarts, {PLANNED} optimizer steps planned (max_train_steps = {PLANNED}, {EPOCH} an epoch)")
    proof = Proof(words, words.out / "steps", f"max_train_steps = {PLANNED}", page)
    try:
        proof.start()
        proof.until(lambda: (proof.folder / "state" / "runs").is_dir() and proof.step(1) >= 13, "step 13")
        first = proof.replace("o-1", 1, {"batch_size": "/2"})
        _check_config(proof, first["planned"]["detail"])
        _check_state(proof, first["saved"]["detail"])
        _check_resumed(proof, 2, first["saved"]["detail"])
        proof.until(lambda: proof.step(2) >= 27, "step 27 of generation 2")
        second = proof.replace("o-2", 2, {})
        _check_state(proof, second["saved"]["detail"], restarted=True)
        _check_resumed(proof, 3, second["saved"]["detail"])
        _check_end(proof, 3, PLANNED)
    finally:
        proof.close()


def one_restart_by_epochs(words: argparse.Namespace, page: Transcript) -> None:
    """Planned by max_train_epochs, which rule over steps; sd-scripts repeats the epoch that was begun."""
    page.part("One restart, 3 epochs planned (max_train_epochs = 3), batch 2 → 1, accumulation 1 → 2")
    proof = Proof(words, words.out / "epochs", "max_train_epochs = 3", page)
    try:
        proof.start()
        proof.until(lambda: (proof.folder / "state" / "runs").is_dir() and proof.step(1) >= 13, "step 13")
        reported = proof.replace("o-1", 1, {"batch_size": "/2"})
        _check_resumed(proof, 2, reported["saved"]["detail"])
        _check_end(proof, 2, 3 * EPOCH)
    finally:
        proof.close()


def _check_config(proof: Proof, planned: dict[str, Any]) -> None:
    page = proof.page
    page.block(planned["diff"])
    page.check("the user's file is as it was", proof.config.read_bytes() == proof.original, proof.config.name)
    changes = {(each["knob"], each["from"], each["to"]) for each in planned["changes"]}
    wanted = {("batch_size", "2", "1"), ("gradient_accumulation", "1", "2")}
    page.check("batch 2 → 1, accumulation 1 → 2", changes == wanted, sorted(changes))


def _check_state(proof: Proof, saved: dict[str, Any], *, restarted: bool = False) -> None:
    """`restarted`: sd-scripts' own count has begun at 0 again, and must decide nothing."""
    found, step, page = proof.state(saved["path"]), saved["step"], proof.page
    page.check(
        f"a fresh process finds {step} optimizer steps in the state", found["updates"] == [step], found["updates"]
    )
    page.check("and the learning rate's place", found["last_epoch"] == step, found["last_epoch"])
    own = found["train_state"]["current_step"]
    wanted = own < step if restarted else own == step
    page.check("train_state.json " + ("counts from the restart" if restarted else "has the same step"), wanted, own)


def _check_resumed(proof: Proof, generation: int, saved: dict[str, Any]) -> None:
    proof.until(lambda: proof.read("resumed.json", generation), f"resumed.json of generation {generation}")
    resumed = proof.read("resumed.json", generation)
    proof.page.check(f"generation {generation} went on from it", resumed["step"] == saved["step"], resumed)
    proof.until(lambda: proof.step(generation) > saved["step"], f"a step of generation {generation}")
    launches = [line for line in (proof.run_dir / "journal.jsonl").read_text().splitlines() if '"resume_step"' in line]
    argv = next(json.loads(line)["detail"]["argv"] for line in reversed(launches) if '"argv"' in line)
    proof.page.block("$ " + " ".join(argv))


def _check_end(proof: Proof, generation: int, planned: int) -> None:
    """sd-scripts trains the epoch again that was begun: up to one partial epoch more than planned, however often."""
    page = proof.page
    assert proof.process is not None
    try:
        code = proof.process.wait(WITHIN_S)
    except subprocess.TimeoutExpired:
        code = -1
    page.check("`run` ended with 0", code == 0, code)
    total = proof.step(generation)
    page.check(
        f"{planned} optimizer steps in all, and less than {EPOCH} more", planned <= total < planned + EPOCH, total
    )
    final = proof.state(str(proof.folder / "out" / f"cat-r{generation}-state"))
    page.check(
        "a fresh process finds as many in the trainer's last state", final["updates"] == [total], final["updates"]
    )
    event = proof.service.seen.events[-1]
    page.check("it is told as finished", event["cause"] == "finished", event["cause"])
    result = proof.folder / "out" / "cat.safetensors"
    page.check("the last result has the planned name", result.exists(), sorted(p.name for p in result.parent.iterdir()))
    page.check("nothing of it is alive", not proof.members(), proof.members())
    page.check("the service understood all that it was told", not proof.service.seen.faults, proof.service.seen.faults)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sd_scripts", type=Path)
    parser.add_argument("--python", type=Path)
    parser.add_argument("--out", type=Path, default=Path(".prove-sd-scripts"))
    words = parser.parse_args()
    words.sd_scripts, words.out = words.sd_scripts.resolve(), words.out.resolve()
    words.python = (words.python or words.sd_scripts / "venv" / "bin" / "python").absolute()
    if not (words.sd_scripts / "train_network.py").exists() or not words.python.exists():
        parser.error(f"no train_network.py in {words.sd_scripts}, or no interpreter {words.python}")
    shutil.rmtree(words.out, ignore_errors=True)
    words.out.mkdir(parents=True)
    hidden = {"OUT": str(words.out), "SD_SCRIPTS": str(words.sd_scripts), "VENV": str(words.python.parent.parent)}
    page = Transcript({**hidden, "BED": str(HERE)})
    try:
        _begin(words, page)
        two_restarts(words, page)
        one_restart_by_epochs(words, page)
    finally:
        page.part("Outcome")
        page.say("every check holds" if not page.failed else f"{page.failed} checks do not hold")
        page.save(words.out / "transcript.md")
    return 1 if page.failed else 0


def _begin(words: argparse.Namespace, page: Transcript) -> None:
    git = ["git", "-C", str(words.sd_scripts)]
    commit = subprocess.run([*git, "log", "-1", "--format=%h, %cs"], capture_output=True, text=True).stdout.strip()
    changed = subprocess.run([*git, "diff", "--name-only", "HEAD", "--", "*.py"], capture_output=True, text=True).stdout
    versions = "import accelerate as a, torch as t, transformers as f; print(*(m.__version__ for m in (t, a, f)))"
    found = subprocess.run([words.python, "-c", versions], capture_output=True, text=True, check=True).stdout.split()
    page.part("What runs")
    page.say(f"sd-scripts {commit}; torch {found[0]}, accelerate {found[1]}, transformers {found[2]}")
    page.check("no Python file of the checkout is changed", not changed, changed.split() or "none")
    subprocess.run([words.python, str(HERE / "build_bed.py"), str(words.out / "bed")], check=True, capture_output=True)
    page.say("built a random narrow model of SD 1.5's shape and 20 noise images of 128 pixels")


if __name__ == "__main__":
    sys.exit(main())
