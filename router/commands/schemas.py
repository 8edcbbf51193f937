"""``xrouter schemas pull``: copy all schemas of schema registries to disk, for use without a network."""

# Small: one command.

from __future__ import annotations

from typing import Annotated

import typer

from bindings.private_files import set_umask_for
from catalog.schemas.ids.client import RegistryUnavailableError
from router.commands.arguments import ConfigArgument
from router.errors import BrokerUnreachable, ConfigError, RouterError
from router.logs import configure_logs
from router.schemaids.cache import MirrorProgress, mirror_registry
from router.schemaids.framing import registry_address, registry_folder
from router.settings import Settings, load_settings
from router.terminal import plural, print_text


def pull(
    config: ConfigArgument,
    registry: Annotated[
        list[str] | None, typer.Option("--registry", metavar="NAME", help="One of `schema_registries`; repeatable.")
    ] = None,
    subject: Annotated[
        list[str] | None, typer.Option("--subject", metavar="S", help="Only this subject; repeatable.")
    ] = None,
) -> None:
    """Copy the schemas of all subjects and versions, by id, to the state folder.

    Can run while the router is running. Schemas on disk are not fetched again, and the router does not need the
    registry for them. Exit code 5: a registry does not respond; schemas fetched so far are kept.

    Example: xrouter schemas pull router.yaml --registry lake --subject rides-value
    """
    settings = load_settings(config)
    configure_logs(settings.log)
    set_umask_for(settings.readable_by)
    known = settings.schema_registries
    if not known:
        raise ConfigError("the settings have no schema registry", hint="add schema_registries")
    for name in registry or ():
        if name not in known:
            raise RouterError(f"the settings have no schema registry {name}", hint=f"known: {', '.join(known)}")
    errors = [error for name in registry or known if (error := _pull(settings, name, subject or []))]
    if errors:
        first, *others = errors
        first.others = tuple(others)
        raise first


def _pull(settings: Settings, name: str, subjects: list[str]) -> RouterError | None:
    """Copy one registry and print the counts; return the error if it is incomplete."""
    tally = MirrorProgress()
    error: RouterError | None = None
    try:
        mirror_registry(
            registry_address(settings, name),
            registry_folder(settings, name),
            subjects,
            tally,
            lambda: print_text(f"{name}: {tally.versions} of {tally.found} versions", err=True),
        )
    except RegistryUnavailableError as away:
        error = BrokerUnreachable(str(away), hint="run this again when it responds; schemas fetched so far are kept")
    known = f"{tally.known} on disk already, {tally.new} new"
    print_text(f"{name}: {plural(tally.subjects, 'subject')}, {plural(tally.versions, 'version')}: {known}")
    for fault in tally.unusable:
        print_text(f"xrouter: warning: {name}: {fault}", err=True)
    if error is None and tally.missing:
        text = f"schema registry {name} has no subject {', '.join(tally.missing)}"
        error = RouterError(text, hint="correct --subject")
    return error
