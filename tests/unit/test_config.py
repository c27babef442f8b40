"""The settings: defaults, file, environment, and every fault named by file:line or variable."""

import os
from datetime import timedelta
from pathlib import Path

import pytest

from tunewarden.config import Settings, describe, load_reach, load_settings
from tunewarden.domain.target import Language
from tunewarden.errors import FaultsFound

ROBOT = "https://oapi.dingtalk.com/robot/send?access_token=abcdef0123456789"
REFERENCE = Path(__file__).resolve().parents[2] / "docs" / "reference" / "settings.md"


def _faults(text: str, tmp_path: Path, environ: dict[str, str] | None = None) -> list[str]:
    path = tmp_path / "tunewarden.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FaultsFound) as found:
        load_settings({"config": path, "state_dir": tmp_path}, environ or {})
    return [fault.replace(f"{tmp_path}/", "") for fault in found.value.faults]


def test_defaults_need_neither_file_nor_environment(tmp_path: Path) -> None:
    """Without a file and variables the service listens on loopback and stops nothing."""
    settings = load_settings({}, {"XDG_STATE_HOME": str(tmp_path)})

    assert (settings.host, settings.port, settings.enforce) == ("127.0.0.1", 9750, False)
    assert settings.service_url == "http://127.0.0.1:9750"
    assert settings.store == tmp_path / "tunewarden" / "tunewarden.db"
    assert settings.webhook_token == tmp_path / "tunewarden" / "webhook.token"


def test_a_settings_file_in_the_state_folder_is_found(tmp_path: Path) -> None:
    """<state_dir>/settings.yaml is read when it is there."""
    (tmp_path / "settings.yaml").write_text("cooldown: 20m\n")

    settings = load_settings({"state_dir": tmp_path}, {})

    assert settings.cooldown == timedelta(minutes=20)


def test_the_environment_wins_over_the_file_and_words_over_both(tmp_path: Path) -> None:
    """Sections are merged key by key."""
    path = tmp_path / "tunewarden.yaml"
    path.write_text("port: 1\nlimits:\n  actions_per_hour: 7\n  share_percent: 30\n")
    environ = {
        "TUNEWARDEN_CONFIG": str(path),
        "TUNEWARDEN_PORT": "2",
        "TUNEWARDEN_LIMITS__ACTIONS_PER_HOUR": "8",
        "TUNEWARDEN_NODE_ALIASES": '{"10.0.0.7:9400": "gpu-7"}',
    }

    settings = load_settings({"port": 3, "state_dir": tmp_path}, environ)

    assert settings.port == 3
    assert (settings.limits.actions_per_hour, settings.limits.share_percent) == (8, 30)
    assert settings.node_aliases == {"10.0.0.7:9400": "gpu-7"}


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    """Each by its line or its variable."""
    text = "port: 99999\n# a comment\nlimits:\n  actions_per_hour: -1\n  colour: red\n"
    text += "dingtalk:\n  - name: ops\ncolor: blue\n"

    faults = _faults(text, tmp_path, {"TUNEWARDEN_MAX_BODY_BYTES": "much", "TUNEWARDEN_PORTT": "1"})

    assert [fault.split(": ")[0] for fault in faults] == [
        "TUNEWARDEN_PORTT",
        "tunewarden.yaml:1",
        "TUNEWARDEN_MAX_BODY_BYTES",
        "tunewarden.yaml:4",
        "tunewarden.yaml:5",
        "tunewarden.yaml:7",
        "tunewarden.yaml:8",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("port: [\n", "tunewarden.yaml:2"),
        ("port: 1\nport: 2\n", "tunewarden.yaml:2"),
        ("- a\n", "tunewarden.yaml:1: settings are"),
        ("cooldown: 5 minutes\n", "tunewarden.yaml:1: cooldown: '5 minutes' is no duration"),
        ("policies:\n  vram-95-stop:\n    mode: maybe\n", "tunewarden.yaml:3: policies.vram-95-stop.mode"),
        ("default_target: ops\n", "`default_target`: no `dingtalk` target"),
        ("webhook_user: prom\n", "give both `webhook_user` and `webhook_password_file`"),
        ("prometheus_url: localhost:9090\n", "`prometheus_url` must begin with http"),
        ("pushgateway: localhost:9091\n", "`pushgateway` must begin with http"),
        (
            "dingtalk:\n  - name: a\n    url: https://evil.example/robot/send?access_token=SECRETX\n",
            "neither oapi.dingtalk",
        ),
        (f"dingtalk:\n  - name: a\n    url: {ROBOT}&sign=SECRETX\n", "already holds sign"),
        (f"dingtalk:\n  - name: a\n    url: {ROBOT}\n    url_file: /x\n", "exactly one of `url` and `url_file`"),
        ("dingtalk:\n  - name: a\n    url: http://oapi.dingtalk.com/robot/send?access_token=SECRETX\n", "https://"),
        ("dingtalk:\n  - name: a\n    url_file: /nowhere/SECRETX-free\n", "can't be read"),
        (f"dingtalk:\n  - {{name: a, url: '{ROBOT}'}}\n  - {{name: a, url: '{ROBOT}'}}\n", "two `dingtalk` targets"),
    ],
)
def test_a_fault_says_what_is_wrong_and_no_secret(text: str, fault: str, tmp_path: Path) -> None:
    """One line, the place first."""
    faults = "\n".join(_faults(text, tmp_path))

    assert fault in faults
    assert "SECRETX&" not in faults and "=SECRETX" not in faults and "abcdef0123456789" not in faults


