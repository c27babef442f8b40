"""A notebook server with one kernel: a real ipykernel that runs the cells which the file `cells` names, one by one.

`cells` holds a JSON string a line, or `"interrupt"` for the button; each cell's answer is a line of `replies`.
"""

import json
import time
from pathlib import Path
from queue import Empty

from jupyter_client.manager import KernelManager

manager = KernelManager()
manager.start_kernel()
client = manager.client()
client.start_channels()
client.wait_for_ready(timeout=120)


def lines():
    return Path("cells").read_text(encoding="utf-8").splitlines() if Path("cells").exists() else []


def answer(message_id):
    """The reply, or None after a moment: then an interrupt is looked for."""
    try:
        reply = client.get_shell_msg(timeout=0.1)
    except Empty:
        return None
    return reply["content"] if reply["parent_header"]["msg_id"] == message_id else None


done = 0
while True:
    if len(lines()) == done:
        time.sleep(0.05)
        continue
    cell = json.loads(lines()[done])
    done += 1
    message_id = client.execute(cell, stop_on_error=False)
    while (content := answer(message_id)) is None:
        if len(lines()) > done and json.loads(lines()[done]) == "interrupt":
            done += 1
            manager.interrupt_kernel()
    said = {"status": content["status"], "error": content.get("ename"), "value": content.get("evalue")}
    with Path("replies").open("a", encoding="utf-8") as file:
        file.write(json.dumps({**said, "pid": manager.provisioner.pid}) + "\n")
