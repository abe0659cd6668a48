"""The manifest of an artifact, which makes it finished: its files, and what they were made from."""

from typing import Annotated, Any

from pydantic import Field, StringConstraints, field_validator

from eagle3_api.artifacts import FORMAT, MANIFEST
from eagle3_api.base import Model

Sha256 = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]


class File(Model):
    """One file of an artifact."""

    path: str = Field(description="Relative to the artifact's folder, POSIX, without '..'.")
    size: int = Field(ge=0, description="Bytes.")
    sha256: Sha256

    @property
    def is_part(self) -> bool:
        """Whether it is the manifest of an artifact in a subfolder, which is a part of this one."""
        return self.path.endswith(f"/{MANIFEST}")

    def within(self, part: str) -> "File":
        """The same file, as the artifact knows it of which its own is the part in this subfolder."""
        return File.model_construct(path=f"{part}/{self.path}", size=self.size, sha256=self.sha256)

    @field_validator("path")
    @classmethod
    def _stays_inside(cls, path: str) -> str:
        names = path.split("/")  # of a hundred thousand paths
        if path.startswith("/") or ".." in names or {*names} <= {"", "."}:
            raise ValueError(f"{path!r} leaves the artifact's folder")
        return path


class Manifest(Model):
    """What makes a folder an artifact."""

    format: str = FORMAT
    stage: str
    key: str
    files: list[File]
    made_from: dict[str, str] = Field(description="Keys and digests of what this was made from, by name.")
    provenance: dict[str, str] = Field(
        default_factory=dict, description="What does not change the output: image, versions, pod, node, start and end."
    )
    numbers: dict[str, Any] = Field(default_factory=dict, description="The numbers that matter, as in the report.")

    def file(self, path: str) -> File:
        """The entry of one file; KeyError names the file and the stage when the artifact does not list it."""
        for file in self.files:
            if file.path == path:
                return file
        raise KeyError(f"the {self.stage} artifact {self.key} lists no file {path}")
