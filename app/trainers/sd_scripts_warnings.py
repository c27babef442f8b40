"""What in a config of sd-scripts' family will go wrong, told before it does."""

import re
from collections.abc import Iterator, Mapping

from tunewarden.domain.reason import Reason
from tunewarden.errors import Refused
from tunewarden.trainers.known import Known
from tunewarden.trainers.paths import folders_in, is_file, is_folder
from tunewarden.trainers.recipe import Knob

# What is cached can't change from epoch to epoch any more: the trainer stops with an assertion.
CACHES: Mapping[str, tuple[str, ...]] = {
    "cache_latents": ("color_aug", "random_crop"),
    "cache_text_encoder_outputs": (
        "shuffle_caption", "caption_dropout_rate", "caption_tag_dropout_rate", "token_warmup_step",
    ),
}  # fmt: skip
_OFF = ("", "false", "0", "0.0", "no")
_CADENCE = ("save_every_n_steps", "save_every_n_epochs", "save_n_epoch_ratio")


def warnings(known: Known) -> tuple[str, ...]:
    """The lines for a person, `place: what, why, what to do`."""
    return (
        *saving(known),
        *resuming(known),
        *_folders(known),
        *_lengths(known),
        *_caches(known),
    )


def is_on(knob: Knob | None) -> bool:
    """Whether a setting is there and does something."""
    return knob is not None and knob.value.strip().lower() not in _OFF


def place(knob: Knob) -> str:
    """`file:line`, or the word of the command."""
    return f"{knob.file}:{knob.line}" if knob.file is not None else f"word {knob.line} of the command"


def refuse_conflict(known: Known, knob: str, names: tuple[str, ...]) -> None:
    """Raises Refused(knob_not_changeable) where one of these settings is on."""
    for name in names:
        setting = known.fact(name)
        if setting is not None and is_on(setting):
            raise Refused(
                Reason.KNOB_NOT_CHANGEABLE,
                f"{place(setting)}: {knob} can't be on while {name} is {setting.value}: what is cached no longer "
                f"changes; give up {name} or {knob}",
            )


def saving(known: Known) -> Iterator[str]:
    """Whether the trainer itself will leave anything to resume from."""
    saves, at_end = known.fact("save_state"), known.fact("save_state_on_train_end")
    cadence = any(is_on(known.fact(name)) for name in _CADENCE)
    if saves is not None and is_on(saves) and not cadence:
        yield (
            f"{place(saves)}: save_state saves with each checkpoint, and no save_every_n_steps or save_every_n_epochs "
            "is set: a state is made at the end only; set one"
        )
    elif not is_on(saves):
        only = f"{place(at_end)}: only save_state_on_train_end is set" if at_end and is_on(at_end) else ""
        where = only or "no save_state is set"
        yield f"{where}: without the training hook there is nothing to resume from; set save_state and a cadence"


def resuming(known: Known) -> Iterator[str]:
    """What `resume` names must be a state's folder."""
    setting = known.fact("resume")
    path = known.folder_of("resume")
    if setting is None or path is None or is_on(known.fact("resume_from_huggingface")):
        return
    if is_file(path):
        yield f"{place(setting)}: resume names a file; give the state's folder, which holds optimizer.bin"
    elif not is_folder(path):
        yield f"{place(setting)}: resume names {path}, which is not there; give the state's folder"


def _folders(known: Known) -> Iterator[str]:
    setting = known.fact("train_data_dir")
    path = known.folder_of("train_data_dir")
    if setting is None or path is None or known.fact("dataset_config") or known.fact("in_json"):
        return
    if not is_folder(path):
        yield f"{place(setting)}: train_data_dir {path} is not there; correct it"
    elif not any(re.match(r"[1-9]\d*_", each.name) for each in folders_in(path)):
        yield (
            f"{place(setting)}: {path} has no folder named REPEATS_NAME, such as 10_cat: others are passed over, and "
            "nothing is trained on; put the images into one"
        )


def _lengths(known: Known) -> Iterator[str]:
    epochs, steps = known.fact("max_train_epochs"), known.fact("max_train_steps")
    if epochs is not None and steps is not None and is_on(epochs):
        yield f"{place(steps)}: max_train_steps does nothing beside max_train_epochs ({place(epochs)}); keep one"


def _caches(known: Known) -> Iterator[str]:
    for knob, names in CACHES.items():
        setting = known.read_knobs().get(knob) or known.fact(knob)
        if is_on(setting):
            try:
                refuse_conflict(known, knob, names)
            except Refused as refused:
                yield str(refused)
