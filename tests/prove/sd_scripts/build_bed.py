"""Makes what the proof trains on: a random model of Stable Diffusion 1.5's shape, narrow, a tokenizer and noise images.

    SD_PYTHON build_bed.py FOLDER

Runs under the trainer's interpreter (torch, diffusers, transformers), some seconds; needs no network.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from PIL import Image
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

WIDTHS = (32, 64, 64, 64)  # the same as in bed/sitecustomize.py
TEXT_WIDTH = 32
IMAGES = 20
PIXELS = 128


def make_tokenizer(folder):
    """A CLIP tokenizer that knows single letters only, where --tokenizer_cache_dir looks for it."""
    place = folder / "tokenizer" / "openai_clip-vit-large-patch14"
    place.mkdir(parents=True)
    letters = [chr(code) for code in range(33, 127)]
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (place / "vocab.json").write_text(json.dumps({word: index for index, word in enumerate(words)}), encoding="utf-8")
    (place / "merges.txt").write_text("#version: 0.2\n", encoding="utf-8")
    CLIPTokenizer(str(place / "vocab.json"), str(place / "merges.txt"), model_max_length=77).save_pretrained(place)
    return len(words)


def make_model(folder, vocabulary):
    """Random weights in the diffusers layout."""
    torch.manual_seed(0)
    text = CLIPTextConfig(
        vocab_size=vocabulary, hidden_size=TEXT_WIDTH, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=2, max_position_embeddings=77, bos_token_id=vocabulary - 2, eos_token_id=vocabulary - 1,
        pad_token_id=vocabulary - 1,
    )  # fmt: skip
    unet = UNet2DConditionModel(
        sample_size=16, block_out_channels=WIDTHS, cross_attention_dim=TEXT_WIDTH, attention_head_dim=8,
    )  # fmt: skip
    vae = AutoencoderKL(
        block_out_channels=(32, 32, 32, 32), down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4, latent_channels=4,
    )  # fmt: skip
    StableDiffusionPipeline(
        vae=vae, text_encoder=CLIPTextModel(text), tokenizer=None, unet=unet, scheduler=DDIMScheduler(),
        safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    ).save_pretrained(folder / "model")  # fmt: skip


def make_images(folder):
    """Noise, in the folder layout that sd-scripts wants: N_name below train_data_dir."""
    place = folder / "images" / "1_noise"
    place.mkdir(parents=True)
    random = np.random.default_rng(0)
    for index in range(IMAGES):
        pixels = random.integers(0, 256, (PIXELS, PIXELS, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place / f"{index:02}.png")
        (place / f"{index:02}.txt").write_text(f"noise number {index}", encoding="utf-8")


if __name__ == "__main__":
    bed = Path(sys.argv[1])
    make_model(bed, make_tokenizer(bed))
    make_images(bed)
