"""What a trainer's script trains, by its name."""

import pytest

from tunewarden.trainers.model_type import model_type


@pytest.mark.parametrize(
    ("command", "kind"),
    [
        ("accelerate launch sdxl_train_network.py --config_file x.toml", "sdxl"),
        ("python -m accelerate.commands.launch ./scripts/stable/train_network.py", "sd"),
        ("python flux_train_network.py", "flux"),
        ("python train_dreambooth_lora_flux.py", "flux"),
        ("python train_text_to_image_lora_sdxl.py", "sdxl"),
        ("python train_text_to_image_lora.py", "sd"),
        ("python src/musubi_tuner/wan_train_network.py", "wan"),
        ("python hv_train_network.py", "hunyuan-video"),
        ("python train.py --config sdxl.yaml", ""),
        ("python my_fluxcapacitor.py", ""),
        ("bash train.sh", ""),
        ("", ""),
    ],
)
def test_the_kind_of_model(command: str, kind: str) -> None:
    """Only a script's name tells; another word of the command doesn't."""
    assert model_type(command.split()) == kind
