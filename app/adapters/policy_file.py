"""Policy files: YAML in, policies out, with every fault at once as `file:line: what, why, what to do`."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tunewarden.adapters.policy_parts import duration, expression, host_check, read_confirmation, read_sign, read_step
from tunewarden.adapters.yaml_fields import Faults, Fields, count_of, load_tree, text_of, texts_of, truth_of
from tunewarden.domain.job_series import PHASES
from tunewarden.domain.matcher import Matcher, parse_matcher
from tunewarden.domain.policy import (
    Expectation,
    JobCondition,
    Limits,
    Mode,
    Policy,
    StepKind,
)
from tunewarden.errors import FaultsFound

T = TypeVar("T")
_MOST_NAME = 128
_EXAMPLE = """alertname="GpuMemoryNearlyFull\""""


class Override(Protocol):
    """What the settings change in one policy; None: as the file has it."""

    @property
    def mode(self) -> Mode | None: ...

    @property
    def enabled(self) -> bool | None: ...


def load_policies(
    dirs: Sequence[Path], overrides: Mapping[str, Override] | None = None, limits: Limits | None = None
) -> tuple[Policy, ...]:
    """All policies of `dirs` (each `*.yaml`, by name), the folders in their order: the first that matches decides.

    `limits` are the defaults for files that say none. Raises FaultsFound with every fault of every file, an unreadable
    folder, a name that is used twice and an override for a name that there isn't.
    """
    faults: list[str] = []
    policies: list[Policy] = []
    for path in _files(dirs, faults):
        policy = read_policy(path, faults, limits or Limits())
        twin = next((other for other in policies if policy and other.name == policy.name), None)
        if policy and twin:
            faults.append(f"{path}:1: the name `{policy.name}` is used by {twin.file} too; give one of them another")
        elif policy:
            policies.append(policy)
    changed = dict(overrides or {})
    if not faults:
        known = ", ".join(policy.name for policy in policies) or "none"
        unknown = [name for name in changed if name not in {policy.name for policy in policies}]
        faults += [f"settings: `policies.{name}`: there is no such policy; there are: {known}" for name in unknown]
    if faults:
        raise FaultsFound(faults)
    return tuple(_overridden(policy, changed.get(policy.name)) for policy in policies)


def policy_faults(
    dirs: Sequence[Path], overrides: Mapping[str, Override] | None = None, limits: Limits | None = None
) -> list[str]:
    """What load_policies would raise, for `check`: empty when all is well."""
    try:
        load_policies(dirs, overrides, limits)
    except FaultsFound as found:
        return found.faults
    return []


