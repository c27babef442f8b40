"""The settings: built once, from a file and the environment. Nothing else reads the environment.

    environment (TUNEWARDEN_PORT, TUNEWARDEN_LIMITS__ACTIONS_PER_HOUR)   wins over
    a settings file (--config, TUNEWARDEN_CONFIG, or <state_dir>/settings.yaml)   wins over the defaults

Every fault is reported at once: by file:line, or by the variable's name. An unknown key is a fault.
"""

import contextlib
import os
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_core import ErrorDetails

from tunewarden.config_sections import (
    ActionLimits,
    DingTalkTarget,
    Duration,
    PolicyOverride,
    PruneLimits,
    Section,
    is_loopback,
)
from tunewarden.config_sources import SettingsFile, holds, merge, read_environment, read_file, variable_of
from tunewarden.domain.duration import format_duration
from tunewarden.errors import FaultsFound

_SHORTEST_HEARTBEAT, _LONGEST_HEARTBEAT = timedelta(milliseconds=200), timedelta(minutes=5)


class Settings(Section):
    """All settings. Build it by `load_settings`; tests may build it whole: `Settings(state_dir=tmp_path)`."""

    host: str = Field(default="127.0.0.1", description="the address that the service listens on")
    port: Annotated[int, Field(ge=0, le=65535)] = Field(default=9750, description="its port; 0: any free one")
    url: str = Field(
        default="", description="where agents and the command line find the service; default: host and port"
    )
    state_dir: Path = Field(
        default=Path("~/.local/state/tunewarden"),
        description="folder of store, tokens and runs; default: tunewarden in $XDG_STATE_HOME or ~/.local/state",
    )
    store_path: Path | None = Field(
        default=None, description="the database; default: <state_dir>/tunewarden.db, on a local disk"
    )
    webhook_token_file: Path | None = Field(
        default=None, description="Alertmanager's token; default: <state_dir>/webhook.token"
    )
    agent_token_file: Path | None = Field(
        default=None, description="the token of agents and the command line; default: <state_dir>/agent.token"
    )
    metrics_token_file: Path | None = Field(
        default=None, description="a token that may read /metrics beyond loopback, beside the agents' one"
    )
    webhook_user: str | None = Field(
        default=None, description="a user for basic authentication of the webhook, beside the token"
    )
    webhook_password_file: Path | None = Field(default=None, description="the file that holds that user's password")
    max_body_bytes: Annotated[int, Field(ge=1024)] = Field(
        default=32 * 1024 * 1024,
        description="the largest webhook body, in bytes; a larger one gets 413, which Alertmanager won't retry",
    )
    prometheus_url: str | None = Field(default=None, description="the Prometheus that conditions are asked of")
    alertmanager_url: str | None = Field(
        default=None, description="the Alertmanager that is asked which alerts are still there"
    )
    node_aliases: dict[str, str] = Field(default={}, description="node names in alerts and the agents' names for them")
    enforce: bool = Field(
        default=False, description="policies that inherit may stop a living job; false: they say what they would do"
    )
    shipped_policies: bool = Field(default=True, description="false: only the policies of `policy_dirs` count")
    policy_dirs: tuple[Path, ...] = Field(default=(), description="folders of further policy files")
    policies: dict[str, PolicyOverride] = Field(default={}, description="changes of single policies, by name")
    episode_close_after: Duration = Field(
        default=timedelta(minutes=5), description="an episode closes so long after resolved"
    )
    episode_expires_after: Duration = Field(
        default=timedelta(hours=24),
        description="an unresolved episode not seen again ends so, where no alertmanager_url is set",
    )
    cooldown: Duration = Field(
        default=timedelta(minutes=10), description="a job's alerts start nothing so long after a remediation"
    )
    limits: ActionLimits = Field(default=ActionLimits(), description="how much may be done in all")
    prune: PruneLimits = Field(default=PruneLimits(), description="how long things are kept")
    dingtalk: tuple[DingTalkTarget, ...] = Field(default=(), description="the DingTalk robots")
    default_target: str | None = Field(default=None, description="the robot that gets messages; default: the first")
    pushgateway: SecretStr | None = Field(
        default=None, description="a Pushgateway that `run` pushes the job's series to; its URL may hold a password"
    )
    heartbeat: Duration = Field(
        default=timedelta(seconds=5), description="how often agents send samples; three missing: the job is lost"
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        names = [target.name for target in self.dingtalk]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two `dingtalk` targets are called {twice[0]}")
        if self.default_target is not None and self.default_target not in names:
            raise ValueError(f"`default_target`: no `dingtalk` target is called {self.default_target}")
        if (self.webhook_user is None) != (self.webhook_password_file is None):
            raise ValueError("give both `webhook_user` and `webhook_password_file`, or none")
        if not _SHORTEST_HEARTBEAT <= self.heartbeat <= _LONGEST_HEARTBEAT:
            raise ValueError("`heartbeat` must be between 200ms and 5m")
        for key in ("url", "prometheus_url", "alertmanager_url", "pushgateway"):
            value = getattr(self, key)
            value = value.get_secret_value() if isinstance(value, SecretStr) else value
            if value and urlsplit(value).scheme not in ("http", "https"):
                raise ValueError(f"`{key}` must begin with http:// or https://")
        return self

    @property
    def loopback(self) -> bool:
        """True when only this machine can reach the service."""
        return is_loopback(self.host)

    @property
    def state(self) -> Path:
        """`state_dir` with ~ expanded."""
        return self.state_dir.expanduser()

    @property
    def store(self) -> Path:
        """The database file."""
        return self.store_path.expanduser() if self.store_path else self.state / "tunewarden.db"

    @property
    def webhook_token(self) -> Path:
        """The file of Alertmanager's token."""
        return self.webhook_token_file.expanduser() if self.webhook_token_file else self.state / "webhook.token"

    @property
    def agent_token(self) -> Path:
        """The file of the agents' and the command line's token."""
        return self.agent_token_file.expanduser() if self.agent_token_file else self.state / "agent.token"

    @property
    def service_url(self) -> str:
        """Where agents and the command line find the service, without a trailing slash."""
        if self.url:
            return self.url.rstrip("/")
        host = "127.0.0.1" if self.host in ("0.0.0.0", "", "::") else self.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


def load_settings(overrides: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of this run. `overrides` are what the command line said (`config`, `state_dir`, `port` …).

    `environ` is os.environ unless a test passes another. Raises FaultsFound with every fault.
    """
    environ = os.environ if environ is None else environ
    words = {name: value for name, value in (overrides or {}).items() if value is not None}
    from_environment, faults = read_environment(environ, set(Settings.model_fields))
    folder = words.get("state_dir") or from_environment.get("state_dir") or _default_state_dir(environ)
    path = words.pop("config", None) or environ.get("TUNEWARDEN_CONFIG")
    file = read_file(Path(path) if path else Path(folder).expanduser() / "settings.yaml", must_exist=bool(path))
    faults += file.faults
    values = merge(merge({"state_dir": folder, **file.values}, from_environment), words)
    try:
        settings = Settings.model_validate(values)
    except ValidationError as error:
        raise FaultsFound(faults + [_fault(item, file, from_environment, words) for item in error.errors()]) from None
    if faults:
        raise FaultsFound(faults)
    return settings


# What `run` and the commands that ask the service need; the rest of the settings is the service's.
_REACH = frozenset({"host", "port", "url", "state_dir", "agent_token_file", "heartbeat"})
_NICE = frozenset({"pushgateway"})  # of `run`; it goes without where this is what is wrong


def load_reach(environ: Mapping[str, str] | None = None) -> tuple[Settings, list[str]]:
    """The settings to find the service with, and the faults of all the others.

    `tunewarden stop` is the emergency brake: a typo beside a DingTalk target must not take it away. Raises FaultsFound
    only for what is needed here.
    """
    try:
        return load_settings(environ=environ), []
    except FaultsFound as error:
        faults = error.faults
    environ = os.environ if environ is None else environ
    for names in (_REACH | _NICE, _REACH):
        with contextlib.suppress(ValidationError):
            return Settings.model_validate(_only(names, environ)), faults
    raise FaultsFound(faults)


def _only(names: frozenset[str], environ: Mapping[str, str]) -> dict[str, Any]:
    """What file and environment say of these settings."""
    from_environment, _ = read_environment(environ, set(names))
    folder = from_environment.get("state_dir") or _default_state_dir(environ)
    path = environ.get("TUNEWARDEN_CONFIG")
    file = read_file(Path(path) if path else Path(folder).expanduser() / "settings.yaml", must_exist=False)
    needed = {name: value for name, value in file.values.items() if name in names}
    return merge({"state_dir": folder, **needed}, from_environment)


def environment() -> dict[str, str]:
    """A copy of the environment, for programs that we start."""
    return dict(os.environ)


def _default_state_dir(environ: Mapping[str, str]) -> str:
    base = environ.get("XDG_STATE_HOME", "")
    return f"{base}/tunewarden" if base.startswith("/") else "~/.local/state/tunewarden"


def _fault(item: ErrorDetails, file: SettingsFile, environment: dict[str, Any], words: dict[str, Any]) -> str:
    loc = item["loc"]
    dotted = ".".join(str(part) for part in loc)
    text = "unknown setting" if item["type"] == "extra_forbidden" else item["msg"].removeprefix("Value error, ")
    if loc and loc[0] in words:
        return f"--{str(loc[0]).replace('_', '-')}: {text}"
    if holds(environment, loc):
        return f"{variable_of(loc)}: {text}"
    if file.path is None:
        return f"{dotted}: {text}" if dotted else text
    return f"{file.path}:{file.line_of(loc)}: {dotted + ': ' if dotted else ''}{text}"


def describe() -> list[tuple[str, str, str]]:
    """Every setting as (name, default, sentence); sections are dotted, `dingtalk[].` is one item of the list."""
    return list(_described(Settings, ""))


_SECTIONS: dict[str, tuple[type[Section], str]] = {
    "policies": (PolicyOverride, "policies.<name>."),
    "limits": (ActionLimits, "limits."),
    "prune": (PruneLimits, "prune."),
    "dingtalk": (DingTalkTarget, "dingtalk[]."),
}


def _described(section: type[Section], prefix: str) -> list[tuple[str, str, str]]:
    rows = []
    for name, field in section.model_fields.items():
        if not prefix and name in _SECTIONS:
            inner, inner_prefix = _SECTIONS[name]
            rows += _described(inner, inner_prefix)
            continue
        rows.append(
            (
                prefix + name,
                _shown(field.get_default()) if not field.is_required() else "required",
                field.description or "",
            )
        )
    return rows


def _shown(default: Any) -> str:
    match default:
        case None | "" | () | {}:
            return ""
        case timedelta():
            return format_duration(default)
        case bool():
            return str(default).lower()
        case tuple():
            return ", ".join(str(item) for item in default)
        case _:
            return str(default)
