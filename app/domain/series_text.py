"""Series in Prometheus's text format 0.0.4.

prometheus_client would do, but it checks and escapes each label of each sample anew: with 2000 jobs that is seconds of
the service's one thread, and in the agent it would take more memory than all the rest.
"""

import math
from collections.abc import Iterable, Mapping

from tunewarden.domain.job_series import Family, Kind

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def rendered(shown: Iterable[Family]) -> bytes:
    """The text; a family without points is left out, for it would say "there is such a thing" and show nothing."""
    families = [family for family in shown if family.points]  # held, so that no two label sets get one id
    texts: dict[int, str] = {}
    lines = []
    for family in families:
        name = f"{family.name}_total" if family.kind is Kind.COUNTER else family.name
        lines += [f"# HELP {name} {family.text}", f"# TYPE {name} {family.kind}"]
        for point in family.points:
            labels = texts.get(id(point.labels))
            if labels is None:
                labels = texts[id(point.labels)] = _labels(point.labels)
            lines.append(f"{family.name}{point.suffix}{labels} {_number(point.value)}")
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")


def _labels(labels: Mapping[str, str]) -> str:
    return "{" + ",".join(f'{name}="{text.translate(_ESCAPES)}"' for name, text in sorted(labels.items())) + "}"


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return repr(value) if math.isfinite(value) else ("+Inf" if value > 0 else "-Inf")
