"""A throw-away authority, by the `openssl` command, and certificates that it signs."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_KEY = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"


@dataclass(frozen=True, slots=True)
class Pair:
    """Files of a certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """An authority whose files are in a directory of its name."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory / name
        self._directory.mkdir()
        self._number = 0
        self.ca_file = self._directory / "ca.crt"
        self._key = self._directory / "ca.key"
        # Without it, and without what names the authority in each certificate, Python 3.13 refuses.
        usage = "-addext keyUsage=critical,keyCertSign,cRLSign"
        _openssl(f"req -x509 {_KEY} {usage} -subj /CN={name}", keyout=self._key, out=self.ca_file)

    def issue(
        self,
        *names: str,
        addresses: Sequence[str] = ("127.0.0.1",),
        days: int = 30,
        usage: str = "",
    ) -> Pair:
        """Return a new certificate for names and addresses; days below 0: it has expired.

        Args:
            usage: Purposes that it is limited to, such as `serverAuth`; empty = none.
        """
        self._number += 1
        base = self._directory / f"{'-'.join(names) or 'nobody'}-{self._number}"
        pair = Pair(cert=base.with_suffix(".crt"), key=base.with_suffix(".key"))
        request, rules = base.with_suffix(".csr"), base.with_suffix(".ext")
        shown = [*(f"DNS:{name}" for name in names), *(f"IP:{host}" for host in addresses)]
        lines = [f"subjectAltName = {', '.join(shown)}"] if shown else ["basicConstraints=CA:FALSE"]
        lines += [
            "authorityKeyIdentifier = keyid",
            *([f"extendedKeyUsage = {usage}"] if usage else []),
        ]
        rules.write_text("\n".join(lines))
        _openssl(f"req {_KEY} -subj /CN=node", keyout=pair.key, out=request)
        authority = {"CA": self.ca_file, "CAkey": self._key}
        signed = f"x509 -req -CAcreateserial -days {days}"
        _openssl(signed, **authority, **{"in": request}, extfile=rules, out=pair.cert)
        pair.key.chmod(0o600)
        return pair


def _openssl(arguments: str, **files: Path) -> None:
    named = [text for name, path in files.items() for text in (f"-{name}", str(path))]
    command = ["openssl", *arguments.split(), *named]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
