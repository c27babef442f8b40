"""The store: SQLAlchemy Core on SQLite, one writer. One module a noun."""
