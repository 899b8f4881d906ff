"""The bytes of a trace: opened, decompressed, decoded to UTF-8, hashed and cut into lines of bounded length.

Detection is from the first bytes, never from the name. Leaves out: what the lines mean. Memory is one chunk plus the
longest line.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import hashlib
import lzma
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from specsim.errors import TraceError
from specsim.traces.opening import open_bytes
from specsim.traces.options import describe_path

__all__ = ["BlankLines", "TextSource"]

_CHUNK_BYTES = 1 << 18
_FOREIGN = (
    (b"\x28\xb5\x2f\xfd", "is compressed with zstd; decompress it first: zstd -d FILE"),
    (b"PAR1", "is a Parquet file; export it as CSV or JSON Lines"),
    (b"PK\x03\x04", "is a ZIP archive (or an .xlsx); unpack it or save it as CSV"),
    (b"SQLite format 3", "is an SQLite database; export the table of requests as CSV"),
    (b"%PDF", "is a PDF document, not a request log"),
    (b"ARROW1", "is an Arrow file; export it as CSV or JSON Lines"),
    (b"Obj\x01", "is an Avro file; export it as CSV or JSON Lines"),
    (b"\x1f\x9d", "is compressed with compress(1); decompress it first"),
)
_DENSE = 6
"""Bytes a line below which a chunk is looked through for blank stretches, in pieces of `_PIECE_BYTES`."""
_PIECE_BYTES = 1 << 12
_DAMAGED = (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, OSError)


def _zstd_open() -> Callable[[IO[bytes]], Any] | None:
    """The standard library's zstd reader where the interpreter has one (3.14 on)."""
    try:
        from compression import zstd  # type: ignore[import-not-found]
    except ImportError:
        return None
    return zstd.ZstdFile


def _control_bytes(sample: bytes) -> int:
    """Bytes that no text log has: controls other than tab, line ends and escape."""
    return sum(byte < 32 and byte not in (9, 10, 12, 13, 27) for byte in sample)


class BlankLines(bytes):
    """What `TextSource.lines` yields for a stretch of blank lines: an empty line that says how many it stands for."""

    number_of_lines = 1

    @classmethod
    def of(cls, number_of_lines: int) -> BlankLines:
        """The stretch of so many lines, at least 1."""
        out = cls()
        out.number_of_lines = number_of_lines
        return out


