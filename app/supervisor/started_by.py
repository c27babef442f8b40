"""Who started a job. Standard library only."""

from enum import StrEnum


class StartedBy(StrEnum):
    """Who has launched a job, and so who alone may launch it again."""

    RUN = "run"
    WATCH = "watch"  # a GUI or a notebook, seen by `tunewarden watch`
    ADOPT = "adopt"  # somebody, before `tunewarden adopt`
