"""The authorities whose certificates a client of a node believes: a given one, or the system's.

A cluster usually has an authority of its own.  Its certificate is a PEM file, which a call names as
`ca_file`, a command as `--ca-file`, and everything else in the variable `SPARKTXLOG_CA_FILE`.
"""

from __future__ import annotations

import os
import ssl
from functools import lru_cache

from sparktxlog.errors import CertificateError, ConfigError

CA_VARIABLE = "SPARKTXLOG_CA_FILE"
#: Of the option of commands and jobs.
CA_HELP = (
    "PEM file with the authority of nodes' certificates (https); default: SPARKTXLOG_CA_FILE, else "
    "the system's authorities"
)
#: OpenSSL's reasons to refuse a certificate, and what to do.
_EXPIRED, _NOT_YET, _OTHER_HOST, _OTHER_ADDRESS = 10, 9, 62, 64
_WAYS_OUT = {
    _EXPIRED: "Give the node a new certificate; it takes it up without a restart.",
    _NOT_YET: "Compare the clocks of both machines.",
    _OTHER_HOST: "The URL must have a name that is in the certificate's subjectAltName.",
    _OTHER_ADDRESS: "The URL must have an address that is in the certificate's subjectAltName.",
}


def authorities(ca_file: str | None) -> ssl.SSLContext:
    """Return a context that believes the authorities of a PEM file.

    Args:
        ca_file: The file; None: that of `SPARKTXLOG_CA_FILE`, else the authorities of the system.

    Raises:
        ConfigError: The file cannot be read, or holds no certificate (definite).
    """
    path = ca_file or os.environ.get(CA_VARIABLE)
    if not path:
        return _context(None)
    try:
        found = os.stat(path)  # noqa: PTH116 - so that a replaced file is read again
        return _context(path, found.st_mtime_ns, found.st_ino)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"ca-file = {path!r}: {error.strerror or error}",
            hint="Name a PEM file with the certificate of the authority, by ca_file, --ca-file or "
            f"{CA_VARIABLE}.",
            key="ca-file",
            value=path,
        ) from error


def trust(ca_file: str | os.PathLike[str] | None) -> None:
    """Make a file the default of this process for connections that name none; None changes nothing.

    Raises:
        ConfigError: As `authorities` (definite).
    """
    if ca_file is not None:
        authorities(os.fspath(ca_file))
        os.environ[CA_VARIABLE] = os.path.abspath(ca_file)  # noqa: PTH100 - also for executors


@lru_cache(maxsize=16)
def _context(path: str | None, *_version: int) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=path)


def certificate_error(url: str, error: BaseException | None) -> CertificateError | None:
    """Return what a failed connection says of certificates and encryption; None = nothing."""
    while error is not None and not isinstance(error, ssl.SSLError):
        error = error.__cause__ or error.__context__
    if error is None:
        return None
    if isinstance(error, ssl.SSLCertVerificationError):
        hint = _WAYS_OUT.get(
            error.verify_code,
            "Name the authority that signed it by ca_file, --ca-file or " + CA_VARIABLE + ".",
        )
        text = f"{url} shows a certificate that is not accepted: {error.verify_message}"
        return CertificateError(text, hint=hint, url=url, reason=error.verify_message)
    reason = error.reason or str(error)
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return CertificateError(
            f"{url} does not speak TLS",
            hint="Write http:// if that node has no certificate.",
            url=url,
            reason=reason,
        )
    if "ALERT" in reason:
        return CertificateError(
            f"{url} refuses the certificate that it is shown, or lacks one: {reason}",
            hint="See its log.",
            url=url,
            reason=reason,
        )
    return None
