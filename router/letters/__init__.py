"""Dead letters after they were written: reading them back, their standing, showing and removing them."""
