"""The bytes of a table in a text file: unpacked, decoded, and the character that separates its cells."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from dataclasses import dataclass
from encodings.aliases import aliases
from itertools import islice
from pathlib import Path

from commonground.errors import ConfigError, DataError
from commonground.quoting import quoted
from commonground.suggest import meant

__all__ = ["SEPARATORS", "TextFile", "check_unsaid", "read_text_file"]

SEPARATORS = {"comma": ",", "semicolon": ";", "tab": "\t", "pipe": "|"}
"""By the names that the command takes; the first of those that fit equally well is taken."""

_NAMES = {separator: name for name, separator in SEPARATORS.items()}
_BOMS = (
    (b"\xef\xbb\xbf", "utf-8-sig"),
    (b"\xff\xfe\0\0", "utf-32"),  # of which UTF-16's is the beginning
    (b"\0\0\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)
_LOOKED_AT = 50  # records by which the separator is chosen
_ENCODINGS = ("utf-8", "utf-16", "latin-1", "windows-1252")  # before the many that Python knows as well
_GZIP, _ZIP = b"\x1f\x8b", b"PK\x03\x04"
_SAID = re.compile(r"sep=(.)\r?\n")  # by which a spreadsheet says in the first line what separates cells


@dataclass(frozen=True)
class TextFile:
    """A text file, decoded.

    Attributes:
        content: its text as UTF-8, without byte order mark.
        encoding: what it was.
        separator: between cells.
    """

    content: bytes
    encoding: str
    separator: str

    @property
    def note(self) -> str:
        """How it was read, where that is not as usual: ``separated by semicolons, read as windows-1252``."""
        parts = [] if self.separator == "," else [f"separated by {_NAMES.get(self.separator, repr(self.separator))}s"]
        if self.encoding not in ("utf-8", "utf-8-sig"):
            parts.append(f"read as {self.encoding}")
        return ", ".join(parts)


def read_text_file(path: Path, separator: str | None = None, encoding: str | None = None) -> TextFile:
    """Read, unpack and decode a file, and find its separator.

    Args:
        path: the file; gzip is recognised by its first bytes.
        separator: a single character or one of :data:`SEPARATORS` by name; by default what a first line ``sep=;`` says,
            else the one of these by which the first records have the most cells, and as many each.
        encoding: as Python names it; by default what a byte order mark says, else UTF-8, else UTF-16 if half of the
            bytes are zero, else Windows-1252 (of which Latin-1's printable characters are a part).

    Raises:
        ConfigError: the separator is no single character, or there is no such encoding.
        DataError: the file cannot be read or is not in the encoding.
    """
    raw = _bytes_of(path)
    text, used = _decoded(path, raw, encoding)
    said = _SAID.match(text)
    if said:  # a blank line in its place, so that the others keep their numbers
        text = "\n" + text[said.end() :]
    chosen = _separator(separator) or (said[1] if said else _found(text, path))
    same = used == "utf-8" and not raw.startswith(_BOMS[0][0]) and not said
    content = raw if same else text.encode("utf-8", "surrogatepass")
    return TextFile(content, used, chosen)


def check_unsaid(path: Path, separator: str | None = None, encoding: str | None = None) -> None:
    """Refuse to be told a separator or an encoding of a file that has none.

    Raises:
        ConfigError: one is told.
    """
    for option, value in (("--separator", separator), ("--encoding", encoding)):
        if value is not None:
            raise ConfigError(f"{option} says nothing of '{path}': it is for tables in text files; leave it out")


def _bytes_of(path: Path) -> bytes:
    try:
        raw = path.read_bytes()
        if raw.startswith(_ZIP):
            raise DataError(
                f"{path} is a zip archive, or a workbook, which is one; unpack it, or save the sheet as CSV"
            )
        return gzip.decompress(raw) if raw.startswith(_GZIP) else raw
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} could not be read as a table: {error}") from None


def _decoded(path: Path, raw: bytes, encoding: str | None) -> tuple[str, str]:
    """The text and the encoding that was used."""
    if encoding is not None:
        plain = encoding.lower().replace("_", "-")
        try:
            return raw.decode("utf-8-sig" if plain in ("utf-8", "utf8") else plain), plain
        except (LookupError, TypeError):
            near = meant(encoding, [*_ENCODINGS, *aliases])
            raise ConfigError(f"there is no text encoding {quoted(encoding)}{near}; take one such as latin-1") from None
        except UnicodeDecodeError as error:
            raise DataError(f"{path} is not {encoding} text: byte {error.start} does not fit") from None
    for mark, name in _BOMS:
        if raw.startswith(mark):
            try:
                return raw.decode(name), name
            except UnicodeDecodeError as error:
                raise DataError(f"{path} begins as {name} text, but byte {error.start} does not fit") from None
    tried = [] if not _half_zero(raw) else ["utf-16-be" if raw[:1] == b"\0" else "utf-16-le"]
    for name in (*tried, "utf-8", "windows-1252", "latin-1"):
        try:
            return raw.decode(name), name
        except UnicodeDecodeError:
            continue
    raise AssertionError("Latin-1 has a character for every byte")


def _half_zero(raw: bytes) -> bool:
    """Whether every other byte is zero, as of Western text in UTF-16."""
    head = raw[: 2 * 512]
    return len(head) >= 4 and len(head) % 2 == 0 and max(head[::2].count(0), head[1::2].count(0)) > 0.4 * len(head)


def _separator(given: str | None) -> str | None:
    if given is None:
        return None
    found = SEPARATORS.get(given, "\t" if given == "\\t" else given)
    if len(found) != 1 or found in '"\r\n':
        near = meant(given, SEPARATORS)
        raise ConfigError(
            f"the separator is {quoted(given)}{near}; it must be one character, or {', '.join(SEPARATORS)}"
        )
    return found


def _found(text: str, path: Path) -> str:
    """The separator by which the first records have as many cells each as the header, and the most of them."""
    names = [name.lower() for name in path.suffixes]
    usual = "\t" if ".tsv" in names or ".tab" in names else ","
    best, most = usual, (0.0, 1)
    for separator in (usual, *(other for other in SEPARATORS.values() if other != usual)):
        try:
            records = list(islice(csv.reader(_lines(text), delimiter=separator), _LOOKED_AT))
        except csv.Error:
            continue
        cells = [len(record) for record in records if record]
        if not cells or cells[0] == 1:
            continue
        score = (sum(n == cells[0] for n in cells) / len(cells), cells[0])
        if score > most:
            best, most = separator, score
    return best


def _lines(text: str) -> io.StringIO:
    return io.StringIO(text[: 1 << 20], newline="")
