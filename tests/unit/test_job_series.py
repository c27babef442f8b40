"""The series of a job: their labels, and what stands in them."""

import math
from collections.abc import Mapping
from dataclasses import fields

import pytest

from tunewarden.domain.job_series import LONGEST_LABEL, MOST_USER_LABELS, Family, families, job_labels, label_fits
from tunewarden.domain.sample import Heartbeat, JobSample

OWN = {
    "training_job": "cat",
    "training_job_id": "j1",
    "generation": "2",
    "node": "n1",
    "config_name": "cat.toml",
    "model_type": "sdxl",
}


def labels(user: Mapping[str, str] | None = None, *, config_name: str = "cat.toml") -> dict[str, str]:
    return job_labels(
        name="cat",
        job_id="j1",
        generation=2,
        node="n1",
        config_name=config_name,
        model_type="sdxl",
        user=user or {},
    )


def shown(**job: object) -> dict[str, Family]:
    beat = Heartbeat.from_wire({"generation": 1, "state": "running", "job": job})
    return {family.name: family for family in families([({"training_job_id": "j1"}, beat.job)])}


def test_a_job_has_our_labels_and_none_that_is_empty() -> None:
    """An empty label is no label to Prometheus."""
    assert (labels(), labels(config_name="")) == (OWN, {k: v for k, v in OWN.items() if k != "config_name"})


@pytest.mark.parametrize(
    ("user", "added"),
    [
        ({"owner": "li"}, {"owner": "li"}),
        ({"learning-rate": "1e-4"}, {"learning_rate": "1e-4"}),
        ({"学": "x"}, {"_": "x"}),
        ({"node": "other"}, {"label_node": "other"}),
        ({"job": "x", "le": "1"}, {"label_job": "x", "label_le": "1"}),
        ({"__name__": "x"}, {"label_name__": "x"}),
        ({"9lives": "x"}, {"label_9lives": "x"}),
        ({"exported_job": "x"}, {"label_exported_job": "x"}),
        ({"empty": ""}, {}),
        ({"a-b": "first", "a.b": "second"}, {"a_b": "first"}),
        ({"label_node": "b", "node": "a"}, {"label_node": "b"}),
        ({"long": "x" * 1000}, {"long": "x" * LONGEST_LABEL}),
        ({"half": "a\ud800"}, {"half": "a?"}),
    ],
)
def test_a_label_of_the_user_is_one_of_prometheus(user: dict[str, str], added: dict[str, str]) -> None:
    """Its name is made to fit, never one of ours; two that become one are one."""
    assert labels(user) == {**OWN, **added}


def test_the_user_knows_what_is_trained() -> None:
    """--label model_type is no second label: it is that one."""
    assert labels({"model_type": "pony"}) == {**OWN, "model_type": "pony"}


def test_ten_labels_of_the_user_at_most() -> None:
    """Always the same ten: another series would be another history."""
    many = {f"l{number:02}": "x" for number in range(30)}

    assert [name for name in labels(many) if name.startswith("l")] == [f"l{n:02}" for n in range(MOST_USER_LABELS)]
    assert labels(dict(reversed(many.items()))) == labels(many)


@pytest.mark.parametrize(
    ("name", "fits"),
    [("owner", True), ("model_type", True), ("node", False), ("__x", False), ("a-b", False), ("", False), ("9", False)],
)
def test_which_names_the_command_line_takes(name: str, fits: bool) -> None:
    """What would be shown under another name is refused there."""
    assert label_fits(name) is fits


@pytest.mark.parametrize(("said", "value"), [("nan", math.nan), ("inf", math.inf), ("-inf", -math.inf), (0.5, 0.5)])
def test_a_loss_that_is_no_number_is_shown(said: object, value: float) -> None:
    """NaN is the news."""
    assert repr(shown(loss=said)["tunewarden_job_loss"].points[0].value) == repr(value)


@pytest.mark.parametrize("wrong", ["NaN", "1.5", "", True, [], {"nan": 1}])
def test_a_loss_of_another_kind_has_no_series(wrong: object) -> None:
    """Only the three words of the contract stand for numbers."""
    assert "tunewarden_job_loss" not in shown(loss=wrong, step=1)


@pytest.mark.parametrize("source", ["hook", "trainer", None, "log"])
def test_only_what_was_read_in_the_log_is_marked(source: str | None) -> None:
    """And only the series that were read there: memory and CPU are measured all the same."""
    found = shown(
        source=source, step=3, step_seconds_sum=1.5, step_seconds_count=3, phase="train", cpu_cores=0.5, loss=1
    )
    marked = {name for name, family in found.items() for point in family.points if "source" in point.labels}

    assert marked == (set(found) - {"tunewarden_job_cpu_cores"} if source == "log" else set())
    assert all(point.labels.get("source", "log") == "log" for family in found.values() for point in family.points)


def test_an_agent_of_last_week_is_understood() -> None:
    """What it doesn't say has no series."""
    old = {"step": 120, "loss": 0.12, "step_seconds_sum": 53.1, "step_seconds_count": 120}

    assert set(shown(**old)) == {
        "tunewarden_job_optimizer_steps",
        "tunewarden_job_loss",
        "pytorch_step_duration_seconds",
    }


def test_a_job_has_few_series() -> None:
    """What the page promises: fewer than 40, everything measured."""
    everything = dict.fromkeys((field.name for field in fields(JobSample)), 1) | {"phase": "eval", "source": "log"}
    points = [point for family in shown(**everything).values() for point in family.points]

    assert 30 < len(points) + 2 < 40  # and tunewarden_job_info, and tunewarden_job_gpu for a card
