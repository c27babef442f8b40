"""Why the training hook is not in a job, in the agent's words."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("no_hook", sa.String(length=256), nullable=True))
