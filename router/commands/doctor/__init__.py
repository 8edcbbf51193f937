"""``xrouter doctor``: whether machine and settings would let a router start."""
