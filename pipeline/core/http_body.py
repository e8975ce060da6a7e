"""HTTP responses of a server that is not trusted.

Input: the parts of a body as they arrive, still compressed. Output: the bytes of the whole body, at
most ``limit`` of them, before and after decompression. A longer body is refused as soon as it exceeds
the limit, so it never occupies more memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass

_ZLIB_OR_GZIP = zlib.MAX_WBITS | 32  # the decoder reads the format from the header
_PLAIN = frozenset({"", "identity"})
_COMPRESSED = frozenset({"gzip", "x-gzip", "deflate"})


class BodyError(Exception):
    """A body that is too long or cannot be decompressed; the message is one sentence part."""


@dataclass(frozen=True, slots=True)
class HttpReply:
    """A complete response; the names in ``headers`` are case-insensitive."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class BoundedBody:
    """Collects the parts of one body of at most ``limit`` bytes.

    ``headers`` are those of the response, with case-insensitive names. Raises BodyError when they
    announce a body that is too long or compressed in an unknown way.
    """

    def __init__(self, headers: Mapping[str, str], limit: int) -> None:
        encoding = headers.get("content-encoding", "").strip().casefold()
        if encoding not in _PLAIN | _COMPRESSED:
            raise BodyError(f"its body is compressed as {encoding[:40]!r}; expected no compression")
        announced = headers.get("content-length", "")
        self._limit = limit
        if announced.isdigit() and (len(announced) > 15 or int(announced) > limit):
            raise self._too_long()
        self._decoder = zlib.decompressobj(_ZLIB_OR_GZIP) if encoding in _COMPRESSED else None
        self._body = bytearray()

    def add(self, part: bytes) -> None:
        """Add the next part. Raises BodyError when the body is too long or its compression broken."""
        if self._decoder is None:
            self._body += part
        else:
            room = self._limit + 1 - len(self._body)
            try:
                self._body += self._decoder.decompress(part, room)
            except zlib.error as error:
                raise BodyError(f"its body cannot be decompressed ({error})") from None
        if len(self._body) > self._limit:
            raise self._too_long()

    def finish(self) -> bytes:
        """The whole body. Raises BodyError when compressed data ended early."""
        if self._decoder is not None and self._body and not self._decoder.eof:
            raise BodyError("its compressed body ended early")
        return bytes(self._body)

    def _too_long(self) -> BodyError:
        return BodyError(f"its body is longer than {self._limit:,} bytes")
