"""The sections of the settings: frozen records with a default and a sentence for each key."""

import ipaddress
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import parse_qs, urlsplit

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, model_validator

from tunewarden.domain.duration import parse_duration
from tunewarden.domain.policy import Mode
from tunewarden.domain.target import Language, Secret, Target

DINGTALK_HOST = "oapi.dingtalk.com"


def _duration(value: Any) -> timedelta:
    if isinstance(value, timedelta):
        return value
    return parse_duration(str(value))


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


Duration = Annotated[timedelta, BeforeValidator(_duration)]
Count = Annotated[int, Field(ge=0)]


class Section(BaseModel):
    """Frozen, and closed to unknown keys. Inputs never show in an error: one of them may be a secret."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True, validate_default=True)


class PolicyOverride(Section):
    """What the settings change in one policy file, by the policy's name."""

    mode: Mode | None = Field(default=None, description="off, observe, enforce or inherit; replaces the policy's own")
    enabled: bool | None = Field(default=None, description="switches a shipped policy on or off")


class ActionLimits(Section):
    """How much may be done in all. One place for the defaults of design.md."""

    actions_per_hour: Count = Field(
        default=10, description="actions of all jobs in a sliding hour; reaching it opens the breaker"
    )
    replacements_per_day: Count = Field(
        default=3, description="replacements of one job in a sliding 24 h, over its generations"
    )
    share_from_jobs: Count = Field(default=4, description="from how many running jobs on the share below counts")
    share_percent: Annotated[int, Field(ge=0, le=100)] = Field(
        default=50,
        description="the largest share of running jobs that may be acted on at once; reaching it opens the breaker",
    )
    broken_in_a_row: Annotated[int, Field(ge=1)] = Field(
        default=3, description="remediations that end `broken` before the breaker opens"
    )


class PruneLimits(Section):
    """How long closed things are kept. Open ones never go."""

    deliveries: Duration = Field(default=timedelta(days=14), description="how long handled deliveries are kept")
    decisions: Duration = Field(
        default=timedelta(days=90), description="how long decisions and closed episodes are kept"
    )
    remediations: Duration = Field(
        default=timedelta(days=365), description="how long ended remediations and jobs are kept"
    )
    audit: Duration = Field(default=timedelta(days=365), description="how long audit lines are kept")
    outbox: Duration = Field(default=timedelta(days=30), description="how long sent and dead messages are kept")
    deliveries_bytes: Count = Field(
        default=512 * 1024 * 1024, description="the most bytes of bodies kept; the oldest handled go first"
    )
    every: Duration = Field(default=timedelta(minutes=10), description="how often it is looked for things to prune")


class DingTalkTarget(Section):
    """One robot of a DingTalk group. The URL holds its access token, so it is a secret like `secret`."""

    name: Annotated[str, Field(min_length=1, max_length=64)] = Field(
        description="what policies and `message test` call it"
    )
    url: SecretStr | None = Field(default=None, description="the robot's URL with its access_token; or `url_file`")
    url_file: Path | None = Field(default=None, description="a file that holds the URL")
    secret: SecretStr | None = Field(default=None, description="the signing secret (SEC…); or `secret_file`")
    secret_file: Path | None = Field(default=None, description="a file that holds the signing secret")
    keyword: str = Field(
        default="", max_length=64, description="the robot's keyword; added to each message that lacks it"
    )
    language: Literal["zh", "en", "both"] = Field(default="zh", description="the language of messages: zh, en or both")
    at_mobiles: tuple[str, ...] = Field(default=(), description="mobile numbers to mention when a person must act")
    at_user_ids: tuple[str, ...] = Field(default=(), description="user ids to mention when a person must act")
    verbose: bool = Field(default=False, description="a third message when the job is started again")
    proxy: SecretStr | None = Field(
        default=None, description="an HTTP proxy for this robot; else HTTPS_PROXY and NO_PROXY hold"
    )
    ca_bundle: Path | None = Field(default=None, description="a PEM file of the CAs to trust for this robot")
    allowed_hosts: tuple[str, ...] = Field(
        default=(), description="hosts that the URL may name besides DingTalk's, by plain http too"
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if (self.url is None) == (self.url_file is None):
            raise ValueError("give exactly one of `url` and `url_file`")
        if self.secret is not None and self.secret_file is not None:
            raise ValueError("give at most one of `secret` and `secret_file`")
        self._check_url(self.robot_url())
        self.robot_secret()
        return self

    def _check_url(self, url: str) -> None:
        parts = urlsplit(url)
        query = parse_qs(parts.query)
        host = parts.hostname or ""
        if host != DINGTALK_HOST and host not in self.allowed_hosts:
            raise ValueError(f"the URL's host is neither {DINGTALK_HOST} nor in `allowed_hosts`")
        if parts.scheme != "https" and not (parts.scheme == "http" and host in self.allowed_hosts):
            raise ValueError("the URL must begin with https://")
        if extra := sorted({"timestamp", "sign", "secret"} & query.keys()):
            raise ValueError(
                f"the URL already holds {', '.join(extra)}: give the URL as DingTalk shows it, and `secret`"
            )
        if "access_token" not in query:
            raise ValueError("the URL holds no access_token")

    def robot_url(self) -> str:
        """The URL, read from its file at each call. ValueError when the file can't be read."""
        return self.url.get_secret_value() if self.url else _first_line(self.url_file, "url_file")

    def robot_secret(self) -> str | None:
        """The signing secret, or None. ValueError when its file can't be read."""
        if self.secret_file is not None:
            return _first_line(self.secret_file, "secret_file")
        return self.secret.get_secret_value() if self.secret else None

    def target(self) -> Target:
        """The record that the reporter and its adapter take. ValueError when a file can't be read."""
        secret = self.robot_secret()
        return Target(
            name=self.name,
            robot_url=Secret(self.robot_url()),
            secret=None if secret is None else Secret(secret),
            keyword=self.keyword,
            language=Language(self.language),
            at_mobiles=self.at_mobiles,
            at_user_ids=self.at_user_ids,
            verbose=self.verbose,
            proxy=None if self.proxy is None else Secret(self.proxy.get_secret_value()),
            ca_bundle="" if self.ca_bundle is None else str(self.ca_bundle.expanduser()),
            allowed_hosts=self.allowed_hosts,
        )


def _first_line(path: Path | None, key: str) -> str:
    if path is None:
        raise ValueError(f"`{key}` is missing")
    try:
        text = path.expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"`{key}`: {path} can't be read ({type(error).__name__})") from None
    if not text or "\n" in text:
        raise ValueError(f"`{key}`: {path} must hold one line")
    return text
