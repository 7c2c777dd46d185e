"""What folders say of the pictures in them: ``ROOT/CLIENT/CLASS/*.png``, or ``ROOT/CLASS/*.png`` without clients."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from commonground.access import reason
from commonground.errors import DataError
from commonground.quoting import escaped, quoted

__all__ = ["ENDINGS", "PictureFile", "files_in", "has_clients", "is_image_folder", "is_picture", "pictures_in"]

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
_PARTS = {"train", "test"}
_NO_PARTS = {"val", "valid", "validation", "dev"}  # what others have beside these, and we do not read
_MOST_NAMED = 3


@dataclass(frozen=True)
class PictureFile:
    """A picture's file, and what its folders say of it: the part is empty where no folder says train or test."""

    path: Path
    part: str
    client: str
    label: str

    def name(self, folder: Path) -> str:
        """The file below a folder, or as it is called where it lies elsewhere, with what is not printable escaped: not
        every name is Unicode.
        """
        below = self.path.is_relative_to(folder) and self.path != folder
        return escaped(str(self.path.relative_to(folder)) if below else self.path.name, sys.maxsize)


@dataclass
class _Tree:
    """The folders below a root, links to folders followed.

    Attributes:
        root: the uppermost.
        empty: those without pictures and without folders, seen so far.
    """

    root: Path
    empty: list[Path] = field(default_factory=list)

    def walk(self) -> Iterator[tuple[tuple[str, ...], list[str]]]:
        """Folders that hold pictures, from the root's, and the pictures' names; sorted, without hidden ones.

        Raises:
            DataError: a folder cannot be read, or is a link to one that it lies in.
        """
        for folder, below, names in os.walk(self.root, followlinks=True, onerror=_refuse):
            below[:] = sorted(name for name in below if not name.startswith("."))
            here = Path(folder)
            for name in below:
                if (here / name).is_symlink() and self._leads_back(here, (here / name).resolve()):
                    raise DataError(f"{here / name} is a link to a folder that it lies in")
            pictures = sorted(n for n in names if is_picture(n) and not n.startswith("."))
            if pictures:
                yield here.relative_to(self.root).parts, pictures
            elif not below:
                self.empty.append(here.relative_to(self.root))

    def _leads_back(self, here: Path, target: Path) -> bool:
        """Whether the way to a folder has come through another one, by links or not."""
        way = (here, *(parent for parent in here.parents if parent.is_relative_to(self.root)))
        return any(place.resolve().is_relative_to(target) for place in way)

    def notes(self) -> list[str]:
        """A sentence about folders in which no pictures are, if there are any."""
        if not self.empty:
            return []
        first = ", ".join(quoted(str(folder)) for folder in self.empty[:_MOST_NAMED])
        more = ", …" if len(self.empty) > _MOST_NAMED else ""
        what = "a folder holds" if len(self.empty) == 1 else f"{len(self.empty):,} folders hold"
        return [f"{what} no pictures: {first}{more}"]


def _refuse(error: OSError) -> None:
    folder = Path(error.filename)
    raise DataError(f"the folder '{folder}' cannot be read: {reason(error, folder)}") from None


def is_picture(name: str) -> bool:
    """Whether a file's name is a picture's."""
    return name.lower().endswith(ENDINGS)


def is_image_folder(path: Path) -> bool:
    """Whether a folder holds pictures below folders of classes."""
    return path.is_dir() and next((True for folders, _ in _Tree(path).walk() if folders), False)


def has_clients(path: Path) -> bool:
    """Whether there is a level of clients above the classes."""
    folders = next((folders for folders, _ in _Tree(path).walk() if folders), ())
    return len(folders) - _has_parts(path) == 2


def _has_parts(path: Path) -> bool:
    """Whether the uppermost folders are ``train`` and ``test``.

    Raises:
        DataError: they are such and others of the kind, which would be taken for clients.
    """
    uppermost = [below.name for below in path.iterdir() if below.is_dir() and not below.name.startswith(".")]
    names = {name.lower() for name in uppermost}
    if names & _NO_PARTS and names <= _PARTS | _NO_PARTS:
        raise DataError(
            f"{path} holds the folders {', '.join(sorted(uppermost))}; pictures are split by two folders, train and "
            "test: put the others' pictures into one of them (--validation-fraction holds training pictures out)"
        )
    return names == _PARTS and len(uppermost) == len(names)


def pictures_in(path: Path) -> list[PictureFile]:
    """The pictures that lie in a folder itself, which says nothing of them.

    Raises:
        DataError: there are some, and others in folders below.
    """
    found = dict(_Tree(path).walk())
    names = found.pop((), [])
    if names and found:
        raise DataError(
            f"pictures lie in '{path}' itself and in folders below it; name one of these, or move the former"
        )
    return [PictureFile(path / name, "", "", "") for name in names]


def files_in(path: Path) -> tuple[list[PictureFile], list[str]]:
    """Every picture, in the order of the folders' names, and sentences about folders without any.

    Raises:
        DataError: the folders have no such form, or cannot be read.
    """
    tree, parts, found = _Tree(path), _has_parts(path), list[PictureFile]()
    for folders, names in tree.walk():
        part, rest = (folders[0].lower(), folders[1:]) if parts and folders else ("", folders)
        if len(rest) not in (1, 2):
            first = path / Path(*folders, names[0])
            raise DataError(f"{first} lies {len(rest)} folders deep; pictures lie in CLIENT/CLASS/ or in CLASS/")
        for name in rest:
            if not name.isprintable() or len(name) > 200:
                raise DataError(f"the folder {quoted(str(path / Path(*folders)))} has a name that is not printable")
        client, label = rest[0].strip() if len(rest) == 2 else "", rest[-1].strip()  # as cells of a table
        found += [PictureFile(path / Path(*folders) / name, part, client, label) for name in names]
    if not found:
        raise DataError(f"{path} holds no pictures ({', '.join(ENDINGS)})")
    for file in found:
        if (file.client == "") != (found[0].client == ""):
            raise DataError(f"{file.path} and {found[0].path} do not lie equally deep; pictures lie in CLIENT/CLASS/")
    return found, tree.notes()
