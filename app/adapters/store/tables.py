"""The tables. Dialect-neutral; times are UTC epoch seconds (float), so that SQLite and PostgreSQL agree on them."""

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(column_0_label)s",
        "uq": "uq_%(table_name)s_%(column_0_name)s",
        "fk": "fk_%(table_name)s_%(column_0_name)s",
        "pk": "pk_%(table_name)s",
    }
)

# One row a delivery: the raw body as received. No unique key on content: a firing, resolved, firing
# sequence must keep its third.
deliveries = Table(
    "deliveries",
    metadata,
    Column("delivery_id", Integer, primary_key=True, autoincrement=True),
    Column("source", String(16), nullable=False),  # alertmanager | agent | solo
    Column("received_at", Float, nullable=False),
    Column("body", LargeBinary, nullable=False),
    Column("remote", String(64), nullable=False, default=""),
    Column("event_id", String(128), nullable=True, unique=True),  # agents' events only: idempotent by it
    Column("state", String(16), nullable=False, default="new"),  # new | exploding | done | bad
    Column("next_alert", Integer, nullable=False, default=0),  # how many alerts of the body are exploded already
    Column("error", Text, nullable=True),
    Index("ix_deliveries_open", "state", "delivery_id"),
)

# One row an episode of one fingerprint: from the first firing until closed.
episodes = Table(
    "episodes",
    metadata,
    Column("episode_id", Integer, primary_key=True, autoincrement=True),
    Column("fingerprint", String(64), nullable=False),
    Column("alertname", String(256), nullable=False),
    Column("labels", JSON, nullable=False),
    Column("annotations", JSON, nullable=False),
    Column("starts_at", Float, nullable=True),  # of the newest firing seen
    Column("opened_at", Float, nullable=False),  # our receipt of the first firing
    Column("last_seen_at", Float, nullable=False),
    Column("resolved_at", Float, nullable=True),  # our receipt of the last resolved; None while firing
    Column("closed_at", Float, nullable=True),
    Column("repeats", Integer, nullable=False, default=0),
    Column("recheck_at", Float, nullable=True),  # the verdict was `wait`: asked again then
    Column("messaged", Boolean, nullable=False, default=False),  # a person heard of this episode
    Column("job_id", String(64), nullable=True),
    Column("policy", String(128), nullable=True),
    Column("reason", String(64), nullable=True),  # of the newest decision
    Column("first_delivery_id", Integer, nullable=True),
    Index("ix_episodes_fingerprint", "fingerprint", "episode_id"),
    Index("ix_episodes_recheck", "recheck_at"),
    Index("ix_episodes_open", "closed_at", "resolved_at"),
)

decisions = Table(
    "decisions",
    metadata,
    Column("decision_id", Integer, primary_key=True, autoincrement=True),
    Column("episode_id", Integer, ForeignKey("episodes.episode_id", ondelete="CASCADE"), nullable=True, index=True),
    Column("delivery_id", Integer, nullable=True),
    Column("decided_at", Float, nullable=False, index=True),
    Column("verdict", String(16), nullable=False),
    Column("reason", String(64), nullable=False),
    Column("policy", String(128), nullable=False, default=""),
    Column("job_id", String(64), nullable=False, default=""),
    Column("remediation_id", String(32), nullable=True),
    Column("facts", JSON, nullable=False),
)

