"""What every part of the configuration shares: the strict base model, names, paths, secrets."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, WithJsonSchema, model_validator

_NULL_DEVICE = os.makedev(1, 3)
SECRET_LIMIT = 64 * 1024


class Model(BaseModel):
    """Base of every section: unknown keys are errors, values do not change, the text under a field documents it."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True, populate_by_name=False)


class SecretError(ValueError):
    """A secret that cannot be read. The text names the file or variable and what to do, never the secret."""


def _path(value: Any, info: ValidationInfo) -> str:
    if not isinstance(value, (str, Path)) or not str(value).strip():
        raise ValueError("a file name is needed")
    if "\0" in str(value):
        raise ValueError("a file name cannot hold a NUL character")
    # A relative name is relative to the configuration file, so that a folder of files can be moved as one.
    base = (info.context or {}).get("base")
    return str(Path(base, value)) if base is not None else str(value)


def _one_line(value: str) -> str:
    if any(ord(char) < 32 or ord(char) == 127 for char in value):
        raise ValueError("control characters are not allowed here")
    return value


FilePath = Annotated[Path, BeforeValidator(_path), WithJsonSchema({"type": "string", "minLength": 1})]
"""A file; a relative name is relative to the folder of the configuration file."""
Name = Annotated[str, Field(min_length=1, max_length=63, pattern=r"^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$")]
"""A name that can be a label value and a part of a file or object name."""
Line = Annotated[str, Field(min_length=1, max_length=256), AfterValidator(_one_line)]
"""One line of text."""


class Secret(Model):
    """A secret by reference: `{file: PATH}` or `{env: VARIABLE}`. The secret itself never stands in the configuration."""

    file: FilePath | None = None
    """File that holds the secret and nothing else; surrounding white space is removed. Read again when it changes."""
    env: Annotated[str, Field(max_length=256, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] | None = None
    """Environment variable that holds the secret. It is read once, at start."""

    @model_validator(mode="before")
    @classmethod
    def _never_inline(cls, data: Any) -> Any:
        if isinstance(data, dict):
            return data
        raise ValueError("a secret is never written here: put it in a file and write {file: PATH}, or name a variable with {env: NAME}")

    @model_validator(mode="after")
    def _one_source(self) -> Secret:
        if (self.file is None) == (self.env is None):
            raise ValueError("a secret needs exactly one of file and env")
        return self

    def __str__(self) -> str:
        return f"file {self.file}" if self.file is not None else f"variable {self.env}"

    def read(self, environ: Mapping[str, str] | None = None) -> str:
        """The secret's text without surrounding white space. Raises SecretError when it is missing, empty, too long or not one line."""
        if self.file is not None:
            text = _read_secret(self.file)
        else:
            text = (os.environ if environ is None else environ).get(str(self.env), "").strip()
        if not text:
            raise SecretError(f"{self} is empty or not set")
        if any(ord(char) < 32 for char in text):
            raise SecretError(f"{self} holds more than one line or control characters: one line is needed")
        return text


def read_file(path: Path, limit: int) -> bytes:
    """The first `limit` bytes of a regular file, or of the null device. Never waits, as a named pipe would. Raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if stat.S_ISDIR(found.st_mode):
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        if not stat.S_ISREG(found.st_mode) and found.st_rdev != _NULL_DEVICE:
            raise OSError(errno.EINVAL, "it is no regular file")
        return file.read(limit)


def _read_secret(path: Path) -> str:
    try:
        raw = read_file(path, SECRET_LIMIT + 1)
    except OSError as error:
        raise SecretError(f"file {path} cannot be read: {error.strerror}") from None
    if len(raw) > SECRET_LIMIT:
        raise SecretError(f"file {path} is larger than {SECRET_LIMIT} bytes: that is no secret")
    try:
        return raw.decode().strip()
    except UnicodeDecodeError:
        raise SecretError(f"file {path} is not UTF-8 text") from None
