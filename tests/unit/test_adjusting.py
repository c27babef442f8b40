"""`tunewarden adjust FILE`: the file says whose it is, the original stays, and the inverse gives its bytes back."""

import os
import time
from pathlib import Path

import pytest

from tunewarden.commandline.adjusting import adjust
from tunewarden.commandline.output import Output
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused, SettingsError
from tunewarden.trainers.adjusting import adjust_file
from tunewarden.trainers.dialects import layers_of

FILES = {
    "lora.yaml": "# 训练\r\ntrain_data_dir: './猫'\r\nbatch_size: 4  # 批\r\ngradient_accumulation_steps: 1\r\n"
    "lr: 2e-4\r\n",
    "llama.yaml": "### model\nstage: sft\nfinetuning_type: lora\nlora_rank: 8\nper_device_train_batch_size: 4\n",
    "llama-default.yaml": "# no batch size\nstage: sft\nfinetuning_type: lora\ndataloader_num_workers: 4\n",
    "axolotl.yml": "base_model: x\nadapter: lora\nlora_r: 16\nmicro_batch_size: 4\ngradient_accumulation_steps: 1\n",
    "toolkit.yaml": "job: extension\nconfig:\n  name: x\n  process:\n    - type: sd_trainer\n      train:\n"
    "        batch_size: 4\n        steps: 2000  # 步\n      network: {type: lora, linear: 16, linear_alpha: 16}\n",
    "sd.toml": "[model]\npath = 'C:\\sd\\v1.safetensors'\n[train]\ntrain_batch_size = 4 # 批\nlearning_rate = 2e-4\n",
    "gui.toml": '\ufefftrain_batch_size = 4\r\nresolution = "512,512"\r\n',
    "data.toml": "[general]\nshuffle_caption = true\nbatch_size = 8\n[[datasets]]\nbatch_size = 4\n"
    "resolution = [512, 768]\n  [[datasets.subsets]]\n  image_dir = 'C:\\猫'\n",
    "pipe.toml": "micro_batch_size_per_gpu = 4\n[adapter]\nrank = 32\n",
    "kohya.json": '{\r\n  "LoRA_type": "Standard",\r\n  "max_resolution": "512,512",\r\n  "train_batch_size": 4,\r\n'
    '  "output_name": "猫"\r\n}',
    "sliders.json": '{\n  "LoRA_type": "Standard",\n  "gradient_accumulation_steps": 1.0,\n  "train_batch_size": 4,\n'
    '  "network_dim": 128.0\n}',
    "one.json": '{\n    "batch_size": 4,\n    "resolution": "512",\n    "lora_rank": 16\n}\n',
    "train.sh": '#!/bin/bash\nresolution="512,512"  # 大小\nbatch_size=4          # batch size\n'
    "python t.py --b=$batch_size\n",
}
TRAINERS = {
    "lora.yaml": "lora-yaml", "llama.yaml": "llama-factory", "llama-default.yaml": "llama-factory",
    "axolotl.yml": "axolotl", "toolkit.yaml": "ai-toolkit", "sd.toml": "sd-scripts", "gui.toml": "sd-scripts",
    "data.toml": "sd-scripts", "pipe.toml": "diffusion-pipe", "kohya.json": "kohya-gui", "sliders.json": "kohya-gui",
    "one.json": "onetrainer", "train.sh": "lora-scripts",
}  # fmt: skip


def written(folder: Path, name: str) -> Path:
    path = folder / name
    path.write_bytes(FILES[name].encode())
    return path


def refusal_of(path: Path, knob: str = "batch_size", asked: str = "/2") -> Refused:
    with pytest.raises(Refused) as caught:
        adjust_file(path, {knob: asked})
    assert "\n" not in str(caught.value)
    return caught.value


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_known_by_its_keys(tmp_path: Path, name: str) -> None:
    """No command is needed: the keys say which trainer's file it is."""
    assert layers_of(written(tmp_path, name))[0] == TRAINERS[name]


@pytest.mark.parametrize("name", FILES)
def test_half_and_back_gives_the_original_bytes(tmp_path: Path, name: str) -> None:
    """The command writes a copy with half the batch; the same command with *2 on the copy writes the original."""
    path = written(tmp_path, name)

    adjust(path, ["batch_size=/2"], True, Output(plain=True))
    copy = path.with_name(f"{path.stem}.tunewarden-g2{path.suffix}")
    adjust(copy, ["batch_size=*2"], True, Output(plain=True))

    again = path.with_name(f"{path.stem}.tunewarden-g3{path.suffix}")
    assert path.read_bytes() == FILES[name].encode()
    assert copy.read_bytes() != FILES[name].encode()
    assert again.read_bytes() == FILES[name].encode()


@pytest.mark.parametrize("name", FILES)
def test_only_lines_of_the_batch_change(tmp_path: Path, name: str) -> None:
    """Of the original's lines no more than those of batch size and accumulation are gone."""
    path = written(tmp_path, name)

    (copy,) = adjust_file(path, {"batch_size": "/2"}).copies

    old, new = (data.splitlines() for data in (path.read_bytes(), copy.new_bytes))
    gone = [line for line in old if line not in new]
    assert gone or name == "llama-default.yaml"
    assert all(b"batch_size" in line or b"accumulation" in line or b"micro_batch" in line for line in gone)


