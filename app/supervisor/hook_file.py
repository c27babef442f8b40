"""hook.json as a generation was given it. See docs/reference/control-directory.md."""

from tunewarden.supervisor.control import ControlDirectory
from tunewarden.supervisor.control_file import absolute_path, text, whole_number
from tunewarden.trainers.recipe import HookSettings

_NAME_CHARS = 255


def hook_settings(control: ControlDirectory) -> HookSettings:
    """What the hook of this generation was told; the defaults where nothing was written."""
    raw = control.read("hook.json") or {}
    return HookSettings(
        states=absolute_path(raw.get("states")),
        state_name=text(raw.get("state_name"), _NAME_CHARS),
        resume_by="trainer" if raw.get("resume_by") == "trainer" else "hook",
        total_steps=whole_number(raw.get("total_steps")),
        stop_at_total=raw.get("stop_at_total") is True,
        base_step=whole_number(raw.get("base_step")) or 0,
    )
