"""One run as the agent holds it: its parts, and what they say together."""

import contextlib
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tunewarden.ports import Boundary
from tunewarden.processes.identity import ProcessId, alive, boot_id, identify, read_stat
from tunewarden.supervisor.client import PROTOCOL
from tunewarden.supervisor.control import ControlDirectory, Progress, State
from tunewarden.supervisor.count import COUNTED, Count, count
from tunewarden.supervisor.death_evidence import DeathWatch
from tunewarden.supervisor.drain import Drain
from tunewarden.supervisor.event_progress import EventProgress
from tunewarden.supervisor.generation_log import GenerationLog, LogStart
from tunewarden.supervisor.generation_watch import GenerationWatch
from tunewarden.supervisor.hook_file import hook_settings
from tunewarden.supervisor.host_watch import HostWatch, executable_name
from tunewarden.supervisor.journal import Entry, Journal, Kind
from tunewarden.supervisor.keeper_launch import environment_at_start
from tunewarden.supervisor.keeper_link import KeeperLink, Situation
from tunewarden.supervisor.logging_dir import logging_folders
from tunewarden.supervisor.outbox import EVENT, Letter, Outbox
from tunewarden.supervisor.run_folder import RunFolder
from tunewarden.supervisor.spec import RunSpec
from tunewarden.supervisor.started_by import StartedBy
from tunewarden.supervisor.states import newest_state
from tunewarden.trainers.interpreter import why_unhooked
from tunewarden.trainers.recipe import Recipe
from tunewarden.trainers.table import recognise

SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "mksh", "fish", "busybox", "ash", "csh", "tcsh"})
_LAUNCH = "launch"
_STATE = "state"
_DYING_S = 1.0
_RECENT_S = 1.0
_EDITED = "edited after the launch"  # no hash: a config that can't be proven to be what the job read
log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Generation:
    """How a generation was launched. `config_sha256` is of the config that it reads, None where none is known.

    `env` is what its environment has more than the job's own. `launched_at` is on CLOCK_MONOTONIC of this boot, None
    where the launch was not seen.
    """

    number: int
    argv: tuple[str, ...]
    log: LogStart
    config_sha256: str | None
    resume_step: int | None
    env: Mapping[str, str] = field(default_factory=dict)
    launched_at: float | None = None


