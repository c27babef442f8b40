"""Who hears of a remediation: outbox rows, one for each target, in the transaction of the move itself."""

from dataclasses import dataclass

from sqlalchemy import Connection

from tunewarden.adapters.store import outbox
from tunewarden.domain.message import Notice, NoticeKind


@dataclass(frozen=True, kw_only=True)
class TellTargets:
    """`targets` hear of decisions and outcomes; of those, the `verbose` ones hear of the restart too."""

    targets: tuple[str, ...]
    verbose: frozenset[str] = frozenset()

    def __call__(self, conn: Connection, notice: Notice, *, remediation_id: str, moment: str, now: float) -> None:
        """The key `<remediation>:<moment>:<target>` is unique: each moment is said once to each target."""
        for target in self.targets:
            if notice.kind is NoticeKind.RESTARTED and target not in self.verbose:
                continue
            key = f"{remediation_id}:{moment}:{target}"
            outbox.add(conn, target, notice, now=now, remediation_id=remediation_id, dedup_key=key)
