"""A scripted agent for the keeper's tests: `python keeper_agent_stand_in.py SCRIPT.json TALK.jsonl`.

It writes every message to TALK.jsonl and answers by SCRIPT: {"<type>": [answers…]}. Each list is used up in order, one
answer (a message, a list of messages, or "die") a message; what is not in the script is not answered, but an `ended`
without an answer gets a `finish` with the job's code, and what must be heard is. When the keeper is gone it drains
the job's output into the log.
"""

import json
import os
import select
import sys
from pathlib import Path


def drain(fds):
    with open("output.log", "ab", buffering=0) as log:
        while fds:
            ready, _, _ = select.select(fds, [], [])
            for fd in ready:
                try:
                    data = os.read(fd, 65536)
                except BlockingIOError:
                    continue
                except OSError:
                    data = b""
                if not data:
                    fds.remove(fd)
                log.write(data)


def answers_to(script_file, message):
    script = json.loads(script_file.read_text())
    waiting = script.get(message["type"], [])
    if waiting:
        answer = waiting.pop(0)
        script_file.write_text(json.dumps(script))
        return answer if isinstance(answer, list) else [answer]
    if message["type"] == "ended" or (message["type"] == "hello" and message["ended"] is not None):
        status = message.get("exit_status", message.get("ended"))
        return [{"type": "finish", "exit_code": status if status >= 0 else 128 - status}]
    return []


def main():
    script_file, talk_file = map(Path, sys.argv[1:3])
    fds = []
    with os.fdopen(3, "r+b", buffering=0) as keeper, open(talk_file, "a", buffering=1) as talk:
        for line in keeper:
            message = json.loads(line)
            talk.write(json.dumps({**message, "agent": os.getpid()}) + "\n")
            if message["type"] == "hello":
                fds = sorted(set(message["fds"].values()))
            if message["type"] in ("hello", "interrupt", "terminate", "ping"):
                keeper.write(b'{"type": "heard"}\n')
            for answer in answers_to(script_file, message):
                if answer == "die":
                    os._exit(1)
                keeper.write(json.dumps(answer).encode() + b"\n")
                if answer["type"] == "finish":
                    return
    drain(fds)


main()
