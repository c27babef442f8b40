"""The shipped Prometheus rules, and copies of them with shorter times for a demo or a test."""

from collections.abc import Iterator, Mapping
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from tunewarden.errors import SettingsError
from tunewarden.shipped import shipped_dir


def shipped_rule_files() -> list[Path]:
    """The recording rules, then the alert rules that need them."""
    rules = shipped_dir("rules")
    return [*sorted((rules / "recording").glob("*.yaml")), *sorted((rules / "alerts").glob("*.yaml"))]


def shortened_rules(target: Path, shorter: Mapping[str, str]) -> list[Path]:
    """Write every shipped rule file into the folder `target`, as `recording-gpu.yaml`, `alerts-gpu.yaml` and so on.

    `shorter` says what changes, `{"for: 3m": "for: 5s", "[10m]": "[20s]"}`: the `for` of alerts, and range windows in
    expressions. Thresholds stay. SettingsError when an entry changes nothing: the demo would not play what it says.
    """
    target.mkdir(parents=True, exist_ok=True)
    used: set[str] = set()
    written = []
    for path in shipped_rule_files():
        copy = target / f"{path.parent.name}-{path.name}"
        copy.write_text(_shortened(path.read_text(encoding="utf-8"), shorter, used), encoding="utf-8")
        written.append(copy)
    _refuse_unused(shorter, used)
    return written


def shorten(rules_text: str, shorter: Mapping[str, str]) -> str:
    """The text of one rule file with its times replaced; SettingsError when an entry of `shorter` changes nothing."""
    used: set[str] = set()
    text = _shortened(rules_text, shorter, used)
    _refuse_unused(shorter, used)
    return text


def _shortened(rules_text: str, shorter: Mapping[str, str], used: set[str]) -> str:
    yaml = YAML()
    yaml.width = 4096  # long expressions and texts keep their lines
    document = yaml.load(rules_text)
    for rule in _rules(document):
        key = f"for: {rule['for']}" if "for" in rule else ""
        if key in shorter:
            rule["for"] = shorter[key].removeprefix("for: ")
            used.add(key)
        for window, replacement in shorter.items():
            if window.startswith("[") and window in rule["expr"]:
                # The same class as before (a literal block), so that the expression keeps its lines.
                rule["expr"] = type(rule["expr"])(rule["expr"].replace(window, replacement))
                used.add(window)
    out = StringIO()
    yaml.dump(document, out)
    return out.getvalue()


def _rules(document: Any) -> Iterator[Any]:
    for group in document["groups"]:
        yield from group["rules"]


def _refuse_unused(shorter: Mapping[str, str], used: set[str]) -> None:
    unused = sorted(set(shorter) - used)
    if unused:
        raise SettingsError(
            f"the rules have no {', '.join(unused)}: write `for: 3m` or `[10m]` as the rule files have it"
        )
