"""A ledger in a file, that several processes book in one after the other."""

from __future__ import annotations

import dataclasses
import hashlib
import hmac
import os
import pathlib
import secrets
from collections.abc import Callable

from dpjax._files import lock_file, write_atomically
from dpjax.accounting.answers.certificate import Certificate
from dpjax.accounting.answers.ledger import Ledger
from dpjax.accounting.errors import CertificateError


class LedgerFile:
    """A ledger in a JSON file beside its data set, for several processes.

    A booking takes the lock of the file, reads it, and replaces it by a whole new one: a process
    that is killed leaves the old ledger or the new one. A damaged file is refused, and left as it
    is. It says what runs there were and a salted digest of the data: keep it with the data.

    Args:
        path: of the JSON file.
        data: the data set's file; its content must be that which the ledger was made with. Of a
            ledger that was made without one it is not checked.

    Example:
        >>> import tempfile
        >>> from dpjax import accounting as acc
        >>> file = acc.LedgerFile(pathlib.Path(tempfile.mkdtemp()) / "ledger.json")
        >>> _ = file.create(acc.Ledger(3.0, 1e-5))
        >>> file.book(acc.certify(acc.Gaussian(2.0), 1e-6)) == file.read()
        True
    """

    def __init__(
        self, path: str | os.PathLike[str], data: str | os.PathLike[str] | None = None
    ) -> None:
        # The file itself: a link would be replaced by a ledger of its own, under another lock.
        self.path = pathlib.Path(path).resolve()
        self.data = None if data is None else pathlib.Path(data)

    def create(self, ledger: Ledger) -> Ledger:
        """Write the first ledger, of the data set if one is given.

        Raises:
            ValueError: there is a file already.
        """
        with lock_file(self.path):
            if self.path.exists():
                raise ValueError(f"path must be a new file, got {self.path}")
            if self.data is not None:
                salt = secrets.token_hex(16)  # so that nobody can test a guess of the data
                ledger = dataclasses.replace(ledger, data=(salt, self._digest(salt)))
            self._write(ledger)
        return ledger

    def read(self) -> Ledger:
        """The ledger as it is now.

        Raises:
            CertificateError: the file is damaged.
            ValueError: the ledger is of other data, or the file has a second name (a hard link).
        """
        if (names := self.path.stat().st_nlink) > 1:  # a booking would leave the others as they are
            raise ValueError(
                f"path must be a file of one name, got {self.path} of {names}: a copy "
                "under another name would be spent a second time"
            )
        try:
            ledger = Ledger.from_json(self.path.read_bytes())
        except CertificateError as error:
            why = "damaged or cut short" if error.field in ("json", "check") else str(error)
            raise CertificateError(
                error.field, f"path must be a whole ledger, got {self.path}: {why}"
            ) from None
        if self.data is not None and ledger.data is not None:
            salt, digest = ledger.data
            if not hmac.compare_digest(self._digest(salt), digest):
                raise ValueError(
                    f"data must be the data set of the ledger {self.path}, got another content in "
                    f"{self.data}: other records have a ledger of their own"
                )
        return ledger

    def book(self, certificate: Certificate) -> Ledger:
        """Book a run, see `Ledger.book`; on disk when this returns."""
        return self._change(lambda ledger: ledger.book(certificate))

    def correct(self, booked: Certificate, certificate: Certificate) -> Ledger:
        """Book another certificate of a run, see `Ledger.correct`; on disk when this returns."""
        return self._change(lambda ledger: ledger.correct(booked, certificate))

    def merge(self, other: Ledger) -> Ledger:
        """Book the runs of a copy, see `Ledger.merge`; on disk when this returns."""
        return self._change(lambda ledger: ledger.merge(other))

    def _change(self, change: Callable[[Ledger], Ledger]) -> Ledger:
        with lock_file(self.path):
            ledger = change(self.read())  # read under the lock: no booking is lost
            self._write(ledger)
        return ledger

    def _write(self, ledger: Ledger) -> None:
        write_atomically(self.path, ledger.to_json().encode(), private=True)

    def _digest(self, salt: str) -> str:
        assert self.data is not None
        with self.data.open("rb") as file:
            return hmac.new(salt.encode(), file.read(), hashlib.sha256).hexdigest()
