"""What a registration says of the config: its name, the kind of model, the knobs and those that can change."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("jobs", sa.Column("config_name", sa.String(length=256), nullable=True))
    op.add_column("jobs", sa.Column("model_type", sa.String(length=64), nullable=True))
    op.add_column("jobs", sa.Column("knobs", sa.JSON(), nullable=True))
    op.add_column("jobs", sa.Column("changeable", sa.JSON(), nullable=True))
