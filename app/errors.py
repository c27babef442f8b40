"""The exceptions of tunewarden. A class's docstring is its default message.

TunewardenError
├── SettingsError        settings, policies or a command's words are wrong: exit code 2
│   └── FaultsFound      many faults at once, each a line with file:line
├── StoreError
│   ├── StoreUnavailable the event can't be stored now: 503, Alertmanager sends again
│   └── StoreLocked      another service uses this store
├── Retryable            an outside system may answer later
├── Permanent            an outside system will not change its answer
└── Refused              an act is refused for a Reason
"""

from tunewarden.domain.reason import Reason


class TunewardenError(Exception):
    """Something went wrong in tunewarden."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class SettingsError(TunewardenError):
    """A setting is wrong."""


class FaultsFound(SettingsError):
    """Faults were found."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


class StoreError(TunewardenError):
    """The store failed."""


class StoreUnavailable(StoreError):
    """The event can't be stored now."""


class StoreLocked(StoreError):
    """Another tunewarden service uses this store."""


class Retryable(TunewardenError):
    """An outside system can't be reached or is busy; it is tried again."""


class Permanent(TunewardenError):
    """An outside system refuses, and will refuse again until a person changes something."""


class Refused(TunewardenError):
    """The act is refused."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason
