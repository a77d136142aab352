"""The certificate of a running node: what its connections use, and files that change meanwhile.

Connections to peers expect a certificate with the peer's node id, not with the host of its address:
a node may have several addresses, and the question is which process answers there.

Files are looked at every `CHECK_S`.  Changed ones are tried out, then used by each new connection;
those that are open stay.  If they cannot be used, the former ones stay too, and the status says so.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from pathlib import Path
from typing import Any

import structlog

from sparktxlog.config import NodeConfig, TlsContexts, load_certificates
from sparktxlog.errors import CertificateError
from sparktxlog.supervision import Supervisor

_log = structlog.get_logger("sparktxlog.transport")

#: Seconds between two looks at the files, and between two warnings that the certificate ends.
CHECK_S = 5.0
_WARN_EVERY_S = 86_400.0
#: Seconds before its end from which a certificate is warned about.
SOON_S = 14 * 86_400.0
#: Words in the alerts by which the other side ends a handshake.
_OF_HANDSHAKES = ("CERTIFICATE", "UNKNOWN_CA", "HANDSHAKE", "PROTOCOL_VERSION", "ACCESS_DENIED")
_NAME = "taking up certificates"


def speaks_only_tls(config: NodeConfig) -> bool:
    """Return whether a node speaks with others by TLS only."""
    return config.uses_tls and config.tls_mode == "require"


class NodeCertificate:
    """Owns the TLS contexts of a node; used on the event loop.

    Args:
        config: Of a node that uses TLS.

    Raises:
        ConfigError: A file cannot be used (definite).
    """

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._files = (config.tls_cert_file, config.tls_key_file, config.tls_ca_file)
        #: Whether the node speaks with others by TLS only.
        self.only_tls = speaks_only_tls(config)
        self._seen = self._stamps()
        self.contexts: TlsContexts = load_certificates(config)
        self._warned_at = -_WARN_EVERY_S

    @classmethod
    def of(cls, config: NodeConfig) -> NodeCertificate | None:
        """Return that of a node; None = it uses no TLS."""
        return cls(config) if config.uses_tls else None

    def take_up(self) -> None:
        """Use the files as they are now, if they changed.

        Raises:
            ConfigError: One cannot be used; the former contents stay in use (definite).
        """
        stamps = self._stamps()
        if stamps == self._seen:
            return
        self.contexts = load_certificates(self._config)
        self._seen, self._warned_at = stamps, -_WARN_EVERY_S
        _log.info("new certificates are in use", ends=_date(self.contexts.expires_at))

    async def watch(self, supervisor: Supervisor) -> None:
        """Take up changed files, and warn of a certificate that ends soon; runs for ever."""
        while True:
            pause_s = supervisor.attempt(_NAME, self.take_up)
            warnings, now = self.warnings(), time.monotonic()
            if warnings and now - self._warned_at >= _WARN_EVERY_S:
                self._warned_at = now
                _log.warning(warnings[0]["text"], code=warnings[0]["code"])
            await asyncio.sleep(max(pause_s, CHECK_S))

    def warnings(self) -> list[dict[str, Any]]:
        """Return the warning that the certificate ends soon, if it does."""
        left_s = self.contexts.expires_at - time.time()
        if left_s > SOON_S:
            return []
        verb = "ends" if left_s > 0 else "ended"
        text = (
            f"the certificate in {self._config.tls_cert_file} {verb} at "
            f"{_date(self.contexts.expires_at)}: replace the file, no restart is needed"
        )
        return [{"code": "certificate-ends", "text": text}]

    def _stamps(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_stamp(path) for path in self._files if path is not None)

    # -- connections to peers ------------------------------------------------------------------

    def arguments(self, url: str, node_id: str) -> dict[str, Any]:
        """Return how a connection to a peer proves the identity of both, as asyncio opens one.

        Raises:
            CertificateError: The address has http, and only TLS is spoken (definite).
        """
        if url.startswith("https:"):
            return {"ssl": self.contexts.peer, "server_hostname": node_id}
        if self.only_tls:
            raise CertificateError(
                f"{url} is no https address, and this node speaks with peers by TLS only",
                hint="Give that node an https address, or set tls-mode = allow-http for a while.",
                peer=node_id,
            )
        return {}


def certificate_error(
    url: str, node_id: str, error: BaseException | None
) -> CertificateError | None:
    """Return what a failed connection to a peer says of certificates; None = nothing."""
    # Wrapped errors of OpenSSL may be of the same class, without a reason.
    while error is not None and not getattr(error, "reason", ""):
        error = error.__cause__ or error.__context__
    if not isinstance(error, ssl.SSLError):
        return None
    reason = str(error.reason)
    if isinstance(error, ssl.SSLCertVerificationError):
        text = f"{url} shows no certificate of node {node_id!r}: {error.verify_message}"
        hint = "See tls-cert-file of that node, and tls-ca-file of this one."
    elif reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        text, hint = f"{url} does not speak TLS", "Set tls-cert-file at that node."
    elif "ALERT" not in reason or not any(word in reason for word in _OF_HANDSHAKES):
        return None  # the connection broke later
    else:
        text = f"{url} refuses this node's certificate: {reason}"
        hint = "See tls-cert-file of this node, and the log and tls-ca-file of that one."
    return CertificateError(text, hint=hint, peer=node_id, reason=reason)


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()  # a link to the file, as Kubernetes has it, is followed
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _date(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at))
