"""The name of a process on a card."""

from tunewarden.processes.identity import read_proc


def process_name(pid: int) -> str:
    """The short name of a process, or an empty string (gone, or of another pid namespace)."""
    return read_proc(pid, "comm").decode("utf-8", "replace").strip()
