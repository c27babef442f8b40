"""The first schema.

Explicit on purpose: a migration never changes after it was released. tables.py is what it must add up to, and a test
compares the two.
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "audit",
        sa.Column("audit_id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("action", sa.String(length=64), nullable=False),
        sa.Column("actor", sa.String(length=64), nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=True),
        sa.Column("remediation_id", sa.String(length=32), nullable=True),
        sa.Column("reason", sa.String(length=64), nullable=True),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("audit_id", name=op.f("pk_audit")),
    )
    op.create_index(op.f("ix_audit_at"), "audit", ["at"], unique=False)
    op.create_index(op.f("ix_audit_job_id"), "audit", ["job_id"], unique=False)
    op.create_index(op.f("ix_audit_remediation_id"), "audit", ["remediation_id"], unique=False)
    op.create_table(
        "breaker",
        sa.Column("breaker_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("opened_at", sa.Float(), nullable=True),
        sa.Column("reason", sa.String(length=64), nullable=True),
        sa.Column("broken_in_a_row", sa.Integer(), nullable=False),
        sa.Column("closed_by", sa.String(length=128), nullable=True),
        sa.Column("closed_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("breaker_id", name=op.f("pk_breaker")),
    )
    op.create_table(
        "deliveries",
        sa.Column("delivery_id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("source", sa.String(length=16), nullable=False),
        sa.Column("received_at", sa.Float(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("remote", sa.String(length=64), nullable=False),
        sa.Column("event_id", sa.String(length=128), nullable=True),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("next_alert", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("delivery_id", name=op.f("pk_deliveries")),
        sa.UniqueConstraint("event_id", name=op.f("uq_deliveries_event_id")),
    )
    op.create_index("ix_deliveries_open", "deliveries", ["state", "delivery_id"], unique=False)
    op.create_table(
        "episodes",
        sa.Column("episode_id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("alertname", sa.String(length=256), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("annotations", sa.JSON(), nullable=False),
        sa.Column("starts_at", sa.Float(), nullable=True),
        sa.Column("opened_at", sa.Float(), nullable=False),
        sa.Column("last_seen_at", sa.Float(), nullable=False),
        sa.Column("resolved_at", sa.Float(), nullable=True),
        sa.Column("closed_at", sa.Float(), nullable=True),
        sa.Column("repeats", sa.Integer(), nullable=False),
        sa.Column("recheck_at", sa.Float(), nullable=True),
        sa.Column("messaged", sa.Boolean(), nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=True),
        sa.Column("policy", sa.String(length=128), nullable=True),
        sa.Column("reason", sa.String(length=64), nullable=True),
        sa.Column("first_delivery_id", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("episode_id", name=op.f("pk_episodes")),
    )
    op.create_index("ix_episodes_fingerprint", "episodes", ["fingerprint", "episode_id"], unique=False)
    op.create_index("ix_episodes_open", "episodes", ["closed_at", "resolved_at"], unique=False)
    op.create_index("ix_episodes_recheck", "episodes", ["recheck_at"], unique=False)
    op.create_table(
        "jobs",
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=128), nullable=False),
        sa.Column("host_id", sa.String(length=64), nullable=False),
        sa.Column("node", sa.String(length=256), nullable=False),
        sa.Column("boot_id", sa.String(length=64), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("enforce", sa.Boolean(), nullable=False),
        sa.Column("held", sa.Boolean(), nullable=False),
        sa.Column("trainer", sa.String(length=64), nullable=False),
        sa.Column("labels", sa.JSON(), nullable=False),
        sa.Column("gpus", sa.JSON(), nullable=True),
        sa.Column("host_gpus", sa.JSON(), nullable=False),
        sa.Column("can", sa.JSON(), nullable=False),
        sa.Column("ranks", sa.Integer(), nullable=False),
        sa.Column("multi_node", sa.Boolean(), nullable=False),
        sa.Column("registered_at", sa.Float(), nullable=False),
        sa.Column("seen_at", sa.Float(), nullable=False),
        sa.Column("clock_skew_s", sa.Float(), nullable=False),
        sa.Column("ended_cause", sa.String(length=32), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("waits_until", sa.Float(), nullable=True),
        sa.Column("sample", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_jobs")),
    )
    op.create_index("ix_jobs_host", "jobs", ["host_id", "name"], unique=False)
    op.create_index("ix_jobs_state", "jobs", ["state"], unique=False)
    op.create_table(
        "outbox",
        sa.Column("outbox_id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("target", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("remediation_id", sa.String(length=32), nullable=True),
        sa.Column("dedup_key", sa.String(length=160), nullable=True),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("next_attempt_at", sa.Float(), nullable=False),
        sa.Column("lease_owner", sa.String(length=64), nullable=True),
        sa.Column("lease_until", sa.Float(), nullable=True),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("sent_at", sa.Float(), nullable=True),
        sa.Column("last_error", sa.Text(), nullable=True),
        sa.Column("possibly_repeated", sa.Boolean(), nullable=False),
        sa.Column("digest_id", sa.Integer(), nullable=True),
        sa.PrimaryKeyConstraint("outbox_id", name=op.f("pk_outbox")),
        sa.UniqueConstraint("dedup_key", name=op.f("uq_outbox_dedup_key")),
    )
    op.create_index("ix_outbox_due", "outbox", ["state", "next_attempt_at"], unique=False)
    op.create_index(op.f("ix_outbox_remediation_id"), "outbox", ["remediation_id"], unique=False)
    op.create_table(
        "reservations",
        sa.Column("reservation_id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("remediation_id", sa.String(length=32), nullable=False),
        sa.Column("equivalence_group", sa.String(length=64), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("reserved_at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("reservation_id", name=op.f("pk_reservations")),
    )
    op.create_index("ix_reservations_job", "reservations", ["job_id", "equivalence_group", "reserved_at"], unique=False)
    op.create_index(op.f("ix_reservations_remediation_id"), "reservations", ["remediation_id"], unique=False)
    op.create_index("ix_reservations_time", "reservations", ["reserved_at"], unique=False)
    op.create_table(
        "robots",
        sa.Column("target", sa.String(length=64), nullable=False),
        sa.Column("sends", sa.JSON(), nullable=False),
        sa.Column("blocked_until", sa.Float(), nullable=True),
        sa.Column("broken", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("target", name=op.f("pk_robots")),
    )
    op.create_table(
        "decisions",
        sa.Column("decision_id", sa.Integer(), autoincrement=True, nullable=False),
        sa.Column("episode_id", sa.Integer(), nullable=True),
        sa.Column("delivery_id", sa.Integer(), nullable=True),
        sa.Column("decided_at", sa.Float(), nullable=False),
        sa.Column("verdict", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=False),
        sa.Column("policy", sa.String(length=128), nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("remediation_id", sa.String(length=32), nullable=True),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["episode_id"], ["episodes.episode_id"], name=op.f("fk_decisions_episode_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("decision_id", name=op.f("pk_decisions")),
    )
    op.create_index(op.f("ix_decisions_decided_at"), "decisions", ["decided_at"], unique=False)
    op.create_index(op.f("ix_decisions_episode_id"), "decisions", ["episode_id"], unique=False)
    op.create_table(
        "orders",
        sa.Column("order_id", sa.String(length=32), nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("remediation_id", sa.String(length=32), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("state", sa.String(length=16), nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=True),
        sa.Column("issued_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_orders_job_id")),
        sa.PrimaryKeyConstraint("order_id", name=op.f("pk_orders")),
    )
    op.create_index(op.f("ix_orders_job_id"), "orders", ["job_id"], unique=False)
    op.create_index(op.f("ix_orders_remediation_id"), "orders", ["remediation_id"], unique=False)
    op.create_index(
        "uq_orders_one_open_per_job",
        "orders",
        ["job_id"],
        unique=True,
        sqlite_where=sa.text("state = 'open'"),
        postgresql_where=sa.text("state = 'open'"),
    )
    op.create_table(
        "remediations",
        sa.Column("remediation_id", sa.String(length=32), nullable=False),
        sa.Column("job_id", sa.String(length=64), nullable=False),
        sa.Column("episode_id", sa.Integer(), nullable=True),
        sa.Column("policy", sa.String(length=128), nullable=False),
        sa.Column("policy_digest", sa.String(length=64), nullable=False),
        sa.Column("equivalence_group", sa.String(length=64), nullable=False),
        sa.Column("plan", sa.JSON(), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("open", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=False),
        sa.Column("facts", sa.JSON(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("rolled_back", sa.Boolean(), nullable=False),
        sa.Column("opened_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("state_since", sa.Float(), nullable=False),
        sa.Column("wake_at", sa.Float(), nullable=True),
        sa.Column("lease_owner", sa.String(length=64), nullable=True),
        sa.Column("lease_until", sa.Float(), nullable=True),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["jobs.job_id"], name=op.f("fk_remediations_job_id")),
        sa.PrimaryKeyConstraint("remediation_id", name=op.f("pk_remediations")),
    )
    op.create_index(op.f("ix_remediations_episode_id"), "remediations", ["episode_id"], unique=False)
    op.create_index(op.f("ix_remediations_job_id"), "remediations", ["job_id"], unique=False)
    op.create_index("ix_remediations_wake", "remediations", ["open", "wake_at"], unique=False)
    op.create_index(
        "uq_remediations_one_open_per_job",
        "remediations",
        ["job_id"],
        unique=True,
        sqlite_where=sa.text("open = 1"),
        postgresql_where=sa.text("open"),
    )
    op.create_table(
        "order_reports",
        sa.Column("order_id", sa.String(length=32), nullable=False),
        sa.Column("phase", sa.String(length=16), nullable=False),
        sa.Column("reason", sa.String(length=64), nullable=True),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.Column("received_at", sa.Float(), nullable=False),
        sa.Column("applied", sa.Boolean(), nullable=False),
        sa.Column("go", sa.Boolean(), nullable=True),
        sa.ForeignKeyConstraint(
            ["order_id"], ["orders.order_id"], name=op.f("fk_order_reports_order_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("order_id", "phase", name=op.f("pk_order_reports")),
    )
    op.create_table(
        "steps",
        sa.Column("remediation_id", sa.String(length=32), nullable=False),
        sa.Column("step", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("intent_at", sa.Float(), nullable=False),
        sa.Column("outcome_at", sa.Float(), nullable=True),
        sa.Column("outcome", sa.String(length=32), nullable=True),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.ForeignKeyConstraint(
            ["remediation_id"],
            ["remediations.remediation_id"],
            name=op.f("fk_steps_remediation_id"),
            ondelete="CASCADE",
        ),
        sa.UniqueConstraint("remediation_id", "step", "attempt", name=op.f("uq_steps_remediation_id")),
    )
