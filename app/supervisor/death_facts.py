"""What the agent knows of a generation that has ended by itself, gathered for the judgement."""

import shutil
from dataclasses import replace
from pathlib import Path

from tunewarden.domain.cause import Cause
from tunewarden.supervisor.control import Progress
from tunewarden.supervisor.count import Count
from tunewarden.supervisor.death import Death, Ending, Fact
from tunewarden.supervisor.death_evidence import read_crash
from tunewarden.supervisor.generation_log import GenerationLog
from tunewarden.supervisor.run import Run
from tunewarden.supervisor.state_size import size_of


def ending_of(run: Run, status: int | None) -> Ending:
    """What is known of the newest generation, which has ended by itself."""
    control, generation, counted = run.control(), run.generation(), run.counted()
    progress = control.progress()
    log = GenerationLog(run.folder.log_file, generation.log)
    log.read()
    crash = read_crash(control.path)
    return Ending(
        exit_status=status,
        crash=crash,
        tail=log.tail(),
        near_end=_all_done(counted) or run.total_reached(progress),
        steps_made=_steps_made(run, progress),
        planned=counted.total,
        phase=progress.phase if progress else None,
        loss=progress.loss if progress else None,
        resumed=counted.resume_step is not None,
        seconds=counted.lived_s,
        outside=run.deaths.outside(run, _pids(run)),
    )


def _all_done(counted: Count) -> bool:
    """Whether nothing was left to train when this generation began."""
    return counted.total is not None and counted.resume_step is not None and counted.resume_step >= counted.total


def _steps_made(run: Run, progress: Progress | None) -> int | None:
    """None where nobody counts, not even in an earlier generation: then no step seen is no step missed."""
    earlier = range(1, run.situation.generation)
    if progress is None and not any(run.control(number).progress() for number in earlier):
        return None
    return run.steps_made()


def _pids(run: Run) -> frozenset[int]:
    """The processes of the newest generation that we know by number."""
    control, launcher = run.control(), run.situation.launcher
    hello = control.hello()
    named = {*control.ranks().pids, *([hello.pid] if hello and hello.pid else [])}
    seen = {int(each["pid"]) for each in run.trainers_seen(run.situation.generation)}
    return frozenset(named | seen | ({launcher.pid} if launcher else set()))


def with_room(run: Run, death: Death) -> Death:
    """Of a full disk: which folder, how much is free, and how much the job's own states take."""
    if death.cause is not Cause.DISK_FULL:
        return death
    state = run.newest_state()
    path = Path(str(death.facts.get("path") or (state.path.parent if state else run.spec.cwd)))
    facts: dict[str, Fact] = {**death.facts, "path": str(path)}
    free = _free(path)
    if free is not None:
        facts["free_bytes"] = free
    if state is not None:
        facts |= {"states_path": str(state.path.parent), "states_bytes": size_of(state.path.parent)}
    return replace(death, facts=facts)


def _free(path: Path) -> int | None:
    """Bytes that are free where `path` was to be written."""
    for folder in (path, *path.parents):
        try:
            return shutil.disk_usage(folder).free
        except (OSError, ValueError):
            continue
    return None