def test_a_file_that_is_named_must_be_there(tmp_path: Path) -> None:
    """--config with a wrong name is a fault, not the defaults."""
    with pytest.raises(FaultsFound, match="there is no such file"):
        load_settings({"config": tmp_path / "nothing.yaml"}, {})


def test_what_a_job_finds_in_its_environment_is_no_setting(tmp_path: Path) -> None:
    """A service started from within a job's shell does not stumble over its variables."""
    environ = {"TUNEWARDEN_JOB": "j-1", "TUNEWARDEN_CONTROL_DIR": "/x", "TUNEWARDEN_GENERATION": "2"}

    assert load_settings({"state_dir": tmp_path}, environ).port == 9750


def test_secrets_never_print(tmp_path: Path) -> None:
    """Neither the record nor its JSON shows the token, the signing secret or the proxy's password."""
    text = f"dingtalk:\n  - name: ops\n    url: {ROBOT}\n    secret: SECabc\n    proxy: http://u:pw@proxy:3128\n"
    path = tmp_path / "tunewarden.yaml"
    path.write_text(text)

    settings = load_settings({"config": path, "state_dir": tmp_path}, {})
    shown = repr(settings) + str(settings) + settings.model_dump_json() + repr(settings.dingtalk[0].target())

    assert not [secret for secret in ("abcdef0123456789", "SECabc", "pw@") if secret in shown]


def test_a_target_is_read_from_its_files(tmp_path: Path) -> None:
    """`url_file` and `secret_file` hold one line each."""
    (tmp_path / "url").write_text(ROBOT + "\n")
    (tmp_path / "secret").write_text("SECabc\n")
    path = tmp_path / "tunewarden.yaml"
    item = f"{{name: ops, url_file: {tmp_path}/url, secret_file: {tmp_path}/secret, language: both}}"
    path.write_text(f"dingtalk:\n  - {item}\n")

    target = load_settings({"config": path, "state_dir": tmp_path}, {}).dingtalk[0].target()

    assert target.robot_url.reveal() == ROBOT
    assert target.secret is not None
    assert target.secret.reveal() == "SECabc"
    assert target.language is Language.BOTH


