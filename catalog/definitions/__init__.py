"""Definitions: options, references and bases laid together, and the constraints of them."""
