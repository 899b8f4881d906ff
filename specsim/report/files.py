"""Files that a command writes beside what it prints: refused early, written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from specsim.errors import ScenarioError

__all__ = ["check_file", "check_folder", "whole_file", "write_folder"]


def check_file(flag: str, path: str, suffixes: tuple[str, ...] = (), *, force: bool) -> None:
    """Refuse a file that `whole_file` could not write, before anything is simulated. Nothing is left behind.

    Raises:
        ScenarioError: another suffix than these, no file name, a missing folder, a pipe or a device, a file that exists
            without `force`, or one that cannot be written.
    """
    target = Path(path)
    if not target.name or target.name == ".." or os.path.isdir(path):
        raise ScenarioError(f"{flag} '{path}' is no file name; name a file, as in results{(suffixes or ('.md',))[0]}")
    if suffixes and target.suffix not in suffixes:
        raise ScenarioError(f"{flag} {path}: the name must end in {' or '.join(suffixes)}")
    if not os.path.isdir(target.parent):
        raise ScenarioError(f"{flag} {path}: folder {target.parent} does not exist; make it first")
    if os.path.exists(path) and not os.path.isfile(path):
        raise ScenarioError(f"{flag} {path}: is a pipe or a device; name a file on the disk")
    if os.path.exists(path) and not force:
        raise ScenarioError(f"{flag} {path}: the file exists; give another name, or --force to replace it")
    if os.path.exists(path) and not os.access(path, os.W_OK):
        raise ScenarioError(f"{flag} {path}: may not be written; give another name, or change its permissions")
    try:
        _, draft = _places(path)
        draft.touch()
        draft.unlink()
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{flag} {path}: cannot be written: {_reason(error)}; give another file") from error


@contextmanager
def whole_file(flag: str, path: str) -> Iterator[TextIO]:
    """A text file that takes its name when it is complete; until then, and after any failure, an old one stays. A link
    stays a link to the new content.

    Raises:
        ScenarioError: when it cannot be written.
    """
    target, draft = _places(path)
    try:
        with draft.open("w", encoding="utf-8", newline="") as out:
            yield out
        os.replace(draft, target)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise ScenarioError(f"{flag} {path}: cannot be written: {_reason(error)}; give another file") from error
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def check_folder(flag: str, path: str, *, force: bool) -> None:
    """Refuse a folder that `write_folder` could not fill, or would fill beside what is there without `force`.

    Raises:
        ScenarioError: a missing parent, a file of that name, a folder that exists without `force`, or no name at all.
    """
    target = Path(path)
    if not os.path.isdir(target.parent):
        raise ScenarioError(f"{flag} {path}: folder {target.parent} does not exist; make it first")
    try:
        os.lstat(path)
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{flag} {path}: cannot be made: {_reason(error)}; give another name") from error
    if not target.is_dir():
        raise ScenarioError(f"{flag} {path}: is a file, and a folder is needed; give another name")
    if not force:
        raise ScenarioError(f"{flag} {path}: the folder exists; give another name, or --force to replace files in it")


def write_folder(flag: str, path: str, files: Mapping[str, str]) -> None:
    """Files by name, each whole or not at all; others in the folder stay.

    Raises:
        ScenarioError: when one cannot be written.
    """
    try:
        Path(path).mkdir(exist_ok=True)
    except OSError as error:
        raise ScenarioError(f"{flag} {path}: cannot be made: {error.strerror}; give another name") from error
    for name, text in files.items():
        with whole_file(flag, str(Path(path) / name)) as out:
            out.write(text)


def _places(path: str) -> tuple[Path, Path]:
    """(the file itself, behind any link; where it is written until it is complete)."""
    target = Path(os.path.realpath(path))
    return target, target.with_name(f".{target.name}.{os.getpid()}.part")


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)
