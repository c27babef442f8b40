"""Starts a run as the command line does: `python keeper_start.py STATE_DIR NAME AGENT_JSON -- CMD…`."""

import json
import signal
import sys
from pathlib import Path

from tunewarden.errors import SettingsError
from tunewarden.supervisor.start import exec_keeper, prepare


def main() -> int:
    state_dir, name, agent, _, *command = sys.argv[1:]
    # The tests may run in the background of a script, where SIGINT is ignored; a person's shell ignores nothing.
    for signum in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        signal.signal(signum, signal.SIG_DFL)
    try:
        prepared = prepare(
            command,
            name=name or None,
            labels={"team": "a"},
            enforce=False,
            grace_s=120,
            url="http://127.0.0.1:9",
            token_file=None,
            simulate_gpu=None,
            heartbeat_s=5,
            state_dir=Path(state_dir),
            node=None,
        )
    except SettingsError as error:
        print(f"tunewarden: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 2)
    return exec_keeper(prepared, agent_argv=json.loads(agent))


if __name__ == "__main__":
    sys.exit(main())
