"""At each start: is the schema the newest? Only when it isn't, alembic is imported.

alembic is a fifth of what a start costs, and all but the first start after an update need nothing of it.
"""

from importlib import import_module

from sqlalchemy import Connection, inspect

HEAD = "0004"  # the newest file in migrations/versions; a test compares


def migrate(conn: Connection) -> None:
    """Run what is missing.

    Raises StoreUnavailable when the database was written by a newer tunewarden.
    """
    if not inspect(conn).has_table("alembic_version") or _version(conn) != HEAD:
        import_module("tunewarden.adapters.store.upgrade").upgrade(conn)


def _version(conn: Connection) -> str | None:
    version: str | None = conn.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
    return version