def read_policy(path: Path, faults: list[str], limits: Limits) -> Policy | None:
    """The policy of one file; None after faults, which are added to `faults`."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        faults.append(f"{path}:1: the file can't be read ({error}); it must be UTF-8")
        return None
    return parse_policy(text, path, faults, limits)


def parse_policy(text: str, path: Path, faults: list[str], limits: Limits | None = None) -> Policy | None:
    """The policy that `text` holds; None after faults, which are added to `faults`."""
    own = Faults(file=str(path))
    tree = load_tree(path, text, own)
    policy = None
    if tree is not None:
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        policy = _policy(Fields(tree, own, 1, "a policy"), str(path), digest, limits or Limits())
    faults += own.lines
    return None if own.lines else policy


def _policy(top: Fields, file: str, digest: str, limits: Limits) -> Policy:
    top.raw("description")
    policy = Policy(
        name=_name(top),
        matchers=_matchers(top, "match", required=True),
        mode=top.read("mode", _mode, Mode.INHERIT),
        enabled=top.read("enabled", truth_of, True),
        job=_job(top.section("job")),
        signs=_each(top, "signs", read_sign),
        recheck=top.read("recheck", partial(duration, least=timedelta(seconds=1)), Policy.recheck),
        confirm=_each(top, "confirm", read_confirmation),
        limits=_limits(top.section("limits"), limits),
        steps=_each(top, "steps", read_step),
        expect=_expect(top.section("expect")),
        diagnose=top.read("diagnose", truth_of, False),
        silent_in=top.read("silent_in", _phases, ()),
        after_oom=top.read("after_oom", truth_of, False),
        file=file,
        digest=digest,
    )
    _check_whole(top, policy)
    top.done()
    return policy


def _each(top: Fields, key: str, read: Callable[[Fields, Any, int], T | None]) -> tuple[T, ...]:
    """The items of a list that could be read."""
    found = (read(top, item, line) for line, item in top.items(key))
    return tuple(item for item in found if item is not None)


def _check_whole(top: Fields, policy: Policy) -> None:
    if not top.has("steps") or not top.items("steps"):
        top.fault("steps", "`steps` is missing: a policy without a step does nothing; write at least `- notify`")
    if policy.destructive and not policy.confirm and not policy.after_oom and not top.has("confirm"):
        top.fault(
            "steps",
            "a step that stops a living job needs `confirm`: a fresh measurement that must hold; "
            "add for example `confirm: [nvml: memory_ratio > 0.95]`",
        )
    if policy.after_oom and any(step.kind in (StepKind.SAVE, StepKind.STOP) for step in policy.steps):
        top.fault("after_oom", "`after_oom` is for a job that is dead: `save` and `stop` mean nothing to it")
    kinds = [step.kind for step in policy.steps]
    if StepKind.REPLACE in kinds[:-1]:
        top.fault("steps", "`replace` must be the last step: what follows it is the proof that the job recovered")
    if policy.silent_in and policy.acts:
        top.fault("silent_in", "`silent_in` is for a policy that only notifies; take it out")
    if policy.signs and not policy.acts:
        top.fault("signs", "`signs` hold back steps that act, and this policy only notifies; take them out")


def _name(top: Fields) -> str:
    if not top.has("name"):
        top.fault(None, "`name` is missing; give the policy a short name of its own")
    name = top.read("name", text_of, "")
    if len(name) > _MOST_NAME or any(char.isspace() or not char.isprintable() for char in name):
        top.fault("name", f"`name` must be one printable word of at most {_MOST_NAME} characters")
    return name


def _matchers(top: Fields, key: str, *, required: bool = False) -> tuple[Matcher, ...]:
    if required and not (top.has(key) and top.items(key)):
        top.fault(key, f"`{key}` is missing: without a matcher it would fit every alert; write `- {_EXAMPLE}`")
    found = []
    for line, item in top.items(key):
        matcher = _item(top, line, item, _matcher)
        if matcher is not None:
            found.append(matcher)
    return tuple(found)


def _matcher(item: Any) -> Matcher:
    return parse_matcher(text_of(item))


def _job(section: Fields | None) -> JobCondition:
    if section is None:
        return JobCondition()
    condition = JobCondition(
        trainers=section.read("trainers", texts_of, ()),
        labels=_matchers(section, "labels"),
        min_age=section.read("min_age", duration, timedelta(0)),
        single_node=section.read("single_node", truth_of, False),
        max_ranks=section.read("max_ranks", partial(count_of, least=1), None),
    )
    section.done()
    return condition


def _limits(section: Fields | None, defaults: Limits) -> Limits:
    if section is None:
        return defaults
    limits = Limits(
        replacements=section.read("replacements", count_of, defaults.replacements),
        window=section.read("window", partial(duration, least=timedelta(minutes=1)), defaults.window),
        save_interval=section.read("save_interval", duration, defaults.save_interval),
        cooldown=section.read("cooldown", duration, defaults.cooldown),
        group=section.read("group", text_of, defaults.group),
    )
    section.done()
    return limits


def _expect(section: Fields | None) -> Expectation:
    if section is None:
        return Expectation()
    expect = Expectation(
        expr=section.read("promql", expression, ""),
        host=section.read("nvml", host_check, None),
        verify_for=section.read("verify_for", partial(duration, least=timedelta(seconds=1)), Expectation.verify_for),
        steps=section.read("steps", count_of, Expectation.steps),
        deadline=section.read("deadline", partial(duration, least=timedelta(seconds=1)), Expectation.deadline),
    )
    section.done()
    return expect


def _item(top: Fields, line: int, item: Any, convert: Callable[[Any], Matcher]) -> Matcher | None:
    try:
        return convert(item)
    except ValueError as error:
        top.fault_at(line, str(error))
        return None


def _phases(value: Any) -> tuple[str, ...]:
    phases = texts_of(value)
    if unknown := [phase for phase in phases if phase not in PHASES]:
        raise ValueError(f"has no phase `{unknown[0]}`; phases are {', '.join(PHASES)}")
    return phases


def _mode(value: Any) -> Mode:
    if value is False:  # YAML 1.1 reads `off` so
        return Mode.OFF
    if value not in tuple(Mode):
        raise ValueError(f"must be one of {', '.join(Mode)}")
    return Mode(value)


def _overridden(policy: Policy, override: Override | None) -> Policy:
    if override is None:
        return policy
    mode = policy.mode if override.mode is None else override.mode
    return replace(policy, mode=mode, enabled=policy.enabled if override.enabled is None else override.enabled)


def _files(dirs: Sequence[Path], faults: list[str]) -> list[Path]:
    found: list[Path] = []
    for folder in dirs:
        if not folder.is_dir():
            faults.append(f"{folder}: there is no such folder of policies")
            continue
        files = sorted(path for pattern in ("*.yaml", "*.yml") for path in folder.glob(pattern))
        if not files:
            faults.append(f"{folder}: holds no policy (*.yaml); write one, or take the folder out of `policy_dirs`")
        found += files
    return found
