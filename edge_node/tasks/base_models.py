r"""Show a task the base models that this site holds, and see that they are the job's.

A base model is a folder of frozen weights that a site got by its own ways; a job names it and the
digest of its folder. Other weights under the same name would train another model here than at
other sites, so the whole content is hashed before each start of a trainer: neither times nor sizes
of files are taken for it.

The digest of a folder is the SHA-256 of one line a regular file, in the order of the paths' UTF-8
bytes: the file's SHA-256 in hex, two spaces, its path inside the folder with '/' between parts, a
line feed; as ``find . -type f -printf '%P\n' | LC_ALL=C sort | xargs sha256sum | sha256sum`` run in
it prints it.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from privacy.errors import PeerError, Reason, UsageError


@dataclass(frozen=True)
class LocalBaseModel:
    """A base model as a job declares it, and where this site has it.

    Attributes:
        name: As the job and site.toml call it.
        path: The folder.
        sha256: The digest that the job declares, hex.
    """

    name: str
    path: Path
    sha256: str


def folder_digest(path: Path) -> str:
    """Hash a folder's files and their paths, hex; it reads all of them.

    Links are followed to files, as Hugging Face's cache has them, and refused to folders.

    Args:
        path: The folder.

    Raises:
        UsageError: It is no folder, holds no file, or a file cannot be read.
    """
    if not path.is_dir():
        raise UsageError(f"there is no folder {path}")
    try:
        names = sorted(_files(path), key=str.encode)
        lines = [f"{_file_digest(path / name)}  {name}\n" for name in names]
    except OSError as error:
        raise UsageError(f"the base model {path} cannot be read: {error}") from error
    if not lines:
        raise UsageError(f"the base model {path} holds no file")
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def check_base_models(models: tuple[LocalBaseModel, ...]) -> None:
    """Hash each base model's folder and compare it with what the job declares.

    Raises:
        PeerError: POLICY: this site's files are others than the job's.
        UsageError: A folder cannot be read.
    """
    for model in models:
        if folder_digest(model.path) != model.sha256:
            raise PeerError(
                Reason.POLICY,
                f"this site's base model {model.name!r} is not the one of the job: its files have"
                " another digest than [[task.base_models]] sha256",
            )


def _files(path: Path) -> list[str]:
    found = []
    for entry in path.rglob("*"):
        if entry.is_symlink() and entry.is_dir():
            raise UsageError(f"the base model {path} holds a link to a folder: {entry.name}")
        if entry.is_file():
            found.append(entry.relative_to(path).as_posix())
    return found


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
