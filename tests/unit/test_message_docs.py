"""The pages about messages say what the code does."""

import re
from pathlib import Path

import pytest

from tunewarden.adapters.dingtalk_address import robot_address
from tunewarden.adapters.dingtalk_answers import ERRCODES, Answer, classify
from tunewarden.domain.message import NoticeKind
from tunewarden.domain.target import Secret, Target
from tunewarden.errors import SettingsError
from tunewarden.messages.words_en import EN
from tunewarden.testing import FakeClock

DOCS = Path(__file__).parents[2] / "docs"
REFERENCE = (DOCS / "reference" / "messages.md").read_text(encoding="utf-8")
TEMPLATES = Path(__file__).parents[2] / "app" / "messages" / "templates"


def test_the_reference_lists_every_code():
    """A code that is handled is documented."""
    cells = " ".join(line.split("|")[1] for line in REFERENCE.splitlines() if line.startswith("| "))

    assert [code for code in ERRCODES if not re.search(rf"(?<!\d){code}\b", cells)] == []


def test_the_reference_lists_every_name():
    """Kinds, actions, causes, ends, signs and numbers."""
    names = [*NoticeKind, *EN.actions, *EN.causes, *EN.ends, *EN.signs, *EN.numbers]

    assert [str(name) for name in names if f"`{name}`" not in REFERENCE] == []


def test_the_reference_lists_every_fact_that_a_template_names():
    """Whoever writes a notice finds its facts there."""
    own = {"id", "job", "alert", "status", "why", "earlier", "sign", "vram", "observed", "link", "changes", "numbers"}
    used: set[str] = set()
    for template in TEMPLATES.glob("*/*.j2"):
        text = template.read_text(encoding="utf-8")
        for inside in re.findall(r"\{[{%](.*?)[%}]\}", text):
            bare = re.sub(r'"[^"]*"', "", inside)
            used |= set(re.findall(r"[a-z_]+", bare)) - {"if", "elif", "else", "endif", "and", "or", "not"}
    documented = set(re.findall(r"`([a-z_]+)`", REFERENCE))

    assert used - own - {"mention", "node"} - documented == set()


@pytest.mark.parametrize("page", ["howto/dingtalk.md", "zh/howto/dingtalk.md"])
@pytest.mark.parametrize(
    ("errmsg", "said"),
    [
        ("sign not match", "the signature does not match"),
        ("invalid timestamp", "this host's clock is wrong"),
        ("keywords not in content", "the robot's keyword is not in the message"),
        ("ip 1.2.3.4 not in whitelist", "this host's address is not in the robot's IP list"),
    ],
)
def test_the_howto_quotes_what_is_printed(page: str, errmsg: str, said: str):
    """A person who searches for the words finds them."""
    body = f'{{"errcode": 310000, "errmsg": "{errmsg}"}}'.encode()
    result = classify(Answer(status=200, body=body), proxy="", now=FakeClock().now())

    assert said in result.detail
    assert said in (DOCS / page).read_text(encoding="utf-8")


def test_the_url_of_the_howto_is_accepted():
    """The form that DingTalk shows."""
    url = re.search(r"https://oapi\S+access_token=", (DOCS / "howto" / "dingtalk.md").read_text(encoding="utf-8"))
    assert url is not None

    assert robot_address(Target(name="ops", robot_url=Secret(url[0] + "t"))).host == "oapi.dingtalk.com"
    with pytest.raises(SettingsError):
        robot_address(Target(name="ops", robot_url=Secret(url[0])))
