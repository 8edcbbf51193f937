"""Steps from one form of the tables to the next, run by Alembic at the start."""
