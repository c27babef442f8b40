"""Which program a command line runs, and where: launchers, folders, shells."""

from pathlib import Path

import pytest

from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.trainers.command import Command, Kind, find_commands

DIRECT = [
    ("python train.py", "train.py", "."),
    ("python3.11 -u -X dev train.py --a 1", "train.py", "."),
    ("/opt/env/bin/python tools/train.py", "tools/train.py", "."),
    ("./train.py", "./train.py", "."),
    ("accelerate launch --num_processes 1 --config_file acc.yaml train.py", "train.py", "."),
    ("accelerate-launch train.py", "train.py", "."),
    ("python -m accelerate.commands.launch --num_cpu_threads_per_process 8 --quiet ./scripts/stable/train_network.py",
     "./scripts/stable/train_network.py", "."),
    ("torchrun --nproc_per_node 2 train.py", "train.py", "."),
    ("python -m torch.distributed.run --nproc_per_node 2 train.py", "train.py", "."),
    ("deepspeed --num_gpus=1 train.py --deepspeed --config x.toml", "train.py", "."),
    ("accelerate launch -m axolotl.cli.train a.yml", "axolotl.cli.train", "."),
    ("torchrun --nproc_per_node 2 -m axolotl.cli.train a.yml", "axolotl.cli.train", "."),
    ("python -m llamafactory.cli train a.yaml", "llamafactory.cli", "."),
    ("llamafactory-cli train a.yaml", "llamafactory-cli", "."),
    ("/opt/env/bin/axolotl train a.yml", "axolotl", "."),
    ("/env/bin/python /env/bin/accelerate launch --quiet train.py", "train.py", "."),
    ("/env/bin/python -u /env/bin/llamafactory-cli train a.yaml", "llamafactory-cli", "."),
    ("python /env/bin/torchrun -m axolotl.cli.train a.yml", "axolotl.cli.train", "."),
    ("uvx axolotl train a.yml", "axolotl", "."),
    ("uv run -m pkg.train", "pkg.train", "."),
    ("uv run train.py", "train.py", "."),
    ("uv run --with x --directory sub python -u train.py", "train.py", "sub"),
    ("uv run --project /elsewhere train.py", "train.py", "."),
    ("uv run axolotl train a.yml", "axolotl", "."),
    ("poetry -C sub run python train.py", "train.py", "sub"),
    ("conda run --no-capture-output -n lora python train.py", "train.py", "."),
    ("conda run -n axolotl --cwd /data/x python train.py", "train.py", "/data/x"),
    ("conda run -n axolotl axolotl train a.yml", "axolotl", "."),
    ("micromamba run -n x --cwd=sub accelerate launch train.py", "train.py", "sub"),
    ("env A=b CUDA_VISIBLE_DEVICES=0 python train.py", "train.py", "."),
    ("env -C sub python train.py", "train.py", "sub"),
    ("env -u LD_PRELOAD python train.py", "train.py", "."),
    ("nice -n 10 taskset -c 0-3 python train.py", "train.py", "."),
    ("numactl -m 0 python train.py", "train.py", "."),
    ("nohup timeout 5h python train.py", "train.py", "."),
]  # fmt: skip
NONE = [
    "python -c print(1) train.py",
    "python -cpass train.py",
    "python tool accelerate train.py",
    "python --config a.yaml train.py",
    "ssh host python train.py",
    "docker run image python train.py",
    "srun python train.py",
    "tensorboard --logdir x",
    "bash",
    "bash nowhere.sh",
    "accelerate config",
    "",
]
TEXTS = [
    ("cd sub && python train.py --a 'b c'", ["train.py"], "sub"),
    ("cd sub && exec python train.py", ["train.py"], "sub"),
    ("source v/bin/activate; export A=1; CUDA_VISIBLE_DEVICES=0 accelerate launch a.py | tee log", ["a.py"], "."),
    ("python a.py && python b.py", ["a.py", "b.py"], "."),
    ("if [ -f x ]; then python a.py; else python b.py; fi", ["a.py", "b.py"], "."),
    ("SCRIPT=train.py; python $SCRIPT --lr ${LR:-1e-4}", ["train.py"], "."),
    ("pip install -r r.txt # python no.py\npython train.py \\\n  --a 1 2>&1 > log", ["train.py"], "."),
    ("cat <<EOF\npython a.py\nEOF\n", [], "."),
    ("python 'train.py", [], "."),
    ("conda activate x", [], "."),
]  # fmt: skip


