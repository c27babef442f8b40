"""The commands that need no service: check, simulate, adjust."""

from collections.abc import Sequence
from pathlib import Path

from tunewarden.adapters.dingtalk_address import robot_address, warnings_of
from tunewarden.bootstrap import policies_of
from tunewarden.commandline.output import Output
from tunewarden.config import load_settings
from tunewarden.errors import Refused, SettingsError
from tunewarden.trainers.beside import write_beside
from tunewarden.trainers.lora_yaml import adjust_file


def adjust(config: Path, words: Sequence[str], write: bool, output: Output) -> None:
    """Print how a config would read with knobs changed; with `write`, put the new file beside it.

    Raises SettingsError for what can't be done, with file:line.
    """
    knobs = {}
    for word in words:
        knob, equals, value = word.partition("=")
        if not equals or not knob or not value:
            raise SettingsError(f"{word}: write KNOB=VALUE, such as batch_size=/2 or batch_size=2")
        knobs[knob] = value
    try:
        plan = adjust_file(config, knobs)
        output.diff(plan.diff)
        for warning in plan.warnings:
            output.aside(f"warning: {warning}", "yellow")
        if write:
            output.aside(f"written: {write_beside(plan, 2)}")
        else:
            output.aside("nothing is written; --write puts the adjusted config beside the original")
    except Refused as error:
        raise SettingsError(f"{error} ({error.reason})") from None


def check(config: Path | None, output: Output) -> None:
    """Check settings and policies, and say what was found good.

    Raises FaultsFound with every fault of both.
    """
    settings = load_settings({"config": config})
    policies = policies_of(settings)
    for target in (section.target() for section in settings.dingtalk):
        robot_address(target)
        for warning in warnings_of(target):
            output.aside(f"warning: {warning}", "yellow")
    output.table(
        ("policy", "mode", "enabled", "file"),
        [(policy.name, policy.mode, "yes" if policy.enabled else "no", policy.file) for policy in policies],
        "no policy",
    )
    output.aside(f"settings and {len(policies)} policies are good", "green")
