"""`tunewarden adjust`: a person changes knobs of a training config. Needs no settings and no service."""

from collections.abc import Sequence
from pathlib import Path

from tunewarden.commandline.output import Output
from tunewarden.errors import Refused, SettingsError
from tunewarden.trainers.adjusting import adjust_file
from tunewarden.trainers.beside import write_all


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
        for name, value in plan.env.items():
            output.aside(f"set in the job's environment: {name}={value}")
        if write:
            for path in write_all(plan.copies, 2).values():
                output.aside(f"written: {path}")
        elif plan.copies:
            output.aside("nothing is written; --write puts the adjusted config beside the original")
    except Refused as error:
        raise SettingsError(f"{error} ({error.reason})") from None
