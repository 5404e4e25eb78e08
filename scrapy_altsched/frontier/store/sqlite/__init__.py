"""Stores of SQLite, through Python's own ``sqlite3``."""
