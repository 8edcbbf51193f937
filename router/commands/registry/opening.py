"""Opening a registry for one command, with errors as commands report them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from sqlalchemy.exc import SQLAlchemyError

from registry.core.service import RegistryService
from registry.errors import Refusal
from registry.http.server import open_service
from registry.store.engine import StoreError, store_error
from router.commands.registry.settings import load_registry
from router.errors import RouterError, StateError

ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="Settings file of the registry.")]


@contextmanager
def opened(config: Path, *, lint: bool = True) -> Iterator[RegistryService]:
    """Open the registry of a settings file, made if need be; without *lint* writes are not looked at.

    Raises:
        RouterError: it cannot be opened, or what the block does is refused.
    """
    _, settings = load_registry(config)
    try:
        database, service = open_service(settings if lint else replace(settings, lint="off"))
    except StoreError as error:
        raise unopened(error) from error
    try:
        yield service
    except Refusal as refusal:
        raise refused(refusal) from refusal
    except SQLAlchemyError as error:
        raise unopened(store_error(settings.store, error)) from error
    finally:
        database.close()


def unopened(error: StoreError) -> RouterError:
    """Return the error that ends a command when a store cannot be opened, or does not answer any more."""
    return StateError(str(error), hint=f"{error.hint}; store in the settings says where it is" if error.hint else "")


def refused(refusal: Refusal) -> RouterError:
    """Return a refusal as the error that ends a command."""
    return RouterError(refusal.title, hint=refusal.detail)
