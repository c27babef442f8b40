"""Ranks that agree through a real TCPStore: python ranks_trial.py FOLDER SCENARIO… prints a JSON object a scenario.

One interpreter imports torch and forks the ranks; each is `ranks.Together` of the hook, without a training around it.
"""

import json
import os
import random
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from torch.distributed import PrefixStore, TCPStore
from tunewarden_trainhook import ranks
from tunewarden_trainhook.control import Control
from tunewarden_trainhook.log import Log

WORLD = 3


def together(store, folder, rank):
    control = Control(str(folder))
    session = SimpleNamespace(control=control, rank=rank, world_size=WORLD, log=Log(str(folder)))
    control.write(f"pid.{rank}.json", {"pid": os.getpid()})
    agreement = ranks.Together(session, store, "tunewarden/1")
    while store.add("tunewarden/1/here", 0) < WORLD:
        time.sleep(0.01)
    return agreement


def each_at_its_own_pace(agreement, rank):
    """60 boundaries, a request before the 20th of rank 0; gives those at which it was taken."""
    taken = []
    for boundary in range(1, 61):
        time.sleep(random.random() * 0.02 * (rank + 1))
        if (rank, boundary) == (0, 20):
            ask(agreement)
        request = agreement.poll(boundary)
        if request is not None:
            taken.append([boundary, request["request_id"], agreement.all_ok(True)])
    return taken


def ask(agreement):
    agreement._session.control.write("stop", {"request_id": "r-1", "mode": "save"})


def one_says_no(agreement, rank):
    return [agreement.all_ok(rank != 1), agreement.all_ok(True)]


def one_dies_before_the_barrier(agreement, rank):
    if rank == 1:
        os._exit(9)
    return agreement.all_ok(True)


def the_first_dies_before_its_word(agreement, rank):
    if rank == 0:
        os._exit(9)
    return [agreement.poll(1), agreement.poll(2)]


def one_has_stepped_aside(agreement, rank):
    if rank == 2:
        agreement.close()
        ask(agreement)
        return None
    return wait_for_answer(agreement)


def one_never_comes(agreement, rank):
    """And the others have only a second."""
    if rank == 2:
        time.sleep(3)
    return [agreement.all_ok(True), agreement.all_ok(True)]


def wait_for_answer(agreement):
    """200 boundaries of 10 ms: longer than the others need to hear of it."""
    return [boundary for boundary in range(200) if time.sleep(0.01) or agreement.poll(boundary) is not None]


def host(folder):
    """The store's server, in a process of its own as under torchrun: it outlives every rank."""
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    Control(str(folder)).write("server", {"port": server.port})
    while not (folder / "over").exists():
        time.sleep(0.05)


def run_rank(scenario, folder, rank):
    while (server := Control(str(folder)).read("server")) is None:
        time.sleep(0.01)
    store = PrefixStore("job", TCPStore("127.0.0.1", server["port"], is_master=False))
    agreement = together(store, folder, rank)
    if scenario == "one_never_comes":
        ranks.LONGEST_S = 1.0
    began = time.monotonic()
    result = globals()[scenario](agreement, rank)
    content = {"result": result, "seconds": time.monotonic() - began, "last": agreement._next}
    (folder / f"rank{rank}.json").write_text(json.dumps(content), encoding="utf-8")


def run_scenario(scenario, folder):
    folder.mkdir()
    server = forked(host, folder)
    children = [forked(run_rank, scenario, folder, rank) for rank in range(WORLD)]
    for child in children:
        os.waitpid(child, 0)
    (folder / "over").touch()
    os.waitpid(server, 0)


def forked(function, *args):
    """The parent has no thread of torch's: a fork of it is sound."""
    child = os.fork()
    if child == 0:
        try:
            function(*args)
        finally:
            os._exit(0)
    return child


if __name__ == "__main__":
    for name in sys.argv[2:]:
        run_scenario(name, Path(sys.argv[1]) / name)
