"""The certificate of a node: its files are read and tried out before anything relies on them.

Names in a certificate's subjectAltName are what counts, and the authority of `tls-ca-file` decides
which node gets which.  A node's certificate has:

- its node id as a DNS name: peers look for exactly that name, in both directions, whatever the
  address is by which they reach each other;
- each host name and address in the URLs that clients use, as for any server.

Files are tried out by a handshake of the node with itself, in memory: it is the same check that
peers make, so it finds what they would find.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparktxlog.config.node_config import OTHERS, NodeConfig
from sparktxlog.errors import CertificateTimeError, ConfigError

CERT, KEY, AUTHORITY = "tls-cert-file", "tls-key-file", "tls-ca-file"
#: A node's id is a label of a DNS name in its certificate.
_LONGEST_LABEL = 63
#: OpenSSL's reasons for which it refuses a certificate, in words of settings: field, what, way out.
_REFUSALS = {
    9: (CERT, "is not valid yet", "Compare this machine's clock with that of the authority."),
    10: (CERT, "has expired", "Have the authority sign a new one."),
    18: (CERT, f"is not signed by the authority of {AUTHORITY}", "Name the authority's own file."),
    20: (CERT, f"is not signed by the authority of {AUTHORITY}", "Name the right authority."),
    21: (CERT, f"is not signed by the authority of {AUTHORITY}", "Name the right authority."),
    26: (
        CERT,
        "is not made for both sides of a connection",
        "Leave extendedKeyUsage out, or write serverAuth, clientAuth.",
    ),
}
#: Those that another time, or another file, may end.
_OF_TIME = (9, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsContexts:
    """How a node speaks TLS with what is in its files."""

    #: For connections that it takes: callers may show a certificate, peers have to.
    server: ssl.SSLContext
    #: For connections to peers: both show one.
    peer: ssl.SSLContext
    #: Seconds of 1970, when the node's certificate ends.
    expires_at: float


def names_of(certificate: dict[str, Any] | None) -> tuple[str, ...]:
    """Return the DNS names of a verified certificate, as `SSLObject.getpeercert` returns it."""
    found = (certificate or {}).get("subjectAltName", ())
    return tuple(value for kind, value in found if kind == "DNS")


def load_certificates(config: NodeConfig) -> TlsContexts:
    """Read the files of a node that uses TLS, and try them out.

    Raises:
        ConfigError: A file cannot be used; fields `key`, `value` (definite).
    """
    cert, key, authority = config.tls_cert_file, config.tls_key_file, config.tls_ca_file
    assert cert is not None and key is not None and authority is not None  # see `checking`
    _check_readable(config, CERT, cert)
    _check_readable(config, AUTHORITY, authority)
    if _check_readable(config, KEY, key) & OTHERS:
        why = "every user of this machine can read or write it"
        raise _wrong(config, KEY, why, f"chmod 600 {key}, and replace the key: it may be known.")
    server, peer = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    server.verify_mode = ssl.CERT_OPTIONAL
    server.set_alpn_protocols(["http/1.1"])
    peer.minimum_version = ssl.TLSVersion.TLSv1_3
    for context in (server, peer):
        _load(config, context, cert, key, authority)
    return TlsContexts(server=server, peer=peer, expires_at=_try_out(config, server, peer))


def _check_readable(config: NodeConfig, key: str, path: Path) -> int:
    """Return the mode of a file that this user can read."""
    try:
        with path.open("rb"):
            return path.stat().st_mode
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
        raise _wrong(config, key, why, "Name a PEM file that the node's user can read.") from error


def _load(
    config: NodeConfig, context: ssl.SSLContext, cert: Path, key: Path, authority: Path
) -> None:
    try:
        context.load_verify_locations(authority)
    except (ssl.SSLError, OSError) as error:
        way_out = "Name a PEM file with the certificate of the authority."
        raise _wrong(config, AUTHORITY, f"holds no certificate: {error}", way_out) from error
    try:
        # A passphrase would be asked for on the terminal.
        context.load_cert_chain(cert, key, password=lambda: "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            why = f"is not the key of the certificate in {cert}"
            raise _wrong(config, KEY, why, "Name the key with which it was requested.") from error
        if _holds_certificate(cert):
            why = "holds no private key that can be read without passphrase"
            way_out = "Name a PEM file with the key; `openssl pkey` removes a passphrase."
            raise _wrong(config, KEY, why, way_out) from error
        way_out = "Name a PEM file with the node's certificate."
        raise _wrong(config, CERT, f"holds no certificate: {error}", way_out) from error


def _holds_certificate(path: Path) -> bool:
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except (ssl.SSLError, OSError):
        return False
    return True


def _try_out(config: NodeConfig, server: ssl.SSLContext, peer: ssl.SSLContext) -> float:
    """Let the node speak to itself, as peers do; return when its certificate ends."""
    name = config.node_id
    needed = (
        f"lacks the node id {name!r} among the DNS names of its subjectAltName",
        f"Have the authority sign one with DNS:{name}, and with the hosts of the node's URLs.",
    )
    if len(name) > _LONGEST_LABEL:
        why = f"can have no DNS name of {len(name)} characters, as node-id has"
        raise _wrong(config, CERT, why, f"Shorten node-id to {_LONGEST_LABEL} characters.")
    to_peer, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        peer.wrap_bio(to_peer, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_peer, server_side=True),
    ]
    caller, waiting = ends[0], list(ends)
    try:
        while waiting:
            for end in tuple(waiting):
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    continue
                waiting.remove(end)
    except ssl.SSLCertVerificationError as error:
        if "mismatch" in error.verify_message:
            raise _wrong(config, CERT, *needed) from error
        known = _REFUSALS.get(error.verify_code)
        key, why, hint = known or (CERT, f"is refused: {error.verify_message}", "See the text.")
        raise _wrong(config, key, why, hint, error.verify_code) from error
    except ssl.SSLError as error:
        raise _wrong(config, CERT, f"cannot be used: {error}", "Make another one.") from error
    shown = caller.getpeercert()
    if name not in names_of(shown):  # OpenSSL ignores case
        raise _wrong(config, CERT, *needed)
    assert shown is not None
    return float(ssl.cert_time_to_seconds(str(shown["notAfter"])))


def _wrong(config: NodeConfig, key: str, why: str, hint: str, refusal: int = 0) -> ConfigError:
    value = str(getattr(config, key.replace("-", "_")))
    where = config.origins.get(key, "configuration").removeprefix("file ")
    kind = CertificateTimeError if refusal in _OF_TIME else ConfigError
    return kind(f"{where}: {key} = {value!r}: {why}", hint=hint, file=where, key=key, value=value)
