"""What is kept: tables, their migrations, and reading and writing within one transaction."""