jobs = Table(
    "jobs",
    metadata,
    Column("job_id", String(64), primary_key=True),
    Column("name", String(128), nullable=False),
    Column("host_id", String(64), nullable=False),
    Column("node", String(256), nullable=False),
    Column("boot_id", String(64), nullable=False, default=""),
    Column("generation", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("enforce", Boolean, nullable=False, default=False),
    Column("held", Boolean, nullable=False, default=False),
    Column("trainer", String(64), nullable=False, default="unknown"),
    Column("labels", JSON, nullable=False),
    Column("gpus", JSON, nullable=True),  # [{"uuid", "index"}] or null: unknown
    Column("host_gpus", JSON, nullable=False),
    Column("can", JSON, nullable=False),
    Column("ranks", Integer, nullable=False, default=1),
    Column("multi_node", Boolean, nullable=False, default=False),
    Column("registered_at", Float, nullable=False),
    Column("seen_at", Float, nullable=False),
    Column("clock_skew_s", Float, nullable=False, default=0.0),
    Column("ended_cause", String(32), nullable=True),
    Column("ended_at", Float, nullable=True),
    Column("waits_until", Float, nullable=True),  # state waiting: until when an order can still launch
    Column("sample", JSON, nullable=True),  # the newest heartbeat, as received
    Column("config_name", String(256), nullable=True),
    Column("model_type", String(64), nullable=True),
    Column("knobs", JSON, nullable=True),  # {canonical name: value}; null: unknown
    Column("changeable", JSON, nullable=True),  # [canonical name] of those that an order may change
    Column("cpus", Integer, nullable=True),
    Column("no_hook", String(256), nullable=True),
    Index("ix_jobs_state", "state"),
    Index("ix_jobs_host", "host_id", "name"),
)

remediations = Table(
    "remediations",
    metadata,
    Column("remediation_id", String(32), primary_key=True),  # short, shown to people: R-7F3K2M
    Column("job_id", String(64), ForeignKey("jobs.job_id"), nullable=False, index=True),
    Column("episode_id", Integer, nullable=True, index=True),  # None: a person asked for it
    Column("policy", String(128), nullable=False),
    Column("policy_digest", String(64), nullable=False, default=""),
    Column("equivalence_group", String(64), nullable=False, default=""),
    Column("plan", JSON, nullable=False),  # the policy as it was: steps, confirm, limits, expectation
    Column("step", Integer, nullable=False, default=0),  # index of the plan's current step
    Column("state", String(32), nullable=False),
    Column("open", Boolean, nullable=False),  # state is not an ending one
    Column("reason", String(64), nullable=False),  # why it is where it is
    Column("facts", JSON, nullable=False),  # gathered on the way: changes, receipt step, checkpoint path, ...
    Column("generation", Integer, nullable=False),  # the one it began with
    Column("rolled_back", Boolean, nullable=False, default=False),
    Column("opened_at", Float, nullable=False),
    Column("ended_at", Float, nullable=True),
    Column("state_since", Float, nullable=False),
    Column("wake_at", Float, nullable=True),  # when a stage must look at it again
    Column("lease_owner", String(64), nullable=True),
    Column("lease_until", Float, nullable=True),
    Column("epoch", Integer, nullable=False, default=0),
    # At most one open remediation per job. A partial unique index: SQLite and PostgreSQL both have it.
    Index(
        "uq_remediations_one_open_per_job",
        "job_id",
        unique=True,
        sqlite_where=text("open = 1"),
        postgresql_where=text("open"),
    ),
    Index("ix_remediations_wake", "open", "wake_at"),
)

# One row an attempt of a step: the intent is committed before the effect, the outcome with the next intent.
steps = Table(
    "steps",
    metadata,
    Column("remediation_id", String(32), ForeignKey("remediations.remediation_id", ondelete="CASCADE"), nullable=False),
    Column("step", Integer, nullable=False),
    Column("attempt", Integer, nullable=False, default=1),
    Column("kind", String(16), nullable=False),
    Column("intent_at", Float, nullable=False),
    Column("outcome_at", Float, nullable=True),
    Column("outcome", String(32), nullable=True),
    Column("detail", JSON, nullable=False),
    UniqueConstraint("remediation_id", "step", "attempt"),
)

orders = Table(
    "orders",
    metadata,
    Column("order_id", String(32), primary_key=True),
    Column("job_id", String(64), ForeignKey("jobs.job_id"), nullable=False, index=True),
    Column("remediation_id", String(32), nullable=True, index=True),
    Column("generation", Integer, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("body", JSON, nullable=False),  # the order as it is sent, but for expires_in_s
    Column("state", String(16), nullable=False),  # open | withdrawn | ended
    Column("phase", String(16), nullable=True),  # the newest reported
    Column("issued_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),  # our own clock; only the rest is ever sent
    Column("ended_at", Float, nullable=True),
    Index(
        "uq_orders_one_open_per_job",
        "job_id",
        unique=True,
        sqlite_where=text("state = 'open'"),
        postgresql_where=text("state = 'open'"),
    ),
)

order_reports = Table(
    "order_reports",
    metadata,
    Column("order_id", String(32), ForeignKey("orders.order_id", ondelete="CASCADE"), primary_key=True),
    Column("phase", String(16), primary_key=True),
    Column("reason", String(64), nullable=True),
    Column("detail", JSON, nullable=False),
    Column("received_at", Float, nullable=False),
    Column("applied", Boolean, nullable=False, default=False),  # the worker has moved the remediation by it
    Column("go", Boolean, nullable=True),  # phase planned: what was answered
)

# Reserved before the first intent; counted in a sliding window.
reservations = Table(
    "reservations",
    metadata,
    Column("reservation_id", Integer, primary_key=True, autoincrement=True),
    Column("job_id", String(64), nullable=False),
    Column("remediation_id", String(32), nullable=False, index=True),
    Column("equivalence_group", String(64), nullable=False),
    Column("kind", String(16), nullable=False),  # save | stop | replace | run_command
    Column("reserved_at", Float, nullable=False),
    Index("ix_reservations_job", "job_id", "equivalence_group", "reserved_at"),
    Index("ix_reservations_time", "reserved_at"),
)

# One row: the breaker. It opens by itself and only a person closes it.
breaker = Table(
    "breaker",
    metadata,
    Column("breaker_id", Integer, primary_key=True, autoincrement=False),  # always 1
    Column("opened_at", Float, nullable=True),
    Column("reason", String(64), nullable=True),
    Column("broken_in_a_row", Integer, nullable=False, default=0),
    Column("closed_by", String(128), nullable=True),
    Column("closed_at", Float, nullable=True),
)

outbox = Table(
    "outbox",
    metadata,
    Column("outbox_id", Integer, primary_key=True, autoincrement=True),
    Column("target", String(64), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("remediation_id", String(32), nullable=True, index=True),
    Column("dedup_key", String(160), nullable=True, unique=True),  # "<remediation>:<moment>:<target>": said once
    Column("payload", JSON, nullable=False),  # the Notice
    Column("state", String(16), nullable=False, default="pending"),  # pending | sending | sent | dead | merged
    Column("attempts", Integer, nullable=False, default=0),
    Column("next_attempt_at", Float, nullable=False),
    Column("lease_owner", String(64), nullable=True),
    Column("lease_until", Float, nullable=True),
    Column("epoch", Integer, nullable=False, default=0),
    Column("created_at", Float, nullable=False),
    Column("sent_at", Float, nullable=True),
    Column("last_error", Text, nullable=True),
    Column("possibly_repeated", Boolean, nullable=False, default=False),
    Column("digest_id", Integer, nullable=True),
    Index("ix_outbox_due", "state", "next_attempt_at"),
)

# What each robot may still do: sends of the last minute, and until when it is blocked.
robots = Table(
    "robots",
    metadata,
    Column("target", String(64), primary_key=True),
    Column("sends", JSON, nullable=False),  # epoch seconds of the sends in the window
    Column("blocked_until", Float, nullable=True),
    Column("broken", Text, nullable=True),  # a permanent error: a person must change something
)

audit = Table(
    "audit",
    metadata,
    Column("audit_id", Integer, primary_key=True, autoincrement=True),
    Column("at", Float, nullable=False, index=True),
    Column("action", String(64), nullable=False),
    Column("actor", String(64), nullable=False),  # service | agent | a person's name on the command line
    Column("job_id", String(64), nullable=True, index=True),
    Column("remediation_id", String(32), nullable=True, index=True),
    Column("reason", String(64), nullable=True),
    Column("detail", JSON, nullable=False),
)
