"""What the tests of all syntaxes share: one file as a layer, and its plan."""

from collections.abc import Mapping
from pathlib import Path

from tunewarden.trainers.layers import KeyPath, Layer, Syntax, plan_layers
from tunewarden.trainers.recipe import ConfigPlan

# A knob without arithmetic of its own stands for any value that is set.
ANY = "network_dim"
NAMES = {"yaml": Syntax.YAML, "toml": Syntax.TOML, "json": Syntax.JSON, "sh": Syntax.SHELL}


def plan_of(
    path: Path,
    knobs: Mapping[str, str],
    keys: Mapping[str, tuple[KeyPath, ...]],
    defaults: Mapping[str, str] | None = None,
    *,
    allow: bool = False,
    last_wins: bool = False,
    items: KeyPath | None = None,
) -> ConfigPlan:
    """The plan for one file."""
    layer = Layer(
        syntax=NAMES[path.suffix[1:]], file=path, keys=keys, defaults=defaults or {}, last_wins=last_wins, items=items
    )
    return plan_layers([layer], (), knobs, allow_effective_batch_change=allow, resuming=False)


def spliced(path: Path, data: bytes, value: str, key: KeyPath = ("batch_size",)) -> bytes:
    """`data`, written to `path`, with the number at `key` set to `value`; unchanged data when it stands so already."""
    path.write_bytes(data)
    plan = plan_of(path, {ANY: value}, {ANY: (key,)})
    assert path.read_bytes() == data
    return plan.copies[0].new_bytes if plan.copies else data
