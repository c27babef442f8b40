"""The pages of docs/reference hold every setting, metric, reason, action, alert and command; links lead somewhere."""

import re
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from typer.main import get_command

from tunewarden.cli import cli
from tunewarden.config import describe
from tunewarden.domain.decision import Verdict
from tunewarden.domain.policy import StepKind
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import State

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def _page(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def _commands() -> list[str]:
    group = get_command(cli)
    names = []
    for name, command in sorted(group.commands.items()):  # type: ignore[attr-defined]
        below = getattr(command, "commands", None)
        names += [f"{name} {inner}" for inner in sorted(below)] if below else [name]
    return names


def _options() -> list[tuple[str, str]]:
    group = get_command(cli)
    return [
        (name, option)
        for name, command in sorted(group.commands.items())  # type: ignore[attr-defined]
        for parameter in command.params
        for option in parameter.opts
        if option.startswith("--") and option != "--help"
    ]


@pytest.mark.parametrize("command", _commands())
def test_every_command_is_documented(command: str) -> None:
    """docs/reference/commands.md has a row for each command."""
    assert f"`tunewarden {command}" in _page("commands.md")


@pytest.mark.parametrize(("command", "option"), _options())
def test_every_option_is_documented(command: str, option: str) -> None:
    """The command's row names each of its options."""
    row = next(line for line in _page("commands.md").splitlines() if f"`tunewarden {command}" in line)

    assert option in row


@pytest.mark.parametrize("name", [name for name, _, _ in describe()])
def test_every_setting_is_documented(name: str) -> None:
    """docs/reference/settings.md has each setting in backticks."""
    assert f"`{name}`" in _page("settings.md")


@pytest.mark.parametrize("reason", list(Reason))
def test_every_reason_is_documented(reason: Reason) -> None:
    """docs/reference/reasons.md explains each reason."""
    assert f"`{reason}`" in _page("reasons.md")


@pytest.mark.parametrize("word", [*StepKind, *Verdict])
def test_every_action_and_verdict_is_documented(word: str) -> None:
    """docs/reference/policies.md names each step and each verdict."""
    assert f"`{word}`" in _page("policies.md") + _page("reasons.md")


@pytest.mark.parametrize("state", list(State))
def test_every_state_of_a_remediation_is_documented(state: State) -> None:
    """docs/reference/remediations.md names each state."""
    assert f"`{state}`" in _page("remediations.md")


def test_every_alert_is_documented() -> None:
    """docs/reference/alerts.md has a heading for each alert of the shipped rules."""
    alerts = [
        rule["alert"]
        for path in sorted((ROOT / "rules" / "alerts").glob("*.yaml"))
        for group in YAML(typ="safe").load(path.read_text(encoding="utf-8"))["groups"]
        for rule in group["rules"]
    ]

    assert alerts != []
    assert [alert for alert in alerts if not re.search(rf"^#+ .*{alert}", _page("alerts.md"), re.M)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page: Path) -> None:
    """A relative link in a page names a file that is there."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    targets = re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", text)

    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("name", ["README"])
def test_the_chinese_page_has_the_same_commands(name: str) -> None:
    """English and Chinese pages show the same commands and files."""
    english = re.findall(r"```(?:sh|yaml)\n(.*?)```", (ROOT / f"{name}.md").read_text(encoding="utf-8"), re.S)
    chinese = re.findall(r"```(?:sh|yaml)\n(.*?)```", (ROOT / f"{name}.zh-CN.md").read_text(encoding="utf-8"), re.S)

    assert chinese == english
