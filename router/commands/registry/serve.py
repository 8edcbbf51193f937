"""``xrouter registry serve``: the service."""

from __future__ import annotations

import signal
import threading

from sqlalchemy.exc import SQLAlchemyError

from bindings.gateways import GatewayError
from registry.errors import Refusal
from registry.http.server import RegistryServer
from registry.store.engine import StoreError, store_error
from router.commands.registry.opening import ConfigArgument, refused, unopened
from router.commands.registry.settings import admit, load_registry
from router.errors import RouterError
from router.logs import configure_logs, get_logger

_TICK = 0.5
_GRACE = 10.0


def serve(config: ConfigArgument) -> None:
    """Serve the registry until SIGTERM or Ctrl-C; what is in flight is finished.

    Example: xrouter registry serve registry.yaml
    """
    given, settings = load_registry(config)
    admit(given, config)
    configure_logs(given.log)
    log = get_logger()
    server = RegistryServer(settings)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: stop.set())
    try:
        server.start()
    except StoreError as error:
        raise unopened(error) from error
    except SQLAlchemyError as error:
        raise unopened(store_error(settings.store, error)) from error
    except (GatewayError, OSError) as error:
        raise RouterError(str(error)) from error
    except Refusal as refusal:
        raise refused(refusal) from refusal
    scheme = "https" if settings.tls_certificate else "http"
    log.info("registry listening", address=f"{scheme}://{settings.host}:{server.port}")
    try:
        while not stop.wait(_TICK):
            if not server.alive:
                raise RouterError("the registry's server ended by itself", hint="its log says why")
    finally:
        server.stop(_GRACE)
    log.info("stopped")
