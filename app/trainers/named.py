"""Trainers that are recognised, and of which is said what is possible: nothing of theirs is changed or relaunched.

Facts are from their sources; docs/reference/trainers.md names the versions.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tunewarden.domain import tuning
from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.trainers import marks
from tunewarden.trainers.command import Command, Kind, option_values
from tunewarden.trainers.layers import KeyPath, Layer, Syntax, hash_of, read_layers
from tunewarden.trainers.paths import folders_in, is_file
from tunewarden.trainers.recipe import (
    ConfigPlan,
    Explanation,
    HookSettings,
    Knob,
    SavedState,
    Tier,
)
from tunewarden.trainers.sd_scripts_warnings import place


@dataclass(frozen=True, kw_only=True)
class About:
    """One trainer: how it is known, which file it is given, where its knobs stand there, and what is to be said."""

    trainer: str
    runs: Callable[[Command], bool]
    config: Callable[[Command], str | None]
    keys: Mapping[str, tuple[KeyPath, ...]]
    saves: str
    adjusts: str
    resumes: str
    warnings: Callable[["Named"], tuple[str, ...]] = lambda named: ()  # noqa: ARG005


_SYNTAXES = {".yaml": Syntax.YAML, ".yml": Syntax.YAML, ".json": Syntax.JSON, ".toml": Syntax.TOML}


@dataclass(frozen=True, kw_only=True)
class Named:
    """A recognised trainer that is told about and left alone."""

    about: About
    command: Command
    config_path: Path | None
    config_sha256: str | None
    tier: Tier = Tier.NAMED
    keeps_hook_states: bool = False  # ai-toolkit builds on accelerate and reads only its own files

    @property
    def trainer(self) -> str:
        """The name that policies match."""
        return self.about.trainer

    def layers(self) -> tuple[Layer, ...]:
        """Its config, for reading."""
        syntax = _SYNTAXES.get(self.config_path.suffix.lower()) if self.config_path else None
        if self.config_path is None or syntax is None:
            return ()
        return (Layer(syntax=syntax, file=self.config_path, keys=self.about.keys),)

    def read_knobs(self) -> dict[str, Knob]:
        """The knobs in its config; see Recipe.read_knobs."""
        read = read_layers(self.layers(), self.command.words)
        return {name: knob for name, knob in read.items() if name in tuning.KNOBS}

    def plan(
        self,
        knobs: Mapping[str, str],
        *,
        allow_effective_batch_change: bool,  # noqa: ARG002
        launched_sha256: str | None = None,  # noqa: ARG002
    ) -> ConfigPlan:
        """Refused: nothing proves that a changed config would go on from a state."""
        where = f"{self.config_path}:1" if self.config_path else self.command.name
        raise Refused(
            Reason.KNOB_NOT_CHANGEABLE,
            f"{where}: {', '.join(knobs)} of {self.trainer} is not changed for you; {self.about.adjusts}",
        )

    def argv_with(self, argv: Sequence[str], old: Path, new: Path) -> NoReturn:  # noqa: ARG002
        """Refused: no copy is ever made."""
        raise Refused(Reason.CONFIG_NOT_FOUND, f"{old}: {self.trainer} is not started with another config")

    def hook_settings(self) -> HookSettings:
        """The hook's own defaults, for what uses accelerate below."""
        return HookSettings()

    def resume(self, argv: Sequence[str], state: SavedState, *, generation: int) -> NoReturn:  # noqa: ARG002
        """Refused, with the way that a person can go."""
        raise Refused(Reason.CANNOT_RESUME, f"{state.path}: {self.trainer}: {self.about.resumes}")

    def states(self) -> tuple[SavedState, ...]:
        """None are judged."""
        return ()

    def final(self) -> tuple[Path, Path] | None:
        """Nothing is started under another name."""
        return None

    def explain(self) -> Explanation:
        """What is possible."""
        return Explanation(
            saves=self.about.saves,
            adjusts=self.about.adjusts,
            resumes=self.about.resumes,
            warnings=self.about.warnings(self),
            files=(self.config_path,) if self.config_path else (),
        )


