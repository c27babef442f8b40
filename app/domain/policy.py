"""What to do about an alert: matchers, conditions, signs, confirmations, limits, steps, expectation."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from tunewarden.domain.ladder import Ladder, RungName
from tunewarden.domain.matcher import Matcher
from tunewarden.domain.order import HostCheck


class Mode(StrEnum):
    """How far a policy may go with a living job. `inherit` takes the settings' (or the job's) default."""

    OFF = "off"
    OBSERVE = "observe"
    ENFORCE = "enforce"
    INHERIT = "inherit"


class StepKind(StrEnum):
    """The actions of a plan, in the words of the policy files."""

    NOTIFY = "notify"
    SAVE = "save"
    STOP = "stop"
    REPLACE = "replace"
    RUN_COMMAND = "run_command"


DESTRUCTIVE = frozenset({StepKind.STOP, StepKind.REPLACE})  # they end a living generation


@dataclass(frozen=True, kw_only=True)
class Step:
    """One item of a plan.

    `knobs` for replace, or a `ladder` from which they are chosen when it is decided; `command` (argv), `environment`
    (names let through) and `timeout` for run_command.
    """

    kind: StepKind
    knobs: Mapping[str, str] = field(default_factory=dict)
    ladder: Ladder | None = None
    rung: RungName | None = None  # of the ladder: what was chosen
    allow_resolution_change: bool = False  # of a ladder: the user's consent to smaller images
    command: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
    timeout: timedelta = timedelta(seconds=60)
    allow_effective_batch_change: bool = False
    lose_unsaved: bool = False


class SignKind(StrEnum):
    """What a second sign is read from."""

    PROMQL = "promql"  # an expression that the service asks Prometheus: a non-empty answer is the sign
    STEP_RATE = "step_rate_below"  # the job's step rate as a share of its own median
    OOM_LINE = "oom_line"  # an out-of-memory line in the job's log


@dataclass(frozen=True, kw_only=True)
class Sign:
    """One second sign; any one of a policy's signs lets its acting steps run."""

    name: str
    kind: SignKind
    expr: str = ""
    share: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Confirmation:
    """A fresh measurement that must hold before a destructive step.

    PromQL asked by the service, or a check on the host.
    """

    expr: str = ""
    host: HostCheck | None = None


@dataclass(frozen=True, kw_only=True)
class JobCondition:
    """What a job must be like for the policy to act on it."""

    trainers: tuple[str, ...] = ()  # empty: any
    labels: tuple[Matcher, ...] = ()
    min_age: timedelta = timedelta(0)
    single_node: bool = False
    max_ranks: int | None = None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """How often. `group` is the equivalence group that budgets count in."""

    replacements: int = 3  # per job and window
    window: timedelta = timedelta(hours=24)
    save_interval: timedelta = timedelta(minutes=30)
    cooldown: timedelta = timedelta(minutes=10)
    group: str = "memory"


@dataclass(frozen=True, kw_only=True)
class Expectation:
    """What must be true of the new generation, and by when."""

    expr: str = ""  # PromQL; a non-empty answer means: the condition STILL holds
    host: HostCheck | None = None  # the same, from the agent's samples
    verify_for: timedelta = timedelta(minutes=5)
    steps: int = 50
    deadline: timedelta = timedelta(minutes=15)


@dataclass(frozen=True, kw_only=True)
class Policy:
    """One policy file. `digest` is the sha256 of its text: a remediation keeps the one it started with."""

    name: str
    matchers: tuple[Matcher, ...]
    mode: Mode = Mode.INHERIT
    enabled: bool = True  # shipped policies that are off until the settings switch them on are False
    job: JobCondition = JobCondition()
    signs: tuple[Sign, ...] = ()
    recheck: timedelta = timedelta(seconds=15)
    confirm: tuple[Confirmation, ...] = ()
    limits: Limits = Limits()
    steps: tuple[Step, ...] = ()
    expect: Expectation = Expectation()
    diagnose: bool = False  # the notice names the cause of low utilisation
    silent_in: tuple[str, ...] = ()  # phases of the job in which no step is due, so that none is missed
    after_oom: bool = False  # acts only on a job that died of OOM and waits to be launched again: nothing left to lose
    file: str = ""
    digest: str = ""

    @property
    def destructive(self) -> bool:
        return any(step.kind in DESTRUCTIVE for step in self.steps)

    @property
    def acts(self) -> bool:
        return any(step.kind is not StepKind.NOTIFY for step in self.steps)
