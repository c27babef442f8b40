"""Bring a database to the newest schema, in one transaction. Imported only by a start that finds an older one."""

from pathlib import Path

from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from alembic.script.revision import RevisionError
from alembic.util import CommandError
from sqlalchemy import Connection

from tunewarden.errors import StoreUnavailable

SCRIPTS = Path(__file__).parent / "migrations"


def upgrade(conn: Connection) -> None:
    """Run what is missing. `conn` is in autocommit: the transaction is ours, so a kill leaves the old schema whole.

    Raises StoreUnavailable when the database was written by a newer tunewarden.
    """
    script = ScriptDirectory(str(SCRIPTS))
    context = MigrationContext.configure(conn, opts={"target_metadata": None})
    current = context.get_current_revision()
    try:
        missing = list(script.iterate_revisions("head", current or "base"))
    except (CommandError, RevisionError):
        raise StoreUnavailable(
            f"the store has schema {current}, which this version doesn't know: it was written by a newer tunewarden"
        ) from None
    if not missing:
        return
    conn.exec_driver_sql("BEGIN IMMEDIATE")
    with Operations.context(context):
        for revision in reversed(missing):
            revision.module.upgrade()
            context.stamp(script, revision.revision)
    conn.exec_driver_sql("COMMIT")
