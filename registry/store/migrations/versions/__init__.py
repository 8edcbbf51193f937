"""Migrations, one module for each step."""
