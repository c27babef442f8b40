"""NVIDIA's Xid numbers: what the kernel says of a card, and whether a restart of the job can help.

Classes from NVIDIA's Xid catalogue as NVSentinel maps it.
"""

from enum import StrEnum


class XidClass(StrEnum):
    """What must be done about it. None of these is done by tunewarden itself but to tell."""

    APPLICATION = "application"  # nearly always the program; the job can be started again
    IGNORED = "ignored"  # a follow-up, or noted by the driver only
    GPU = "gpu"  # the card must be reset before anything is started on it
    NODE = "node"  # the host must be restarted
    LINK = "link"  # NVLink
    SUPPORT = "support"  # everything else


def _numbers(text: str) -> frozenset[int]:
    found: set[int] = set()
    for part in text.split():
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return frozenset(found)


_CLASSES = {
    XidClass.APPLICATION: _numbers(
        "8 11 13 25 31 32 39-41 60 68-72 75-77 80 82-86 88-89 94 96-105 126-135 139",
    ),
    XidClass.IGNORED: _numbers("14 37 38 43-45 63 66 67 92 93 106 107 121 137 141 152 153 157 161"),
    XidClass.GPU: _numbers("46 48 62 64 95 109 110 119 120 136 140 143 155 156 158"),
    XidClass.NODE: _numbers("79 160"),
    XidClass.LINK: _numbers("74 144-150"),
}
_USELESS = frozenset({XidClass.GPU, XidClass.NODE})


def class_of(xid: int) -> XidClass:
    """The class of an Xid; `support` where the catalogue says nothing else."""
    return next((kind for kind, numbers in _CLASSES.items() if xid in numbers), XidClass.SUPPORT)


def restart_is_useless(xid: int) -> bool:
    """Whether a job that is started again on this card fails again: 48, 79, 95, 119 and their like."""
    return class_of(xid) in _USELESS
