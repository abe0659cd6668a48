"""What a Job says at its end."""

import json
from bisect import bisect_right

from pydantic import Field, ValidationError

from eagle3_api.base import Model
from eagle3_api.conditions import Reason
from eagle3_api.jobs.clean import CleanResult
from eagle3_api.jobs.contract import StageName
from eagle3_api.jobs.convert import ConvertResult
from eagle3_api.jobs.extract import ExtractResult
from eagle3_api.jobs.fetch import FetchResult
from eagle3_api.jobs.inspect import Facts
from eagle3_api.jobs.probe import ProbeResult
from eagle3_api.jobs.publish import PublishResult
from eagle3_api.jobs.train import TrainResult

#: Bytes of a termination message; the kubelet keeps 4 KiB.
REPORT_LIMIT = 3 * 1024

Result = FetchResult | Facts | ExtractResult | TrainResult | CleanResult | ConvertResult | PublishResult | ProbeResult
#: By the stages that leave a report: all but Hook, which is a command of somebody else's.
RESULTS: dict[StageName, type[Result]] = {
    StageName.FETCH: FetchResult,
    StageName.INSPECT: Facts,
    StageName.EXTRACT: ExtractResult,
    StageName.TRAIN: TrainResult,
    StageName.CLEAN: CleanResult,
    StageName.CONVERT: ConvertResult,
    StageName.PUBLISH: PublishResult,
    StageName.PROBE: ProbeResult,
}


class Report(Model):
    """What a Job says at its end."""

    stage: StageName
    key: str
    ok: bool
    reason: Reason | None = Field(None, description="Why it failed.")
    message: str = ""
    retry: StageName | None = Field(
        None, description="The stage to retry once what failed is mended, where it is another than this one."
    )
    result: dict[str, object] | None = None

    @property
    def partial(self) -> bool:
        """One of several pods succeeded, while others were still at work: not the report of the whole Job."""
        return self.ok and self.result is not None and self.result.get("whole") is False

    def dump(self) -> str:
        """The JSON of the termination message, within ``REPORT_LIMIT`` bytes: an over-long message is cut."""

        def text(message: str) -> str:
            report = self.model_copy(update={"message": message})
            return json.dumps(report.to_json(), separators=(",", ":"), ensure_ascii=False)

        def excess(message: str) -> int:
            return len(text(message).encode()) - REPORT_LIMIT

        if excess(self.message) <= 0:
            return text(self.message)
        if excess("…") > 0:
            raise ValueError(f"the result of {self.stage} alone takes more than {REPORT_LIMIT} bytes")
        too_long = bisect_right(range(len(self.message)), 0, key=lambda kept: excess(self.message[:kept] + "…"))
        return text(self.message[: too_long - 1] + "…")

    @classmethod
    def parse(cls, text: str) -> "Report | None":
        """The report in a termination message, or None where there is none (a pod that was killed, another's text)."""
        try:
            return cls.model_validate_json(text)
        except ValidationError:
            return None
