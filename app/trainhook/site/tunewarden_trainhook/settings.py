"""hook.json: what the agent tells the hook before a launch. Absent file or key: the default."""


class Settings:
    """Attributes: states (folder or None), state_name (pattern or None), resume_by ("hook" or "trainer"),

    total_steps (int or None), stop_at_total (bool), base_step (optimizer steps of earlier generations).
    """

    def __init__(self, content):
        content = content or {}
        self.states = _text(content.get("states"))
        self.state_name = _text(content.get("state_name"))
        self.resume_by = content.get("resume_by") if content.get("resume_by") in ("hook", "trainer") else "trainer"
        self.total_steps = _count(content.get("total_steps"))
        self.stop_at_total = content.get("stop_at_total") is True
        self.base_step = _count(content.get("base_step")) or 0


def _text(value):
    return value if isinstance(value, str) and value else None


def _count(value):
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
