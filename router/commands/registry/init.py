"""``xrouter registry init``: the store of a registry."""

from __future__ import annotations

from router.commands.registry.opening import ConfigArgument, opened
from router.terminal import say


def init(config: ConfigArgument) -> None:
    """Make the store of a registry, or bring it to the form of this version; `serve` does so too.

    Example: xrouter registry init registry.yaml
    """
    with opened(config):
        say("the registry is ready")
