"""Parse JSON and YAML safely, find the lines of JSON pointers, suggest similar names, and read bounded files."""
