"""Launch: wait for the card, write what to resume from, and let the keeper start the next generation."""

import secrets
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tunewarden.domain.order import Phase
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.supervisor.cards import holder_of
from tunewarden.supervisor.control import State
from tunewarden.supervisor.execution import Done, Execution
from tunewarden.supervisor.generation_log import LogStart
from tunewarden.supervisor.keeper_link import EXPIRED
from tunewarden.supervisor.resumption import resumption_of
from tunewarden.supervisor.run import config_sha256
from tunewarden.trainers.recipe import SavedState

_CARD_S = 60.0
_LAUNCH_S = 30.0  # the keeper must have read the request by then, and launches nothing later
_MARGIN_S = 5.0  # and may be launching at that moment


_NO_ANSWER = "the keeper did not answer"


def check(ex: Execution) -> None:
    """Nothing is launched onto a card that somebody holds. Raises Refused (gpu_busy, keeper_lost)."""
    deadline = ex.run.monotonic() + _CARD_S
    while (holder := _holder(ex)) is not None:
        if ex.run.monotonic() >= deadline:
            raise Refused(Reason.GPU_BUSY, f"the card did not become free within {_CARD_S:.0f} s: {holder}")
        ex.breathe(0.2)
    ex.breathe(0.0)
    if ex.run.situation.keeper_lost:
        raise Refused(Reason.KEEPER_LOST, "the keeper died: nothing can be launched")


def intend(ex: Execution) -> dict[str, Any]:
    number, state = ex.order.generation + 1, _state(ex)
    saved = SavedState(step=state.step, path=state.path) if state else None
    going_on = resumption_of(ex.run, ex.record.fact("plan", "argv"), saved, number)
    argv = list(going_on.argv)
    return {
        "generation": number,
        "argv": argv,
        "env": ex.record.fact("plan", "env") or {},
        "hook": going_on.hook.to_wire(),
        "log": asdict(LogStart.now(ex.run.folder.log_file)),
        "config_sha256": config_sha256(tuple(argv), ex.run.spec.cwd),
        "resume_step": state.step if state else None,
        "resume_path": str(state.path) if state else None,
    }


def act(ex: Execution, intent: Mapping[str, Any]) -> Done:
    """Launch, unless the keeper has done it already. Raises Refused(launch_failed)."""
    number, situation, error = int(intent["generation"]), ex.run.situation, _NO_ANSWER
    if situation.generation < number:
        _prepare(ex, intent)
        control = ex.run.folder.control_dir(number)
        env = {
            "TUNEWARDEN_GENERATION": str(number),
            "TUNEWARDEN_CONTROL_DIR": str(control),
            "TUNEWARDEN_JOB": ex.run.spec.job_id,
            **(intent.get("env") or {}),
        }
        error = _launch(ex, intent, env)
        if situation.generation == number:
            ex.run.say(_restarted(ex, intent))
    if situation.generation < number or situation.launcher is None:
        raise Refused(Reason.LAUNCH_FAILED, f"generation {number} could not be started: {error}")
    resume = {name: intent[name] for name in ("resume_step", "resume_path")}
    detail = {"generation": number, "pid": situation.launcher.pid, **resume}
    return Done(facts=detail, report=Phase.LAUNCHED, detail=detail)


def _restarted(ex: Execution, intent: Mapping[str, Any]) -> str:
    config, step = ex.record.fact("plan", "new_config_path"), intent["resume_step"]
    with_config = f" with {Path(config).name}" if config else ""
    where = "from the beginning" if step is None else f"from step {step}"
    return f"restarted as generation {intent['generation']}{with_config}, {where}"


def _prepare(ex: Execution, intent: Mapping[str, Any]) -> None:
    number = int(intent["generation"])
    ex.run.folder.control_dir(number).mkdir(mode=0o700, exist_ok=True)
    if ex.run.spec.hook is not None and intent.get("hook"):
        ex.run.control(number).write_hook(intent["hook"])
    if intent["resume_path"] is not None:
        state = State(step=int(intent["resume_step"]), path=Path(intent["resume_path"]))
        ex.run.control(number).write_resume(state, ex.order.generation)


def _launch(ex: Execution, intent: Mapping[str, Any], env: Mapping[str, str]) -> str:
    """Ask, and again where the keeper was suspended meanwhile and read it too late; what is wrong, if something is."""
    number, run = int(intent["generation"]), ex.run
    while True:
        request_id, expires_at = secrets.token_hex(6), run.monotonic() + _LAUNCH_S
        argv, cwd = list(intent["argv"]), str(run.spec.cwd)
        run.link.launch(number, argv, env, cwd, request_id=request_id, expires_at=expires_at)
        run.boundary.reach("launch.request", "after_effect")
        _wait_for_launch(ex, number, request_id, expires_at)
        error = run.situation.launch_errors.get(request_id, _NO_ANSWER)
        if error != EXPIRED:
            return error
        ex.breathe(0.0)


def _wait_for_launch(ex: Execution, number: int, request_id: str, expires_at: float) -> None:
    """What was asked for must be answered: a local act is looked at after it, with the new generation known.

    While the keeper stands still it is not given up: it might have been stopped amid the launch.
    """
    situation = ex.run.situation
    while situation.generation < number and request_id not in situation.launch_errors and not situation.keeper_lost:
        if ex.run.monotonic() >= expires_at + _MARGIN_S and not ex.run.link.on_hold:
            return
        ex.run.pump(0.2)


def _state(ex: Execution) -> State | None:
    """What to go on from: what this order saved, else the newest state that is whole."""
    step, path = ex.record.fact("save", "step"), ex.record.fact("save", "path")
    return State(step=step, path=Path(path)) if path else ex.run.newest_state()


def _holder(ex: Execution) -> str | None:
    """Who holds one of the job's cards; None: they are free, or there is no data on them."""
    stop = ex.record.intents.get("stop")
    others: Mapping[str, int] = stop.detail["others"] if stop else {}
    pids = frozenset(member.id.pid for member in ex.run.host.members(fresh=True))
    for gpu in ex.run.host.job_gpus(ex.run.host.gpus(fresh=True), pids) or ():
        holder = holder_of(gpu, pids, others.get(gpu.uuid, 0))
        if holder is not None:
            return holder
    return None
