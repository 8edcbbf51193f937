"""Bodies as schemas see them: without the content coding they travel in (JUDGING.md#data-schemas). What is stored and
forwarded stays as it was received.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from catalog.schemas.bodies import fault
from catalog.schemas.contract import MAX_BODY_BYTES, SchemaFault

MAX_CODINGS: Final = 4
"""Codings laid over each other that are undone."""
_PIECE: Final = 64 * 1024


def decoded(body: bytes, coding: str, limit: int = MAX_BODY_BYTES) -> bytes | SchemaFault | None:
    """Return a body without its content codings, the last named undone first; a fault when it is not coded so.

    None, which is no verdict, for an unknown coding and for what would be more than *limit* bytes. No more than that is
    ever decoded, whatever a few bytes claim.
    """
    names = [name.strip().lower() for name in coding.split(",") if name.strip()]
    if len(names) > MAX_CODINGS:
        return None
    for name in reversed(names):
        if name == "identity":
            continue
        decoder = _DECODERS.get(name)
        if decoder is None:
            return None
        plain = bytearray()
        try:
            for piece in decoder(body):
                plain += piece
                if len(plain) > limit:
                    return None
        except (OSError, zlib.error, EOFError) as error:
            return fault(f"the body is not coded as {name}, which its content-encoding says: {error}")
        body = bytes(plain)
    return body


def encoded(body: bytes, coding: str) -> bytes:
    """Return a body in the content codings that are named, in their order; as it is when one is unknown."""
    names = [name.strip().lower() for name in coding.split(",") if name.strip() and name.strip().lower() != "identity"]
    if not all(name in _DECODERS for name in names):
        return body
    import pyarrow as pa

    for name in names:
        if name == "deflate":
            body = zlib.compress(body)
            continue
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, _CODECS[name]) as stream:
            stream.write(body)
        body = sink.getvalue().to_pybytes()
    return body


def _streamed(codec: str) -> Callable[[bytes], Iterator[bytes]]:
    def pieces(body: bytes) -> Iterator[bytes]:
        import pyarrow as pa

        with pa.CompressedInputStream(pa.BufferReader(body), codec) as stream:
            while piece := stream.read(_PIECE):
                yield piece

    return pieces


def _deflated(body: bytes) -> Iterator[bytes]:
    """Give the pieces of a zlib stream, or of the bare one that many senders mean by ``deflate``."""
    for bits in (zlib.MAX_WBITS, -zlib.MAX_WBITS):
        decoder, source = zlib.decompressobj(bits), io.BytesIO(body)
        try:
            piece = decoder.decompress(source.read(_PIECE), _PIECE)
        except zlib.error:
            if bits < 0:
                raise
            continue
        while piece:
            yield piece
            piece = decoder.decompress(decoder.unconsumed_tail or source.read(_PIECE), _PIECE)
        if not decoder.eof:
            raise EOFError("it ends too early")
        return


_CODECS: Final[Mapping[str, str]] = {"gzip": "gzip", "x-gzip": "gzip", "br": "brotli", "zstd": "zstd"}
_DECODERS: Final[Mapping[str, Callable[[bytes], Iterator[bytes]]]] = {
    "deflate": _deflated,
    **{name: _streamed(codec) for name, codec in _CODECS.items()},
}
