"""Storage: tables, migrations, and reading and writing within one transaction."""