@pytest.mark.parametrize("name", ["gui.toml", "data.toml", "kohya.json", "one.json", "train.sh"])
def test_the_resolution_is_halved_and_comes_back(tmp_path: Path, name: str) -> None:
    """Both parts, in the form that the file has."""
    path = written(tmp_path, name)

    path.write_bytes(adjust_file(path, {"resolution": "/2"}).copies[0].new_bytes)

    assert b"512" not in path.read_bytes()
    assert adjust_file(path, {"resolution": "*2"}).copies[0].new_bytes == FILES[name].encode()


def test_a_number_of_a_slider_keeps_its_fraction(tmp_path: Path) -> None:
    """The kohya GUI's sliders write 1.0: it becomes 2.0, and is told as 2."""
    path = written(tmp_path, "sliders.json")

    plan = adjust_file(path, {"batch_size": "/2", "network_dim": "/2"})

    assert b'"gradient_accumulation_steps": 2.0,' in plan.copies[0].new_bytes
    assert b'"network_dim": 64.0\n' in plan.copies[0].new_bytes
    assert {change.knob: (change.old, change.new) for change in plan.changes}["gradient_accumulation"] == ("1", "2")


def test_a_pipe_is_refused_at_once(tmp_path: Path) -> None:
    """A FIFO without a writer doesn't hold the command."""
    path = tmp_path / "c.yaml"
    os.mkfifo(path)
    begun = time.monotonic()

    refused = refusal_of(path)

    assert time.monotonic() - begun < 5
    assert refused.reason is Reason.CONFIG_MALFORMED
    assert "a pipe" in str(refused)


@pytest.mark.parametrize("name", ["c.yaml", "c.toml", "c.json", "t.sh", "t.py"])
@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"batch_size = 4\n" * 100_000, "256 KiB"),
        (b"\x7fELF\x02\x01\xff\xfe" + bytes(64), "UTF-8"),
        ("batch_size = 4 # 批\n".encode("gbk"), "UTF-8"),
        ("batch_size = 4\n".encode("utf-16"), "UTF-8"),
        (b"a\0b", "zero byte"),
    ],
    ids=["huge", "binary", "GBK", "UTF-16", "zero byte"],
)
def test_what_is_no_config_is_refused_by_name(tmp_path: Path, name: str, data: bytes, why: str) -> None:
    """A huge file, a binary, another encoding: one line that says so, for every kind of file."""
    path = tmp_path / name
    path.write_bytes(data)

    refused = refusal_of(path)

    assert refused.reason is Reason.CONFIG_MALFORMED
    assert str(refused).startswith(f"{path}:1: ")
    assert why in str(refused)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev", "/proc/self/nowhere"])
def test_what_is_no_file_is_refused_by_name(path: str) -> None:
    """A device is not read, a folder is no file, what isn't there is not found."""
    assert refusal_of(Path(path)).reason in (Reason.CONFIG_MALFORMED, Reason.CONFIG_NOT_FOUND)


def test_another_kind_of_file_is_refused_by_name(tmp_path: Path) -> None:
    """A file that no trainer reads isn't guessed at."""
    path = tmp_path / "notes.txt"
    path.write_bytes(b"batch_size: 4\n")

    assert "no kind of config that we know" in str(refusal_of(path))


def test_code_is_never_changed_but_the_line_to_write_is_told(tmp_path: Path) -> None:
    """A constant in a Python script: file, line and the line as it should read."""
    path = tmp_path / "t.py"
    path.write_bytes(b"import torch\nBATCH_SIZE = 4  # x\n")

    refused = refusal_of(path)

    assert refused.reason is Reason.KNOB_NOT_CHANGEABLE
    assert f"{path}:2" in str(refused)
    assert "BATCH_SIZE = 2  # x" in str(refused)
    assert path.read_bytes() == b"import torch\nBATCH_SIZE = 4  # x\n"


def test_a_switch_that_the_trainer_reads_is_put_in_and_unset(tmp_path: Path) -> None:
    """`gradient_checkpointing=true` where the file lacks it, then `=unset`, gives the original."""
    path = written(tmp_path, "sd.toml")

    path.write_bytes(adjust_file(path, {"gradient_checkpointing": "true"}).copies[0].new_bytes)

    assert b"gradient_checkpointing = true\n" in path.read_bytes()
    assert adjust_file(path, {"gradient_checkpointing": "unset"}).copies[0].new_bytes == FILES["sd.toml"].encode()


def test_the_environments_knob_is_told_not_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """expandable_segments stands in no file: the command says which variable to set."""
    adjust(written(tmp_path, "sd.toml"), ["expandable_segments=true"], True, Output(plain=True))

    assert "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True" in capsys.readouterr().err
    assert len(list(tmp_path.iterdir())) == 1


def test_a_refusal_is_one_line_with_its_reason(tmp_path: Path) -> None:
    """The command ends with a message that names file, line and reason."""
    path = tmp_path / "c.toml"
    path.write_bytes(b"train_batch_size = 1\n")

    with pytest.raises(SettingsError) as caught:
        adjust(path, ["batch_size=/2"], False, Output(plain=True))

    assert str(caught.value) == f"{path}:1: batch_size is 1 and can't go lower (at_minimum)"
