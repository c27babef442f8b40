"""Which trainer a command line runs: by the name of a script that is elsewhere, by the text of one that is here."""

import shlex
from pathlib import Path

import pytest

from tunewarden.trainers.recipe import Tier
from tunewarden.trainers.table import recognise

# What each file of the tree holds, in our own words: only what a trainer is known by.
SD = "from library import train_util\nargs = train_util.read_config_from_file(args, parser)\n"
LOOP = "from accelerate import Accelerator\naccelerator = Accelerator()\n"
EXAMPLE = (
    "import diffusers\nfrom accelerate import Accelerator\n"
    'for name in (parser.add_argument("--train_batch_size"), parser.add_argument("--checkpointing_steps"),\n'
    '             parser.add_argument("--resume_from_checkpoint"), parser.add_argument("--output_dir")): pass\n'
)
FILES = {
    "sd-scripts/train_network.py": SD,
    "sd-scripts/sdxl_train_network.py": SD,
    "sd-scripts/my_copy.py": SD,
    "sd-scripts/tools/cache_latents.py": SD + LOOP,
    "sd-scripts/run.sh": "python tools/cache_latents.py\naccelerate launch train_network.py\n",
    "sd-scripts/config.toml": "",
    "lora-scripts/mikazuki/app.py": "",
    "lora-scripts/scripts/stable/train_network.py": SD,
    "lora-scripts/scripts/dev/flux_train_network.py": SD,
    "lora-scripts/config/autosave/a.toml": "",
    "lora-scripts/train.sh": (
        "batch_size=1\ntrainer_file=./scripts/stable/train_network.py\n"
        "python -m accelerate.commands.launch $trainer_file --train_batch_size=$batch_size ${extArgs[@]}\n"
    ),
    "kohya_ss/kohya_gui.py": "",
    "kohya_ss/sd-scripts/train_network.py": SD,
    "out/config_lora-20261201-101112.toml": "",
    "musubi/wan_train_network.py": "from musubi_tuner.wan_train_network import main\n",
    "musubi/renamed.py": "from musubi_tuner.qwen_image_train_network import main\n",
    "musubi/wan_cache_latents.py": "from musubi_tuner.wan_cache_latents import main\n",
    "examples/train_text_to_image_lora.py": EXAMPLE,
    "examples/renamed.py": EXAMPLE,
    "a.yaml": "",
    "base.yml": "base_model: x\nmicro_batch_size: 2\n",
    "lf/src/train.py": "from llamafactory.train.tuner import run_exp\nrun_exp()\n",
    "onetrainer/scripts/train.py": "from modules.util.args.TrainArgs import TrainArgs\n",
    "onetrainer/c.json": "{}",
    "pipe/train.py": "import deepspeed\nfrom utils import dataset as data\nimport utils.saver\n",
    "pipe/c.toml": "",
    "toolkit/run.py": "from toolkit.job import get_job\n",
    "toolkit/config/c.yaml": "job: extension\n",
    "own/sft.py": "from trl import SFTTrainer, SFTConfig\nSFTTrainer(args=SFTConfig(output_dir='o'))\n",
    "own/run_clm.py": "from transformers import HfArgumentParser, Trainer\nTrainer()\nHfArgumentParser()\n",
    "own/fast.py": "from unsloth import FastLanguageModel\nfrom trl import SFTTrainer\nSFTTrainer()\n",
    "own/loop.py": LOOP,
    "own/train_network.py": LOOP,
    "own/lit.py": "import lightning as L\nL.Trainer()\n",
    "own/plain.py": "import torch\n",
    "own/web.py": "import flask\n",
    "own/one.sh": "#!/bin/sh\npip install x\npython prepare.py\nexec accelerate launch loop.py \"$@\"\n",
    "own/two.sh": "python loop.py\npython sft.py\n",
    "own/sweep.sh": "for lr in 1 2; do python loop.py --lr $lr; done\n",
    "own/prepare.py": "import json\n",
    "articles/train.py": LOOP,
    "articles/lora.yaml": "train_data_dir: x\nbatch_size: 4\n",
}  # fmt: skip

AUTOSAVE = "config/autosave/a.toml"
LAUNCH = "python -m accelerate.commands.launch --num_cpu_threads_per_process 8 --quiet"