def recognise(command: Command, cwd: Path) -> Named | None:  # noqa: ARG001
    """The first trainer of the table that the command runs."""
    for about in ABOUT:
        if about.runs(command):
            word = about.config(command)
            path = command.resolve(word) if word else None
            path = path if is_file(path) else None
            return Named(
                about=about, command=command, config_path=path, config_sha256=hash_of((path,)) if path else None
            )
    return None


def _option(name: str) -> Callable[[Command], str | None]:
    def value(command: Command) -> str | None:
        found = option_values(command.words, command.program + 1, name)
        return found[-1][1] if found else None

    return value


def _first_file(command: Command) -> str | None:
    return next((word for word in command.args if word.endswith((".yaml", ".yml", ".json", ".toml"))), None)


def _is_onetrainer(command: Command) -> bool:
    text = marks.imports_like(command, r"modules\.util\.(config\.TrainConfig|args\.TrainArgs)(\..*)?")
    return text or (marks.is_named(command, r"train(_remote)?\.py") and bool(_option("--config-path")(command)))


def _is_diffusion_pipe(command: Command) -> bool:
    config = _option("--config")(command)
    pipe = marks.imports(command, "deepspeed") and marks.imports_like(
        command, r"utils\.(saver|dataset|pipeline)(\..*)?"
    )
    named = marks.is_named(command, r"train\.py") and "--deepspeed" in command.args
    return config is not None and config.endswith(".toml") and (pipe or named)


def _is_ai_toolkit(command: Command) -> bool:
    if marks.script_name(command) != "run.py" or _first_file(command) is None:
        return marks.imports_like(command, r"toolkit\.(job|accelerator)(\..*)?")
    return not command.text or marks.imports_like(command, r"toolkit(\..*)?")


def _two_accumulations(named: Named) -> tuple[str, ...]:
    read = read_layers(named.layers(), named.command.words)
    steps, plain = read.get("accumulation_in_steps"), read.get(tuning.ACCUMULATION)
    if steps is not None and plain is not None:
        return (
            f"{place(steps)}: gradient_accumulation_steps and gradient_accumulation ({place(plain)}) exclude each "
            "other; keep gradient_accumulation, which leaves `steps` the number of updates",
        )
    if steps is not None:
        return (
            f"{place(steps)}: gradient_accumulation_steps makes `steps` count batches, not updates; use "
            "gradient_accumulation",
        )
    return ()


def _backups(named: Named) -> tuple[str, ...]:
    """Whether Ctrl-C leaves a backup at all, and which is the newest: OneTrainer itself goes by the names."""
    read = read_layers(named.layers(), named.command.words)
    keeps, workspace = read.get("backup_before_save"), read.get("workspace_dir")
    lines = []
    if keeps is not None and keeps.value.lower() == "false":
        lines.append(f"{place(keeps)}: backup_before_save is false: Ctrl-C saves nothing; set it to true")
    folder = named.command.resolve(workspace.value) if workspace is not None else None
    backups = list(folders_in(folder / "backup")) if folder is not None else []
    if workspace is not None:
        newest = f"the newest backup is {backups[-1]}" if backups else f"no backup is in {folder}/backup yet"
        lines.append(f"{place(workspace)}: {newest}")
    return tuple(lines)