@dataclass(kw_only=True)
class Run:
    """The parts of a running agent. Only the main thread changes anything here."""

    spec: RunSpec
    folder: RunFolder
    journal: Journal
    link: KeeperLink
    outbox: Outbox
    host: HostWatch
    boundary: Boundary
    monotonic: Callable[[], float] = time.monotonic
    waiting: bool = False  # the last generation is dead and an order may launch the next
    over: bool = False
    deaths: DeathWatch = field(default_factory=DeathWatch)
    lives_on: str = ""  # what of the job a person's stop could not end, in words
    _watch: GenerationWatch | None = field(default=None, repr=False)
    _recipe: tuple[tuple[str, ...], float, Recipe | None] | None = field(default=None, repr=False)
    _drain: Drain | None = field(default=None, repr=False)

    @property
    def situation(self) -> Situation:
        return self.link.situation

    @property
    def state(self) -> str:
        """running, waiting or ended, as the service calls it."""
        if self.over:
            return "ended"
        return "waiting" if self.waiting else "running"

    def pump(self, seconds: float) -> None:
        """Let the keeper's messages in for up to `seconds`; do what it did for the job where it is dead."""
        self.link.pump(seconds)
        if self.situation.keeper_lost:
            self._without_keeper()

    def _without_keeper(self) -> None:
        """Drain the output, and watch the launcher: it is not our child, so how it ended stays unknown."""
        situation = self.situation
        if self._drain is None:
            keeper, deadline = self.link.keeper, self.monotonic() + _DYING_S
            while keeper is not None and alive(keeper):
                if self.monotonic() > deadline:
                    raise SystemExit("the keeper has closed the talk: it starts another agent")
                self.link.pump(0.02)
            self._drain = Drain(set(situation.fds.values()), self.folder.log_file)
            self._drain.start()
        if not self._lives_without_keeper():
            situation.endings.setdefault(situation.generation, None)

    def _lives_without_keeper(self) -> bool:
        """A keeper that was killed before it could name its launcher leaves the job's marker to know it by."""
        launcher = self.situation.launcher
        return alive(launcher) if launcher is not None else bool(self.host.members())

    def finish_drain(self) -> None:
        """Wait a moment for the last of the output, where we drain it."""
        if self._drain is not None:
            self._drain.join(_DYING_S)

    def control(self, generation: int | None = None) -> ControlDirectory:
        """The control directory of a generation, by default the newest."""
        return ControlDirectory(self.folder.control_dir(generation or self.situation.generation))

    def generation(self, number: int | None = None) -> Generation:
        """How a generation, by default the newest, was launched."""
        number = number or self.situation.generation
        entry = self._launch_of(number)
        raw = entry.detail
        return Generation(
            number=number,
            argv=tuple(raw["argv"]),
            log=LogStart.of(raw["log"]),
            config_sha256=raw.get("config_sha256"),
            resume_step=raw.get("resume_step"),
            env=raw.get("env") or {},
            launched_at=entry.at if entry.kind is Kind.INTENT and entry.boot_id == boot_id() else None,
        )

    def _launch_of(self, number: int) -> Entry:
        for entry in reversed(self.journal.entries()):
            is_launch = entry.phase == _LAUNCH and entry.kind in (Kind.INTENT, Kind.NOTE)
            if is_launch and entry.detail.get("generation") == number:
                return entry
        first = {
            "generation": number,
            "argv": list(self.spec.argv),
            "log": {"inode": 0, "offset": 0},
            "config_sha256": self._first_config_sha256(),
        }
        return self.journal.note(_LAUNCH, first)

    def _first_config_sha256(self) -> str | None:
        """The hash of the config that generation 1 read. It started before us: a file younger than that was edited."""
        recipe = recognise(self.spec.argv, self.spec.cwd)
        if recipe is None or recipe.config_path is None:
            return None
        with contextlib.suppress(OSError):
            if recipe.config_path.stat().st_mtime > self.folder.spec_file.stat().st_mtime:
                return _EDITED
        return recipe.config_sha256

    def watch(self) -> GenerationWatch:
        """What is counted over the newest generation. Called from the heartbeat, and from the main thread."""
        watch, generation = self._watch, self.situation.generation
        if watch is None or watch.generation != generation:
            launched = self.generation(generation)
            recipe, base = recognise(launched.argv, self.spec.cwd), launched.resume_step or 0
            folders = logging_folders(launched.argv, self.spec.cwd, recipe.config_path if recipe else None)
            watch = GenerationWatch(
                generation=generation,
                control=self.control(generation),
                log=GenerationLog(self.folder.log_file, launched.log, base),
                events=EventProgress(folders, base),
            )
            self._watch = watch
        return watch

    def say(self, text: str) -> None:
        """A line for the person at the terminal."""
        self.link.say(text)

    def post(self, event_id: str, body: Mapping[str, Any]) -> None:
        """Send an event, once: it is journaled first, and sent again after a restart until the service has it."""
        if any(entry.detail["event_id"] == event_id for entry in self.journal.notes(EVENT)):
            return
        whole = {"protocol": PROTOCOL, "event_id": event_id, **body}
        self.journal.note(EVENT, whole)
        self.outbox.put(Letter(id=event_id, phase=EVENT, body=whole))

    def trainers(self) -> tuple[ProcessId, ...]:
        """The trainer's processes by what they wrote of themselves, as far as they live and are the job's."""
        control = self.control()
        hello = control.hello()
        named = {*control.ranks().pids, *([hello.pid] if hello and hello.pid else [])}
        return tuple(member.id for member in self.host.members() if member.id.pid in named)

    def recipe(self, argv: tuple[str, ...] | None = None) -> Recipe | None:
        """The recipe of a command, by default the newest generation's; None where the trainer is unknown.

        Up to a second old: it reads the script and its configs, and one plan asks for it several times.
        """
        words, now = self.generation().argv if argv is None else argv, self.monotonic()
        known = self._recipe
        if known is None or known[0] != words or now - known[1] > _RECENT_S:
            self._recipe = known = (words, now, recognise(words, self.spec.cwd))
        return known[2]

    def why_unhooked(self) -> str | None:
        """Why the training hook is not in this job, in one sentence; None: nothing that can be seen keeps it out."""
        if self.spec.started_by is not StartedBy.RUN:
            return None
        if self.spec.hook is None:
            return "it was started with --no-hook"
        return why_unhooked(self.generation().argv, self.spec.cwd)

    def environment(self) -> dict[str, str]:
        """The newest generation's: the job's own, which is ours too, and what it was launched with more."""
        own = {os.fsdecode(name): os.fsdecode(value) for name, value in environment_at_start().items()}
        return {**own, **self.generation().env}

    def controls(self) -> dict[int, ControlDirectory]:
        """The control directories of all generations so far, by number."""
        return {number: self.control(number) for number in range(1, self.situation.generation + 1)}

    def newest_state(self) -> State | None:
        """The complete state with the highest step, of all generations: what is gone on from."""
        recipe = self.recipe()
        on_disk = recipe.states() if recipe else ()
        controls, before = list(self.controls().values()), self.spec.states_before
        return newest_state(controls, on_disk, before, self.may_hold_state, self._states_seen())

    def states_folder(self) -> Path:
        """Where the next state will be written, as far as is known; else the job's own folder."""
        control, recipe = self.control(), self.recipe()
        progress, hello = control.progress(), control.hello()
        known = (hello.states if hello else None) or hook_settings(control).states
        known = known or (recipe.hook_settings().states if recipe else None)
        if known is None and progress is not None and progress.last_state is not None:
            known = progress.last_state.path.parent
        return known or self.spec.cwd

    def may_hold_state(self, path: Path) -> bool:
        """Whether this can be a state's place: no folder that holds the job's own, or the run's."""
        return path not in self.spec.cwd.parents and path not in self.folder.path.parents

    def counted(self, number: int | None = None) -> Count:
        """The steps of a generation, by default the newest, and what it was to make."""
        number = number or self.situation.generation
        launched, ended = self.generation(number).launched_at, self.situation.ended_at.get(number)
        return count(
            number,
            {each: self.control(each) for each in range(1, number + 1)},
            resume_step=self.generation(number).resume_step,
            lived_s=None if launched is None or ended is None else max(0.0, ended - launched),
            noted=[entry.detail for entry in self.journal.notes(COUNTED)],
        )

    def keep_count(self, number: int) -> None:
        """Journal what a generation made, once: the control directory is the job's own to change."""
        if all(entry.detail["generation"] != number for entry in self.journal.notes(COUNTED)):
            self.journal.note(COUNTED, self.counted(number).to_note())

    def steps_made(self) -> int:
        """Optimizer steps that the newest generation has made."""
        return self.counted().steps_made

    def total_steps(self) -> int | None:
        """The planned number of optimizer steps, where somebody has said it."""
        return self.counted().total

    def unsaved_steps(self) -> int:
        """Steps that would be lost if the job ended now."""
        progress, state = self.control().progress(), self.newest_state()
        return max(0, progress.step - (state.step if state else 0)) if progress else 0

    def observe(self) -> bool:
        """Keep what will be needed when the trainer is gone: which trainers said hello, and how they were started.

        Whether one has said it since the last look.
        """
        self._note_state()
        generation, hello = self.situation.generation, self.control().hello()
        if hello is None or hello.pid is None:
            return False
        seen = self.trainers_seen(generation)
        if hello.pid in [each["pid"] for each in seen]:
            return False
        detail = {"generation": generation, "pid": hello.pid, "through_shell": self._through_shell(hello.pid)}
        self.journal.note("trainer", detail)
        self.control(generation).set_room_aside()
        return True

    def _note_state(self) -> None:
        """Keep each state that was named: progress.json names only the newest, and that may prove to be half."""
        progress = self.control().progress()
        state = progress.last_state if progress else None
        if state is not None and state not in self._states_seen():
            self.journal.note(_STATE, {"step": state.step, "path": str(state.path)})

    def _states_seen(self) -> list[State]:
        noted = [entry.detail for entry in self.journal.notes(_STATE)]
        return [State(step=each["step"], path=Path(each["path"])) for each in noted]

    def trainers_seen(self, generation: int) -> list[Mapping[str, Any]]:
        """The distinct trainers that said hello in a generation."""
        return [entry.detail for entry in self.journal.notes("trainer") if entry.detail["generation"] == generation]

    def _through_shell(self, pid: int) -> bool | None:
        """Whether a shell stands between the launcher and this trainer; None: the trainer is gone."""
        launcher = self.situation.launcher
        if launcher is None or identify(pid) is None:
            return None
        while pid != launcher.pid and pid > 1:
            stat = read_stat(pid)
            if stat is None:
                return None
            pid = stat.ppid
            if executable_name(pid) in SHELLS:
                return True
        return False

    def total_reached(self, progress: Progress | None) -> bool | None:
        """Whether the job was at its last step. progress.json may be half a second old: a second's steps are let go."""
        total = self.total_steps()
        if progress is None or total is None:
            return None
        seconds, count = progress.step_seconds_sum, progress.step_seconds_count
        slack = count / seconds if seconds and count else 0.0
        return total - progress.step <= max(2.0, slack)


def config_sha256(argv: tuple[str, ...], cwd: Path) -> str | None:
    """The hash of the config that this command reads now, None where none is known."""
    with contextlib.suppress(OSError):
        recipe = recognise(argv, cwd)
        return recipe.config_sha256 if recipe else None
    return None
