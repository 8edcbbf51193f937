"""What operations mean, whatever protocol they come by: places, views, writes and what they bring about."""
