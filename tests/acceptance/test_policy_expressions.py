"""The shipped policies' PromQL, evaluated by the real promtool over series that tell a leak from a full card."""

import json
import subprocess
from pathlib import Path

import pytest

from tunewarden.adapters.policy_file import load_policies
from tunewarden.domain.evidence import substitute
from tunewarden.shipped import shipped_dir

POLICIES = {policy.name: policy for policy in load_policies([shipped_dir("rules") / "policies"])}
VALUES = {"uuid": "GPU-1", "node": "n", "training_job_id": "j", "training_job": "n", "window": "5m"}
USABLE = 24_000  # the numbers are "bytes" of a small card


def holds(tmp_path: Path, expr: str, used: str, at: str = "40m") -> bool:
    """Whether `expr` is not empty at `at`, with one sample of `used` a minute."""
    labels = '{uuid="GPU-1", node="n", gpu="0", source="tunewarden"}'
    rules = tmp_path / "rules.yml"
    rules.write_text(
        json.dumps(
            {
                "groups": [
                    {
                        "name": "g",
                        "rules": [
                            {
                                "record": "gpu:memory_used:ratio",
                                "expr": "gpu:memory_used_bytes / gpu:memory_usable_bytes",
                            }
                        ],
                    }
                ]
            }
        )
    )
    test = {
        "rule_files": [str(rules)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [
                    {"series": f"gpu:memory_used_bytes{labels}", "values": used},
                    {"series": f"gpu:memory_usable_bytes{labels}", "values": f"{USABLE}x60"},
                ],
                "promql_expr_test": [
                    {"expr": f"count({expr})", "eval_time": at, "exp_samples": [{"labels": "{}", "value": 1}]}
                ],
            }
        ],
    }
    path = tmp_path / "test.yml"
    path.write_text(json.dumps(test))
    done = subprocess.run(["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False)
    assert "parse" not in done.stderr + done.stdout, done.stderr + done.stdout
    return done.returncode == 0


@pytest.mark.parametrize(
    ("used", "expected"),
    [
        ("20000+80x60", True),  # a floor that rises: full within half an hour
        ("20000+5x60", False),  # it rises, but not so soon
        ("23280x60", False),  # flat at 97 %
        ("5000x30 21000x30", False),  # one jump: a model load
        ("23600+5x60", False),  # 98 % already: prediction says nothing more
        ("23000-80x60", False),  # it falls
    ],
)
def test_exhaustion_is_predicted_for_a_rising_floor_only(tmp_path: Path, used: str, expected: bool) -> None:
    """The second sign of vram-pressure."""
    sign = next(sign for sign in POLICIES["vram-pressure"].signs if sign.name == "exhaustion")
    expr = substitute(sign.expr, VALUES)
    assert expr is not None

    assert holds(tmp_path, expr, used) is expected


@pytest.mark.parametrize(("used", "expected"), [("23280x60", True), ("22800x60", False), ("23280x10 1000x50", False)])
@pytest.mark.parametrize("name", ["vram-pressure", "vram-95-stop"])
def test_the_confirmation_measures_the_card(tmp_path: Path, name: str, used: str, expected: bool) -> None:
    """95 % itself is not above 95 %."""
    expr = substitute(POLICIES[name].confirm[0].expr, VALUES)
    assert expr is not None

    assert holds(tmp_path, expr, used) is expected