class TextSource:
    """One trace file as UTF-8 text, read once from front to back.

    Args:
        path: file, pipe, or `-` for standard input.
        max_line_bytes: longest line that is accepted.
        progress: called with the compressed bytes read so far, or None.

    Raises:
        TraceError: missing, unreadable, empty, damaged, binary, or a line longer than `max_line_bytes`.
    """

    def __init__(
        self,
        path: str | Path,
        max_line_bytes: int,
        *,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self.name = describe_path(path)
        self.encoding = "UTF-8"
        self.head_is_all = False
        """The head is the whole text (false when unsure)."""
        self.max_line_bytes = max_line_bytes
        self._progress = progress
        self._digest = hashlib.sha256()
        self._decoder: codecs.IncrementalDecoder | None = None
        self._lone_cr = False
        self._raw = open_bytes(path)
        try:
            self._stream = self._decompress()
            self.head = self._first()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> TextSource:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the file; safe to call twice."""
        for stream in (getattr(self, "_stream", None), getattr(self, "_raw", None)):
            if stream is not None and stream is not sys.stdin.buffer:
                with contextlib.suppress(Exception):
                    stream.close()

    @property
    def sha256(self) -> str:
        """Hex digest of the decompressed bytes read so far."""
        return self._digest.hexdigest()

    def _decompress(self) -> Any:
        try:
            magic = self._raw.peek(16)[:16] if hasattr(self._raw, "peek") else b""
        except OSError as error:
            raise TraceError(f"{self.name}: cannot be read: {error.strerror or error}") from None
        if magic.startswith(b"\x1f\x8b"):
            return gzip.GzipFile(fileobj=self._raw)
        if magic.startswith(b"BZh") and magic[4:10] == b"1AY&SY":
            return bz2.BZ2File(self._raw)
        if magic.startswith(b"\xfd7zXZ\x00"):
            return lzma.LZMAFile(self._raw)
        zstd = _zstd_open() if magic.startswith(b"\x28\xb5\x2f\xfd") else None
        if zstd is not None:
            return zstd(self._raw)
        for start, reason in _FOREIGN:
            if magic.startswith(start):
                raise TraceError(f"{self.name}: {reason}")
        return self._raw

    def _read(self) -> bytes:
        try:
            chunk = self._stream.read(_CHUNK_BYTES)
        except _DAMAGED as error:
            if self._stream is self._raw:
                raise TraceError(f"{self.name}: cannot be read: {error}") from None
            raise TraceError(
                f"{self.name}: the compressed data is damaged or cut short ({error}); fetch it again, or keep the"
                f" readable part with `gzip -dc FILE > part` and use that"
            ) from None
        self._digest.update(chunk)
        if self._progress is not None and self._raw is not sys.stdin.buffer:
            with contextlib.suppress(OSError, ValueError):
                self._progress(self._raw.tell())
        return chunk

    def _first(self) -> bytes:
        """The first chunk as UTF-8, after settling the encoding."""
        chunk = self._read()
        if not chunk:
            raise TraceError(f"{self.name}: the file is empty")
        for bom, name in (
            (codecs.BOM_UTF8, "utf-8-sig"),
            (codecs.BOM_UTF32_LE, "utf-32"),
            (codecs.BOM_UTF32_BE, "utf-32"),
            (codecs.BOM_UTF16_LE, "utf-16"),
            (codecs.BOM_UTF16_BE, "utf-16"),
        ):
            if chunk.startswith(bom):
                self.encoding = name.removesuffix("-sig").upper() + " with byte order mark"
                if name == "utf-8-sig":
                    chunk = chunk[len(bom) :] or self._read()
                else:
                    self._decoder = codecs.getincrementaldecoder(name)()
                break
        else:
            sample = chunk[:256]
            if sample.count(0) > len(sample) // 20 or _control_bytes(sample) > len(sample) // 10:
                even, odd = sample[0::2].count(0), sample[1::2].count(0)
                if odd > len(sample) // 4 and even == 0:
                    self.encoding, self._decoder = "UTF-16LE", codecs.getincrementaldecoder("utf-16-le")()
                elif even > len(sample) // 4 and odd == 0:
                    self.encoding, self._decoder = "UTF-16BE", codecs.getincrementaldecoder("utf-16-be")()
                else:
                    raise TraceError(f"{self.name}: is binary data, not text; export the log as CSV or JSON Lines")
        chunk = self._decode(chunk)
        while chunk[:1] == b"{" and b"\n" not in chunk:
            if len(chunk) > self.max_line_bytes:
                raise TraceError(self._too_long(1))
            raw = self._read()
            chunk += self._decode(raw)
            if not raw:
                break
        self.head_is_all = len(chunk) < _CHUNK_BYTES
        self._lone_cr = b"\r" in chunk and b"\n" not in chunk
        return chunk.replace(b"\r", b"\n") if self._lone_cr else chunk

    def _too_long(self, line: int) -> str:
        return (
            f"{self.name}: line {line} is longer than {self.max_line_bytes >> 20} MiB: not a request log with one"
            " request a line, or damaged; raise the bound with --max-line MIB if it is meant"
        )

    def _decode(self, chunk: bytes) -> bytes:
        if self._decoder is None:
            return chunk
        try:
            return self._decoder.decode(chunk, final=not chunk).encode("utf-8", "replace")
        except UnicodeDecodeError as error:
            raise TraceError(f"{self.name}: not valid {self.encoding}: {error.reason}; convert it to UTF-8") from None

    def chunks(self) -> Iterator[bytes]:
        """The whole text as UTF-8 chunks, the head included."""
        chunk = self.head
        while chunk:
            yield chunk
            raw = self._read()
            chunk = self._decode(raw)
            while raw and not chunk:
                raw = self._read()
                chunk = self._decode(raw)
            if self._lone_cr:
                chunk = chunk.replace(b"\r", b"\n")

    def _pieces(self) -> Iterator[bytes]:
        """The chunks, those of very short lines cut smaller so that blank stretches in them stand out."""
        for chunk in self.chunks():
            if chunk.count(b"\n") * _DENSE <= len(chunk) or chunk.isspace():
                yield chunk
            else:
                yield from (chunk[at : at + _PIECE_BYTES] for at in range(0, len(chunk), _PIECE_BYTES))

    def lines(self) -> Iterator[bytes]:
        """Every line without its line feed; a carriage return before it stays. Long blank stretches are `BlankLines`.

        Raises:
            TraceError: a line longer than the bound.
        """
        pieces: list[bytes] = []
        held = number = 0
        for chunk in self._pieces():
            if chunk.isspace() and (count := chunk.count(b"\n")) > 1:
                end = chunk.index(b"\n")
                yield b"".join((*pieces, chunk[:end]))
                yield BlankLines.of(count - 1)
                number += count
                pieces = [chunk[chunk.rindex(b"\n") + 1 :]]
                held = len(pieces[0])
                continue
            first, *rest = chunk.split(b"\n")
            pieces.append(first)
            held += len(first)
            if held > self.max_line_bytes:
                raise TraceError(self._too_long(number + 1))
            if rest:
                yield b"".join(pieces)
                yield from rest[:-1]
                number += len(rest)
                pieces = [rest[-1]]
                held = len(rest[-1])
        if held:
            yield b"".join(pieces)
