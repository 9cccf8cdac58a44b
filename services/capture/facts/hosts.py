"""Network destinations from URLs and host arguments: normalised, with registered domain, port and whether they are
this machine."""

from __future__ import annotations

import ipaddress
import re
from functools import lru_cache

from schemas.facts import Host
from services.capture.redaction.checks import suffixes
from services.capture.words import words

URL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]{1,20})://([^\s\"'<>`\\^{}|]{1,2048})")
_DEV_NET = re.compile(r"/dev/(?:tcp|udp)/([^/\s]{1,253})/(\d{1,5})")
_HOSTNAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_](?:[A-Za-z0-9_\-]{0,62})(?:\.[A-Za-z0-9_\-]{1,63})*\.?\Z")
_PORTS = {
    "http": 80,
    "https": 443,
    "ws": 80,
    "wss": 443,
    "ftp": 21,
    "ssh": 22,
    "sftp": 22,
    "git": 9418,
    "ldap": 389,
    "ldaps": 636,
}
_BUCKETS = {"s3": "s3.amazonaws.com", "s3a": "s3.amazonaws.com", "gs": "storage.googleapis.com"}
# Schemes whose authority is no network name.
_LOCAL = frozenset(words("file data demo about jdbc vscode memory ui arn urn chrome resource docker-daemon"))


@lru_cache(maxsize=4096)
def host(name: str, port: int | None = None) -> Host | None:
    """A Host from a name or address as written (brackets, trailing dot, decimal or hexadecimal IPv4), or None if
    it is neither."""
    text = name.strip().strip("[]").rstrip(".").lower()
    if not text or len(text) > 253:
        return None
    if port is not None and not 0 < port < 65536:
        port = None
    address = _address(text)
    if address is not None:
        shown = str(address)
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        own = (mapped or address).is_loopback or (mapped or address).is_unspecified
        return Host(host=shown, domain=shown, port=port, loopback=own)
    try:
        text = text.encode("idna").decode("ascii") if not text.isascii() else text
    except UnicodeError:
        return None
    if not _HOSTNAME.match(text):
        return None
    own = text == "localhost" or text.endswith(".localhost") or text == "ip6-localhost"
    return Host(host=text, domain=_domain(text), port=port, loopback=own)


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    if ":" in text:
        try:
            return ipaddress.IPv6Address(text.partition("%")[0])
        except ValueError:
            return None
    if not text[0].isdigit():
        return None
    # As inet_aton(3), browsers and curl read it: 2130706433, 0x7f.1, 0177.0.0.1.
    parts = text.split(".")
    try:
        numbers = [int(p, 16 if p.startswith("0x") else 8 if p.startswith("0") and p != "0" else 10) for p in parts]
    except ValueError:
        return None
    *front, last = numbers
    if len(parts) > 4 or any(n > 255 for n in front) or last >= 256 ** (5 - len(parts)):
        return None
    return ipaddress.IPv4Address(sum(n << 8 * (3 - i) for i, n in enumerate(front)) + last)


@lru_cache(maxsize=4096)
def _domain(text: str) -> str:
    found = suffixes().privatesuffix(text)
    return found if isinstance(found, str) else ".".join(text.split(".")[-2:])


def from_url(scheme: str, rest: str) -> Host | None:
    """The host of `scheme://rest`, with the scheme's port where none is written; None for schemes without a
    network name."""
    scheme = scheme.lower()
    if scheme.startswith("git+"):
        scheme = scheme[4:]
    if scheme in _LOCAL:
        return None
    authority = re.split(r"[/?#]", rest, maxsplit=1)[0]
    authority = authority.rpartition("@")[2]
    if scheme in _BUCKETS:
        return host(f"{authority}.{_BUCKETS[scheme]}", 443)
    name, port = split_port(authority)
    return host(name, port if port is not None else _PORTS.get(scheme))


def split_port(text: str) -> tuple[str, int | None]:
    """`name:port`, `[v6]:port` or a bare name."""
    if text.startswith("["):
        name, _, tail = text[1:].partition("]")
        return name, _number(tail[1:])
    name, colon, tail = text.rpartition(":")
    if colon and tail.isdecimal() and ":" not in name:
        return name, _number(tail)
    return text.rstrip(":") if text.count(":") < 2 else text, None


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= 5 else None


def in_text(text: str, limit: int = 256) -> list[Host]:
    """Hosts of all URLs (and /dev/tcp paths) in a text."""
    found: list[Host] = []
    if "://" in text:
        for m in URL.finditer(text):
            h = from_url(m.group(1), m.group(2))
            if h is not None:
                found.append(h)
                if len(found) >= limit:
                    break
    if "/dev/" in text:
        for m in _DEV_NET.finditer(text):
            h = host(m.group(1), _number(m.group(2)))
            if h is not None:
                found.append(h)
    return found


def loose(text: str) -> Host | None:
    """A destination as network commands take it: `user@host:port/path`, `host`, `host:port`. None for what is no
    host."""
    if "://" in text:
        m = URL.match(text)
        return from_url(m.group(1), m.group(2)) if m else None
    name, port = split_port(re.split(r"[/?#]", text, maxsplit=1)[0].rpartition("@")[2])
    return host(name, port)
