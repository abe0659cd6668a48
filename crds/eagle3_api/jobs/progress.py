"""What a Job says on its way."""

import json

from pydantic import Field, ValidationError

from eagle3_api.base import Model

PROGRESS_MARK = "EAGLE3-PROGRESS "


class Progress(Model):
    """One progress line."""

    done: float = Field(ge=0, le=1, description="Share of the work that is done.")
    seconds_left: float | None = None
    message: str = ""
    time: float = Field(description="Seconds since the epoch.")

    def dump(self) -> str:
        """The line as it is printed."""
        return PROGRESS_MARK + json.dumps(self.to_json(), separators=(",", ":"))

    @classmethod
    def last(cls, log: str) -> "Progress | None":
        """The last progress line in a piece of log, or None."""
        for line in reversed(log.splitlines()):
            _, mark, text = line.partition(PROGRESS_MARK)
            if mark:
                try:
                    return cls.model_validate_json(text)
                except ValidationError:
                    continue
        return None
