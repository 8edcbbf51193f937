"""Whether versions keep to their format, and to the compatibility that their resource promises."""
