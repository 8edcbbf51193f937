"""Migrations of the tables, which Alembic runs at startup."""
