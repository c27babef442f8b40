"""The last result of a job that was restarted gets the name that its user planned."""

import os

from tunewarden.supervisor.run import Run


def give_planned_name(run: Run) -> None:
    """Link what the last generation wrote under another name to the planned one; says what was done.

    A file that is there already is never touched, and nothing here ends a job in failure.
    """
    recipe = run.recipe()
    names = recipe.final() if recipe is not None else None
    if names is None or not names[0].is_file():
        return
    written, planned = names
    try:
        os.link(written, planned)
    except FileExistsError:
        if not planned.samefile(written):  # not our own, from before the agent was started again
            run.say(f"{planned} is there already: the last result stays {written.name}")
    except OSError as error:  # a file system without hard links, a folder that is full
        run.say(f"the last result is {written}; it could not be given the name {planned.name}: {error.strerror}")
    else:
        run.say(f"the last result, {written.name}, is also {planned.name}")
