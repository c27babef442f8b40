"""`tunewarden run`: takes the words, then becomes the keeper of the job."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from tunewarden.config import Settings
from tunewarden.domain.job_series import label_fits
from tunewarden.errors import SettingsError
from tunewarden.sampling.simulated import SimulatedCard
from tunewarden.shipped import hook_dir
from tunewarden.supervisor.start import exec_keeper, prepare

LABEL_LIMIT = 10


def run_job(
    settings: Settings,
    argv: Sequence[str],
    name: str | None,
    labels: Sequence[str],
    enforce: bool,
    grace_s: float,
    simulate_gpu: str | None,
    hook: bool,
    pushgateway: str | None = None,
) -> NoReturn:
    """Check the words, write the run folder, and exec the keeper.

    Raises SettingsError, or CommandNotFound when the command is not on PATH.
    """
    if not argv:
        raise SettingsError("no command: say `tunewarden run -- python train.py --config my_lora.yaml`")
    if grace_s <= 0:
        raise SettingsError(f"--grace {grace_s}: say how many seconds a stop may wait for the save, more than 0")
    if simulate_gpu is not None:
        _check_card(simulate_gpu)
    prepared = prepare(
        argv,
        name=name,
        labels=read_labels(labels),
        enforce=enforce,
        grace_s=grace_s,
        url=settings.service_url,
        token_file=settings.agent_token,
        simulate_gpu=simulate_gpu,
        heartbeat_s=settings.heartbeat.total_seconds(),
        state_dir=settings.state,
        node=None,
        hook=usable_hook() if hook else None,
        pushgateway=_gateway(settings, pushgateway),
    )
    exec_keeper(prepared)


def usable_hook() -> Path:
    """The training hook's folder. Raises SettingsError where it can't stand on a PYTHONPATH."""
    folder = hook_dir()
    if os.pathsep in str(folder):
        raise SettingsError(
            f"{folder}: a folder with {os.pathsep!r} in its name can't stand on PYTHONPATH; "
            "install tunewarden elsewhere, or say --no-hook"
        )
    return folder


def read_labels(words: Sequence[str]) -> dict[str, str]:
    """`key=value` words as a dict.

    Raises SettingsError for a word of another form, a key that is no label name, and more than ten labels.
    """
    labels = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key.isidentifier() or not key.isascii():
            raise SettingsError(f"--label {word}: write key=value, the key in letters, digits and _")
        if not label_fits(key):
            raise SettingsError(f"--label {word}: {key} is a label of the series already; choose another key")
        labels[key] = value
    if len(labels) > LABEL_LIMIT:
        raise SettingsError(f"{len(labels)} labels: give at most {LABEL_LIMIT}, each becomes a label of every series")
    return labels


def _gateway(settings: Settings, word: str | None) -> str | None:
    """The address to push to. It may hold a password, so no error repeats it."""
    if word is None:
        return settings.pushgateway.get_secret_value() if settings.pushgateway else None
    parts = urlsplit(word)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError("--pushgateway: write its URL with http:// or https:// and a host")
    return word


def _check_card(text: str) -> None:
    try:
        SimulatedCard.parse(text)
    except ValueError as error:
        raise SettingsError(f"--simulate-gpu {text}: {error}") from None
