"""What the real TensorBoard writes, our own small reader reads."""

import math
import subprocess
from pathlib import Path

from tunewarden.supervisor.event_file import EventFile
from tunewarden.supervisor.event_progress import EventProgress

WRITER = """
import os, sys
import torch
from torch.utils.tensorboard import SummaryWriter
print(os.getpid())
writer = SummaryWriter(sys.argv[1])
for step in range(1, 301):
    writer.add_scalar("loss/current", 1.0 / step, step, walltime=1000.0 + 2 * step)
    writer.add_scalar("loss/average", 9.0, step)
    if step == 100:
        writer.add_image("sample", torch.rand(3, 512, 512), step)
writer.add_scalar("loss/epoch_average", 5.0, 1)
writer.add_scalar("loss/current", float("nan"), 301, walltime=1602.0, new_style=True)
writer.add_hparams({"lr": 1}, {"hparam/loss": 7.0})
writer.close()
"""


def test_the_scalars_of_the_real_tensorboard(trainer_python: Path, tmp_path: Path) -> None:
    """Both forms of a scalar, NaN, an image between them, and the file that add_hparams makes beside it."""
    logs = tmp_path / "logs" / "20261201" / "network_train"
    done = subprocess.run(
        [trainer_python, "-c", WRITER, str(logs)], capture_output=True, text=True, check=True, timeout=120
    )
    pid = int(done.stdout)
    progress = EventProgress([tmp_path / "logs"])
    for look in range(3):  # an image is passed over from one look to the next
        progress.read(20.0 * look, {pid})
    found = progress.progress()
    file = next(path for path in logs.glob("events*"))
    scalars = [scalar for scalar in EventFile(file).read() if scalar.tag == "loss/current"]

    assert found is not None and found.loss is not None
    assert (found.step, math.isnan(found.loss), found.source) == (301, True, "log")
    assert (found.step_seconds_count, found.step_seconds_sum) == (300, 600.0)
    assert [scalar.step for scalar in scalars][:100] == list(range(1, 101))
    assert scalars[9].value == 0.10000000149011612  # a float of 32 bits
