"""Generated Host headers, each of which a local service must answer or refuse with status 421."""

from __future__ import annotations

import ipaddress
import random
from collections.abc import Iterator

from starlette.testclient import TestClient

PIECES = (
    "localhost", "LOCALHOST", "ip6-localhost", "127.0.0.1", "127.1", "0x7f.1", "2130706433", "0.0.0.0", "::1",
    "[::1]", "[::ffff:127.0.0.1]", "[fe80::1%eth0]", "[", "]", "[]", ":", "::", ":80", ":65536", ":x", ".", "..",
    "@", "user@", "evil.example", "127.0.0.1.evil.example", "/", "?", "#", "%00", " ", "\t", "é", "\xff", "\\",
    "%", "a" * 5000, "9" * 400, "xn--", "-", "_", ",", ";", "http://", "index-host",
)  # fmt: skip
NAMES = ("index-host",)


def hosts(seed: int, count: int) -> Iterator[str]:
    """``count`` headers, the same for the same seed."""
    rng = random.Random(f"hosts:{seed}")
    for _ in range(count):
        yield "".join(rng.choice(PIECES) for _ in range(rng.choice([1, 1, 2, 2, 3, 4])))


def problem_of(host: str, client: TestClient, path: str) -> str | None:
    """What is wrong with the answer to a request with this header."""
    try:
        status = client.get(path, headers={"host": host.encode("latin-1")}).status_code
    except Exception as error:  # noqa: BLE001 - the crash is what is looked for
        return f"{host!r:.80}: {type(error).__name__}: {error}"
    expected = 200 if _is_named(host) else 421
    return None if status == expected else f"{host!r:.80}: status {status}, expected {expected}"


def _is_named(host: str) -> bool:
    """Whether the header is an address, localhost or a known name, with or without a port."""
    bare, colon, port = host.rpartition(":")
    name = bare if colon and (not port or (port.isascii() and port.isdigit())) else host
    if name.lower() in ("localhost", "ip6-localhost", *NAMES):
        return True
    bracketed = name.startswith("[") and name.endswith("]")
    if any(character in name[1:-1] for character in "[]"):
        return False
    kind = ipaddress.IPv6Address if bracketed else ipaddress.IPv4Address
    try:
        return bool(kind(name[1:-1] if bracketed else name))
    except ValueError:
        return False
