"""The dispatcher on a real store: from a delivery to the order."""

from pathlib import Path

from tests.acceptance.deciding_world import World
from tunewarden.adapters.store import tables


def test_pressure_with_a_second_sign_ends_in_one_order(tmp_path: Path) -> None:
    """The order is there with the commit that decided."""
    with World(tmp_path, enforce=True) as world:
        world.job("j1")
        world.heartbeat("j1")

        world.deliver(world.alert("GpuMemoryNearlyFull", uuid="GPU-1", node="gpu-node-1"))

        assert world.decisions() == [("act", "policy_matched")]
        [order] = world.rows(tables.orders)
        assert (order["kind"], order["body"]["knobs"], order["state"]) == ("replace", {"batch_size": "/2"}, "open")
        assert world.messages() == [("decided", "policy_matched")]