@pytest.mark.parametrize(
    ("host", "loopback", "url"),
    [
        ("127.0.0.1", True, "http://127.0.0.1:9750"),
        ("::1", True, "http://[::1]:9750"),
        ("localhost", True, "http://localhost:9750"),
        ("0.0.0.0", False, "http://127.0.0.1:9750"),
        ("10.0.0.3", False, "http://10.0.0.3:9750"),
    ],
)
def test_it_knows_who_can_reach_it(host: str, loopback: bool, url: str, tmp_path: Path) -> None:
    """Only a loopback address is this machine's own."""
    settings = Settings(host=host, state_dir=tmp_path)

    assert (settings.loopback, settings.service_url) == (loopback, url)


def test_every_setting_is_in_the_reference() -> None:
    """docs/reference/settings.md has one row for each, with its default and sentence."""
    text = REFERENCE.read_text(encoding="utf-8")
    missing = [
        name for name, default, sentence in describe() if f"| `{name}` | {default or '-'} | {sentence} |" not in text
    ]

    assert missing == []
    assert all(sentence for _name, _default, sentence in describe())


def test_a_typo_elsewhere_does_not_hide_the_service(tmp_path: Path) -> None:
    """`tunewarden stop` still finds the service; the faults are handed back to be told."""
    path = tmp_path / "settings.yaml"
    path.write_text("port: 9751\npromtheus_url: x\nenforce: yes please\ndingtalk: [{name: a, url_file: /none}]\n")

    settings, faults = load_reach({"TUNEWARDEN_STATE_DIR": str(tmp_path)})

    assert settings.service_url == "http://127.0.0.1:9751"
    assert settings.agent_token == tmp_path / "agent.token"
    assert sorted(fault.split(":")[1] for fault in faults) == ["2", "3", "4"]


def test_a_fault_in_what_is_needed_is_a_fault(tmp_path: Path) -> None:
    """A port that is no port leaves nothing to ask."""
    (tmp_path / "settings.yaml").write_text("port: many\n")

    with pytest.raises(FaultsFound, match="port"):
        load_reach({"TUNEWARDEN_STATE_DIR": str(tmp_path)})


def test_a_pipe_and_an_endless_nest_are_faults(tmp_path: Path) -> None:
    """Reading a pipe would wait for ever; YAML nested thousands deep would be a traceback."""
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    with pytest.raises(FaultsFound) as found:
        load_settings({"config": pipe, "state_dir": tmp_path}, {})

    assert found.value.faults == [f"{pipe}: is no regular file"]
    assert _faults("a: " + "[" * 3000 + "]" * 3000, tmp_path) == ["tunewarden.yaml:1: no YAML"]


@pytest.mark.parametrize("heartbeat", ["0s", "100ms", "10m"])
def test_a_heartbeat_has_bounds(tmp_path: Path, heartbeat: str) -> None:
    """None at all would show no job; a rare one would call living jobs lost only after an hour."""
    with pytest.raises(FaultsFound, match="between 200ms and 5m"):
        load_settings({"state_dir": tmp_path, "heartbeat": heartbeat}, {})


def test_the_password_of_a_pushgateway_is_not_shown() -> None:
    """Neither by the settings as text, nor by the fault of an address that can't be used."""
    good, bad = "http://u:s3cr3t@gateway:9091", "gateway:9091/s3cr3t"
    settings = load_settings(environ={"TUNEWARDEN_PUSHGATEWAY": good})
    with pytest.raises(FaultsFound) as failed:
        load_settings(environ={"TUNEWARDEN_PUSHGATEWAY": bad})

    assert settings.pushgateway is not None
    assert settings.pushgateway.get_secret_value() == good
    assert "s3cr3t" not in repr(settings) + str(failed.value)


@pytest.mark.parametrize(
    ("address", "kept"), [("http://gateway:9091", "http://gateway:9091"), ("gateway:9091", None), (None, None)]
)
def test_a_fault_elsewhere_takes_no_pushgateway_away(address: str | None, kept: str | None) -> None:
    """And a fault in it takes `stop` from nobody."""
    environ = {"TUNEWARDEN_COOLDOWN": "x", **({"TUNEWARDEN_PUSHGATEWAY": address} if address else {})}
    settings, faults = load_reach(environ)

    assert faults != []
    assert (settings.pushgateway.get_secret_value() if settings.pushgateway else None) == kept