def only(argv: list[str], cwd: Path) -> Command:
    found = find_commands(argv, cwd)
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize(("line", "name", "folder"), DIRECT)
def test_the_program_behind_the_launchers(tmp_path: Path, line: str, name: str, folder: str) -> None:
    """The program and the folder that it starts in are found; the argv is given back as it is."""
    found = only(line.split(), tmp_path)

    assert (found.name, found.cwd) == (name, tmp_path / folder)
    assert found.argv_with(found.words) == line.split()


@pytest.mark.parametrize("line", NONE)
def test_no_python_program(tmp_path: Path, line: str) -> None:
    """Code on the command line, other hosts, containers and other programs."""
    assert find_commands(line.split(), tmp_path) == ()


@pytest.mark.parametrize(("text", "names", "folder"), TEXTS)
def test_the_programs_in_a_shells_text(tmp_path: Path, text: str, names: list[str], folder: str) -> None:
    """What is written plainly is found, in the folder that `cd` went to; the rest is not guessed."""
    found = find_commands(["bash", "-lc", text], tmp_path)

    assert [each.name for each in found] == names
    assert {each.cwd for each in found} <= {tmp_path / folder}


def test_a_loop_runs_it_more_than_once(tmp_path: Path) -> None:
    """A sweep in a shell is told apart."""
    found = only(["sh", "-c", "for lr in 1 2; do python train.py --lr $lr; done"], tmp_path)

    assert found.in_loop


def test_new_words_go_into_the_text(tmp_path: Path) -> None:
    """Behind `-c` the words are put in place, quoted; what stands around them stays."""
    found = only(["bash", "-c", "cd sub && A=1 exec python train.py && echo done"], tmp_path)

    argv = found.argv_with([*found.words, "--name", "a b"])

    assert argv == ["bash", "-c", "cd sub && A=1 exec python train.py --name 'a b' && echo done"]


@pytest.mark.parametrize("text", ["python train.py > log", "python train.py --lr $LR", "python train.py `date`"])
def test_text_that_would_be_lost_is_not_rewritten(tmp_path: Path, text: str) -> None:
    """A redirection or a word that only a run can tell makes the text untouchable."""
    found = only(["bash", "-c", text], tmp_path)

    if found.argv_with(found.words) != ["bash", "-c", text]:
        raise AssertionError
    if ">" in text:  # it ends before the redirection
        assert found.argv_with([*found.words, "-x"]) == ["bash", "-c", "python train.py -x > log"]
        return
    with pytest.raises(Refused) as caught:
        found.argv_with([*found.words, "-x"])

    assert caught.value.reason is Reason.COMMAND_IS_A_SCRIPT


SCRIPT = """\
#!/bin/bash
cd "$(dirname "$0")/.."
lr=1e-4  # the rate
exec python train.py --lr "$lr" "$@"
"""


def test_a_script_file_is_read(tmp_path: Path) -> None:
    """A script's own folder and its variables are followed, and its arguments passed on."""
    script = tmp_path / "bin" / "train.sh"
    script.parent.mkdir()
    script.write_text(SCRIPT)

    found = only(["nohup", "bash", "bin/train.sh", "--seed", "1"], tmp_path)

    assert (found.args, found.shells[0].file, found.shells[0].statement.line) == (
        ("--lr", "1e-4", "--seed", "1"), script, 4,
    )  # fmt: skip
    assert found.cwd is not None and found.cwd.resolve() == tmp_path.resolve()


def test_words_behind_a_script_are_changed_in_the_argv(tmp_path: Path) -> None:
    """What the script passes on with "$@" can be changed; what it says itself can't."""
    script = tmp_path / "train.sh"
    script.write_text(SCRIPT)
    argv = ["bash", "train.sh", "--seed", "1"]
    found = only(argv, tmp_path)

    assert found.argv_with([*found.words[:-1], "2", "--resume", "x"]) == [*argv[:-1], "2", "--resume", "x"]
    with pytest.raises(Refused) as caught:
        found.argv_with([word.replace("1e-4", "2e-4") for word in found.words])
    assert caught.value.reason is Reason.COMMAND_IS_A_SCRIPT


def test_interpreter_options_are_kept(tmp_path: Path) -> None:
    """-I and -E keep the training hook out, so they must be seen."""
    assert only(["python", "-I", "-W", "error", "train.py"], tmp_path).interpreter == ("-I", "-W", "error")


def test_a_modules_file_is_found(tmp_path: Path) -> None:
    """`python -m pkg.train` runs pkg/train.py of its folder."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "train.py").write_text("import torch\n")

    found = only(["python", "-m", "pkg.train"], tmp_path)

    assert (found.kind, found.script, found.text) == (Kind.MODULE, tmp_path / "pkg" / "train.py", "import torch\n")