_PROCESS: KeyPath = ("config", "process", "*")
ABOUT: tuple[About, ...] = (
    About(
        trainer="onetrainer",
        runs=_is_onetrainer,
        config=_option("--config-path"),
        keys={
            tuning.BATCH: (("batch_size",),),
            tuning.ACCUMULATION: (("gradient_accumulation_steps",),),
            "cache_latents": (("latent_caching",),),
            "data_workers": (("dataloader_threads",),),
            "network_dim": (("lora_rank",),),
            "network_alpha": (("lora_alpha",),),
            "backup_before_save": (("backup_before_save",),),
            "workspace_dir": (("workspace_dir",),),
        },
        warnings=_backups,
        saves="not by tunewarden; Ctrl-C at scripts/train.py makes a backup in workspace_dir/backup when "
        "backup_before_save is true: look whether the folder is there, a failed backup is only printed",
        adjusts="write batch_size and gradient_accumulation_steps in the JSON and start it again yourself",
        resumes="set continue_last_backup to true: the newest folder below workspace_dir/backup, by its name",
    ),
    About(
        trainer="diffusion-pipe",
        runs=_is_diffusion_pipe,
        config=_option("--config"),
        keys={
            tuning.BATCH: (("micro_batch_size_per_gpu",),),
            tuning.ACCUMULATION: (("gradient_accumulation_steps",),),
            "network_dim": (("adapter", "rank"),),
        },
        saves="not by tunewarden; create the file save_quit (or save, to train on) in the run's folder, "
        "output_dir/DATE_TIME: a checkpoint at the next step, then it ends with 0",
        adjusts="write micro_batch_size_per_gpu in the command's TOML (it rules, not the copy in the run's folder); "
        "the place in the data shifts, so add --reset_dataloader",
        resumes="add --resume_from_checkpoint to the command yourself",
    ),
    About(
        trainer="ai-toolkit",
        runs=_is_ai_toolkit,
        config=_first_file,
        keys={
            tuning.BATCH: ((*_PROCESS, "train", "batch_size"),),
            tuning.ACCUMULATION: ((*_PROCESS, "train", "gradient_accumulation"),),
            "accumulation_in_steps": ((*_PROCESS, "train", "gradient_accumulation_steps"),),
            "gradient_checkpointing": ((*_PROCESS, "train", "gradient_checkpointing"),),
            "network_dim": ((*_PROCESS, "network", "linear"),),
            "network_alpha": ((*_PROCESS, "network", "linear_alpha"),),
        },
        saves="not by tunewarden, and not by a signal; in the UI: save now, then stop. Else only its save_every",
        adjusts="write batch_size and gradient_accumulation below config.process.train and start it again yourself; "
        "after an out-of-memory error it only skips the batch, three in a row end it",
        resumes="by itself: the newest file NAME*.safetensors in training_folder/name, by its time; a failed load is "
        "only printed",
        warnings=_two_accumulations,
    ),
    About(
        trainer="unsloth",
        runs=lambda command: command.kind is Kind.PROGRAM and command.name == "unsloth",
        config=_first_file,
        keys={},
        saves="the training hook where it runs transformers' Trainer in the process that it starts; in its Studio: "
        "stop with save",
        adjusts="write per_device_train_batch_size in its settings and start it again yourself",
        resumes="start it with its newest checkpoint yourself",
    ),
    About(
        trainer="lightning",
        runs=lambda command: (
            (command.kind is Kind.PROGRAM and command.name in ("lightning", "fabric"))
            or marks.imports(command, "lightning", "pytorch_lightning")
        ),
        config=_first_file,
        keys={},
        saves="not by tunewarden; SIGTERM ends it at a batch, with a checkpoint only if the script has "
        "OnExceptionCheckpoint or ModelCheckpoint(save_on_exception=True)",
        adjusts="write batch_size in the DataLoader or DataModule, and the Trainer's accumulate_grad_batches, yourself",
        resumes="give ckpt_path to trainer.fit yourself",
    ),
    About(
        trainer="torchtune",
        runs=lambda command: marks.is_program(command, {"tune"}, "run"),
        config=_option("--config"),
        keys={
            tuning.BATCH: (("batch_size",),),
            tuning.ACCUMULATION: (("gradient_accumulation_steps",),),
            "gradient_checkpointing": (("enable_activation_checkpointing",),),
            "network_dim": (("model", "lora_rank"),),
        },
        saves="not by tunewarden: checkpoints are made at the ends of epochs only",
        adjusts="write batch_size and gradient_accumulation_steps in the YAML, or behind the command, yourself",
        resumes="resume_from_checkpoint=True, from the last whole epoch",
    ),
)
