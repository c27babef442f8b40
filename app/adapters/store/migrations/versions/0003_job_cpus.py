"""How many CPUs a job's host has: how many workers may load its data."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("cpus", sa.Integer(), nullable=True))
