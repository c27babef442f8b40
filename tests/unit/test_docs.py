"""The pages of docs/reference hold every setting, reason, action, alert and command; links lead somewhere.

What the pages for people print exists, works, and is the same in English and Chinese.
"""

import re
import textwrap
from pathlib import Path

import pytest
from ruamel.yaml import YAML
from typer.main import get_command

from tunewarden.adapters.policy_file import parse_policy
from tunewarden.adapters.tokens import alertmanager_lines
from tunewarden.api.wire import Payload
from tunewarden.cli import cli
from tunewarden.config import Settings, describe, load_settings
from tunewarden.domain.decision import Verdict
from tunewarden.domain.policy import StepKind
from tunewarden.domain.reason import Reason
from tunewarden.domain.remediation import State

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
TRANSLATED = sorted(
    {"README", "index", "security"}
    | {f"howto/{page.stem}" for folder in ("howto", "zh/howto") for page in (ROOT / "docs" / folder).glob("*.md")}
)
FOREIGN_KEYS = {"route", "receivers", "rule_files", "scrape_configs", "groups"}  # of Alertmanager and Prometheus


def _pair(name: str) -> tuple[Path, Path]:
    """The English and the Chinese page."""
    if name == "README":
        return ROOT / "README.md", ROOT / "README.zh-CN.md"
    return ROOT / "docs" / f"{name}.md", ROOT / "docs" / "zh" / f"{name}.md"


FOR_PEOPLE = [page for name in TRANSLATED for page in _pair(name)]


def _blocks(page: Path, *languages: str) -> list[str]:
    """The fenced blocks of these languages, in lists too."""
    found = re.findall(rf"^ *```(?:{'|'.join(languages)})\n(.*?)^ *```", page.read_text(encoding="utf-8"), re.S | re.M)
    return [textwrap.dedent(block) for block in found]


def _robot_file(folder: Path) -> Path:
    """A file that holds a URL of a robot; as a secret any one line does."""
    file = folder / "robot.url"
    file.write_text("https://oapi.dingtalk.com/robot/send?access_token=t\n", encoding="utf-8")
    return file


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


def _anchors(page: Path) -> set[str]:
    """The names that GitHub gives to the headings of a page."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    headings = re.findall(r"^#+ +(.*?) *$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_to_a_heading_find_it(page: Path) -> None:
    """What stands behind # in a link is a heading of the page that it leads to."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S)
    links = re.findall(r"\]\(((?!https?://)[^)#\s]*)#([^)\s]+)\)", text)
    wrong = [f"{to}#{name}" for to, name in links if name not in _anchors(page.parent / to if to else page)]

    assert wrong == []


@pytest.mark.parametrize("name", TRANSLATED)
def test_every_page_for_people_is_there_in_both_languages(name: str) -> None:
    """A guide without its Chinese page, or the other way round, fails."""
    english, chinese = _pair(name)

    assert (english.is_file(), chinese.is_file()) == (True, True)


@pytest.mark.parametrize("name", TRANSLATED)
def test_the_chinese_page_has_the_same_commands(name: str) -> None:
    """English and Chinese pages show the same commands and files, byte for byte."""
    english, chinese = (_blocks(page, "sh", "yaml", "ini") for page in _pair(name))

    assert chinese == english


@pytest.mark.parametrize("page", FOR_PEOPLE, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_commands_of_a_page_exist(page: Path) -> None:
    """Each `tunewarden WORD` in a page is a command, and each `--option` behind it is one of that command's."""
    known = {name.split()[0] for name in _commands()}
    options = set(_options())
    text = page.read_text(encoding="utf-8")
    code = "\n".join([*re.findall(r"^```.*?^```", text, re.S | re.M), *re.findall(r"`[^`\n]+`", text)])
    used = re.findall(r"(?:^|`|'|&& )tunewarden (?!listens|is )([a-z]+)([^\n`]*)", code, re.M)  # what serve says
    given = {(name, option) for name, rest in used for option in re.findall(r"--[a-z-]+", rest.split(" -- ")[0])}

    assert [name for name, _ in used if name not in known] == []
    assert given - options == set()


@pytest.mark.parametrize("page", FOR_PEOPLE, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_settings_and_policies_of_a_page_are_good(page: Path, tmp_path: Path) -> None:
    """Every YAML block is one of our files without a fault, or a file of Prometheus or Alertmanager."""
    unknown: list[str] = []
    faults: list[str] = []
    for number, block in enumerate(_blocks(page, "yaml")):
        keys = set(YAML(typ="safe").load(block))
        if "match" in keys:
            parse_policy(block, page, faults)
        elif not keys & FOREIGN_KEYS:
            unknown += sorted(keys - set(Settings.model_fields))
            file = tmp_path / f"settings-{number}.yaml"
            file.write_text(re.sub(r"_file: .*", f"_file: {_robot_file(tmp_path)}", block), encoding="utf-8")
            load_settings({"config": file}, environ={})

    assert (unknown, faults) == ([], [])


@pytest.mark.parametrize("page", FOR_PEOPLE, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_the_lines_for_alertmanager_are_those_that_serve_prints(page: Path) -> None:
    """Receiver and path of the token are the same in the pages and in the terminal."""
    printed = alertmanager_lines("http://127.0.0.1:9750", Path("~/.local/state/tunewarden/webhook.token"))
    receivers = printed[printed.index("receivers:") :]
    copy = next(line for line in printed.splitlines() if "sudo install" in line).removeprefix("#").strip()
    shown = [block for block in _blocks(page, "yaml") if "webhook_configs" in block]

    assert [block for block in shown if receivers not in block] == []
    assert copy in page.read_text(encoding="utf-8") or not shown


def test_the_example_of_a_webhook_body_has_the_shape() -> None:
    """docs/examples/payload.json is what `simulate` takes."""
    body = (ROOT / "docs" / "examples" / "payload.json").read_bytes()

    assert [alert.labels["alertname"] for alert in Payload.model_validate_json(body).alerts] == ["GpuMemoryNearlyFull"]
