"""Where the files that are shipped beside the code are: the rules, the policies and the examples."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_IN_CHECKOUT = {"rules": "rules", "examples": "docs/examples"}  # the same pairs as in pyproject's force-include


def shipped_dir(name: str) -> Path:
    """The folder `rules` or `examples`: inside an installed package, or in the checkout that this code runs from."""
    installed = _PACKAGE / "shipped" / name
    return installed if installed.is_dir() else _PACKAGE.parent / _IN_CHECKOUT[name]


def hook_dir() -> Path:
    """The folder that a job gets on its PYTHONPATH: only the training hook lies there."""
    return _PACKAGE / "trainhook" / "site"