# (folder, command, trainer): None where nothing is recognised.
COMMANDS = [
    ("sd-scripts", "accelerate launch --quiet train_network.py --config_file config.toml", "sd-scripts"),
    ("sd-scripts", "accelerate launch --quiet ./sdxl_train_network.py --config_file config", "sd-scripts"),
    ("sd-scripts", "python my_copy.py --network_module networks.lora", "sd-scripts"),
    ("", "uv run --directory sd-scripts accelerate launch train_network.py", "sd-scripts"),
    ("", "conda run -n lora --no-capture-output --cwd sd-scripts python train_network.py", "sd-scripts"),
    ("", "bash -c 'cd sd-scripts && CUDA_VISIBLE_DEVICES=0 python train_network.py'", "sd-scripts"),
    ("", "nohup env A=1 nice -n 5 python sd-scripts/train_network.py", "sd-scripts"),
    ("", "torchrun --nproc_per_node 2 sd-scripts/sdxl_train_network.py", "sd-scripts"),
    ("elsewhere", "python /opt/sd-scripts/flux_train_network.py --config_file c.toml", "sd-scripts"),
    ("elsewhere", "python /opt/sd-scripts/train_db.py", "sd-scripts"),
    ("elsewhere", "python /opt/sd-scripts/sdxl_train.py", "sd-scripts"),
    ("sd-scripts", "python tools/cache_latents.py", None),
    ("sd-scripts", "bash run.sh", "sd-scripts"),
    ("lora-scripts", f"{LAUNCH} ./scripts/stable/train_network.py --config_file {AUTOSAVE}", "lora-scripts"),
    ("lora-scripts", f"{LAUNCH} ./scripts/dev/flux_train_network.py --config_file config/autosave/a", "lora-scripts"),
    ("lora-scripts", "bash train.sh", "lora-scripts"),
    ("lora-scripts", "./train.sh", "lora-scripts"),
    ("", "bash -c 'cd lora-scripts; exec bash train.sh'", "lora-scripts"),
    ("elsewhere", "accelerate launch ./scripts/stable/train_network.py --config_file x.toml", "lora-scripts"),
    ("kohya_ss", "accelerate launch --quiet ./sd-scripts/train_network.py --config_file x.toml", "kohya-gui"),
    ("", "python sd-scripts/train_network.py --config_file out/config_lora-20261201-101112.toml", "kohya-gui"),
    ("musubi", "accelerate launch --mixed_precision bf16 wan_train_network.py --dataset_config d.toml", "musubi-tuner"),
    ("musubi", "accelerate launch renamed.py", "musubi-tuner"),
    ("elsewhere", "accelerate launch src/musubi_tuner/hv_train_network.py", "musubi-tuner"),
    ("elsewhere", "uv run --extra cu128 python src/musubi_tuner/flux_kontext_train_network.py", "musubi-tuner"),
    ("elsewhere", "python -m musubi_tuner.zimage_train_network --dit x", "musubi-tuner"),
    ("musubi", "python wan_cache_latents.py --dataset_config d.toml", None),
    ("examples", "accelerate launch train_text_to_image_lora.py --train_batch_size=4", "diffusers"),
    ("examples", "python renamed.py --train_batch_size 4", "diffusers"),
    ("elsewhere", "accelerate launch train_dreambooth_lora_sdxl.py --output_dir=o", "diffusers"),
    ("elsewhere", "poetry run accelerate launch examples/controlnet/train_controlnet.py", "diffusers"),
    ("", "llamafactory-cli train a.yaml", "llama-factory"),
    ("", "lmf train a.yaml learning_rate=1e-4", "llama-factory"),
    ("", "env FORCE_TORCHRUN=1 llamafactory-cli train a.yaml", "llama-factory"),
    ("", "llamafactory-cli train --stage sft --output_dir o", "llama-factory"),
    ("", "python -m llamafactory.cli train a.yaml", "llama-factory"),
    ("lf", "torchrun --nproc_per_node 2 src/train.py ../a.yaml", "llama-factory"),
    ("", "llamafactory-cli webui", None),
    ("", "llamafactory-cli export a.yaml", None),
    ("", "axolotl train base.yml", "axolotl"),
    ("", "axolotl train base.yml --launcher torchrun -- --nproc_per_node 2", "axolotl"),
    ("", "conda run -n axolotl axolotl train base.yml", "axolotl"),
    ("", "accelerate launch -m axolotl.cli.train base.yml", "axolotl"),
    ("", "python -m axolotl.cli.train base.yml", "axolotl"),
    ("", "axolotl train base.yml --sweep s.yml", None),
    ("", "axolotl preprocess base.yml", None),
    ("onetrainer", "python scripts/train.py --config-path c.json", "onetrainer"),
    ("elsewhere", "python scripts/train.py --config-path c.json", "onetrainer"),
    ("pipe", "deepspeed --num_gpus=1 train.py --deepspeed --config c.toml", "diffusion-pipe"),
    ("elsewhere", "deepspeed --num_gpus=1 train.py --deepspeed --config c.toml", "diffusion-pipe"),
    ("toolkit", "python run.py config/c.yaml", "ai-toolkit"),
    ("elsewhere", "python run.py config/c.yaml", "ai-toolkit"),
    ("", "tune run lora_finetune_single_device --config a.yaml", "torchtune"),
    ("", "tune run --nproc_per_node 2 lora_finetune_distributed --config a.yaml", "torchtune"),
    ("", "tune download x", None),
    ("", "lightning run model x", "lightning"),
    ("own", "python lit.py fit", "lightning"),
    ("", "unsloth train a.yaml", "unsloth"),
    ("own", "python fast.py", "unsloth"),
    ("own", "python sft.py", "transformers"),
    ("own", "accelerate launch --num_processes 2 run_clm.py --output_dir o", "transformers"),
    ("own", "torchrun run_clm.py args.json", "transformers"),
    ("", "trl sft --config a.yaml", "transformers"),
    ("", "trl env", None),
    ("own", "accelerate launch loop.py --batch_size 4", "accelerate"),
    ("own", "python -m loop", "accelerate"),
    ("own", "python train_network.py", "accelerate"),
    ("own", "bash one.sh --lr 1", "accelerate"),
    ("own", "bash two.sh", None),
    ("own", "bash sweep.sh", None),
    ("own", "python plain.py --batch_size 4", "python"),
    ("own", "python web.py", None),
    ("own", "python nowhere.py", None),
    ("own", "python -c 'import accelerate'", None),
    ("own", "docker run x python loop.py", None),
    ("articles", "python train.py --config lora.yaml", "lora-yaml"),
]  # fmt: skip
TIERS = {
    "sd-scripts": Tier.PROVEN, "accelerate": Tier.PROVEN, "transformers": Tier.PROVEN,
    "lora-scripts": Tier.KNOWN, "kohya-gui": Tier.KNOWN, "musubi-tuner": Tier.KNOWN, "diffusers": Tier.KNOWN,
    "llama-factory": Tier.KNOWN, "axolotl": Tier.KNOWN, "lora-yaml": Tier.KNOWN, "python": Tier.KNOWN,
    "onetrainer": Tier.NAMED, "diffusion-pipe": Tier.NAMED, "ai-toolkit": Tier.NAMED, "unsloth": Tier.NAMED,
    "lightning": Tier.NAMED, "torchtune": Tier.NAMED,
}  # fmt: skip


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkout of every trainer, as far as it matters."""
    root = tmp_path_factory.mktemp("tree")
    (root / "elsewhere").mkdir()
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(("folder", "line", "trainer"), COMMANDS)
def test_the_trainer_of_a_command(tree: Path, folder: str, line: str, trainer: str | None) -> None:
    """The trainer's name and tier; None for what is no trainer, or more than one."""
    recipe = recognise(shlex.split(line), tree / folder)

    found = (recipe.trainer, recipe.tier) if recipe is not None else None

    assert found == ((trainer, TIERS[trainer]) if trainer is not None else None)


def test_the_table_is_long_enough() -> None:
    """Sixty command lines at least, and every trainer among them."""
    assert len(COMMANDS) >= 60
    assert {trainer for _, _, trainer in COMMANDS} - {None} == set(TIERS)
