"""What kind of model a script trains, by its name: `sdxl_train_network.py`, `train_dreambooth_lora_flux.py`."""

import re
from collections.abc import Sequence
from pathlib import PurePath

# The words that sd-scripts, musubi-tuner and diffusers put into the names of their scripts, and what they mean.
_WORDS = {
    "sdxl": "sdxl",
    "sd3": "sd3",
    "flux": "flux",
    "flux2": "flux2",
    "lumina": "lumina",
    "hunyuan": "hunyuan",
    "hv": "hunyuan-video",
    "wan": "wan",
    "fpack": "framepack",
    "qwen": "qwen-image",
    "zimage": "z-image",
    "kontext": "flux-kontext",
    "sana": "sana",
    "cogvideox": "cogvideox",
}
# Without such a word they train Stable Diffusion 1 or 2.
_STABLE_DIFFUSION = re.compile(r"train_(?:network|db|textual_inversion|text_to_image(?:_lora)?|dreambooth(?:_lora)?)")


def model_type(argv: Sequence[str]) -> str:
    """One word such as `sdxl`; empty where no script of the command tells."""
    for word in argv:
        path = PurePath(word)
        if path.suffix != ".py":
            continue
        for part in path.stem.lower().split("_"):
            if part in _WORDS:
                return _WORDS[part]
        if _STABLE_DIFFUSION.fullmatch(path.stem):
            return "sd"
    return ""
