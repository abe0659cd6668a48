"""The contract between the two planes: a Job's configuration, its report, its exit codes and its progress lines.

- In: the pod template carries the configuration as the annotation ``CONFIG_ANNOTATION``; the pod reads it as the file
  ``CONFIG_FILE`` through the downward API. One object, atomic.
- Out: the report as JSON in the container's termination message, at most ``REPORT_LIMIT`` bytes; a fuller one lies
  beside the artifact. Done means: the Job is Complete *and* there is a report.
- Progress: one JSON line on stdout now and then, after the mark ``PROGRESS_MARK``.

A module for each stage, by its name, with its configuration and its result; ``contract`` has what all have, ``envelope``
and ``report`` bring the stages together. All names are here too.
"""

from eagle3_api.exit_codes import FATAL_EXIT_CODES, ExitCode
from eagle3_api.jobs.clean import CleanConfig, CleanResult
from eagle3_api.jobs.contract import (
    CONFIG_ANNOTATION,
    CONFIG_FILE,
    LIBRARY,
    TERMINATION_LOG,
    ObjectReference,
    StageName,
)
from eagle3_api.jobs.convert import ConvertConfig, ConvertResult
from eagle3_api.jobs.data import DataConfig, SamplingDefaults
from eagle3_api.jobs.envelope import JobConfig, JobEnvelope
from eagle3_api.jobs.extract import ExtractConfig, ExtractResult, cut_warning
from eagle3_api.jobs.fetch import FetchConfig, Fetched, FetchResult, HubDataset, HubSource, StoredSource
from eagle3_api.jobs.hook import HookConfig
from eagle3_api.jobs.inspect import Facts, InspectConfig
from eagle3_api.jobs.probe import LoadResult, Mismatch, ProbeConfig, ProbeResult
from eagle3_api.jobs.progress import PROGRESS_MARK, Progress
from eagle3_api.jobs.publish import REGISTRY_LOGIN, PublishConfig, PublishResult, StoredDraft
from eagle3_api.jobs.report import REPORT_LIMIT, RESULTS, Report, Result
from eagle3_api.jobs.storage import BUCKET_ADDRESSING, BUCKET_AUTHORITY, BucketConfig, ObjectStoreConfig
from eagle3_api.jobs.train import MEETING_PORT, METRICS_PORT, TrainConfig, TrainResult, idle_warning

__all__ = [
    "BUCKET_ADDRESSING",
    "BUCKET_AUTHORITY",
    "CONFIG_ANNOTATION",
    "CONFIG_FILE",
    "FATAL_EXIT_CODES",
    "LIBRARY",
    "MEETING_PORT",
    "METRICS_PORT",
    "PROGRESS_MARK",
    "REGISTRY_LOGIN",
    "REPORT_LIMIT",
    "RESULTS",
    "TERMINATION_LOG",
    "BucketConfig",
    "CleanConfig",
    "CleanResult",
    "ConvertConfig",
    "ConvertResult",
    "DataConfig",
    "ExitCode",
    "ExtractConfig",
    "ExtractResult",
    "Facts",
    "FetchConfig",
    "FetchResult",
    "Fetched",
    "HookConfig",
    "HubDataset",
    "HubSource",
    "InspectConfig",
    "JobConfig",
    "JobEnvelope",
    "LoadResult",
    "Mismatch",
    "ObjectReference",
    "ObjectStoreConfig",
    "ProbeConfig",
    "ProbeResult",
    "Progress",
    "PublishConfig",
    "PublishResult",
    "Report",
    "Result",
    "SamplingDefaults",
    "StageName",
    "StoredDraft",
    "StoredSource",
    "TrainConfig",
    "TrainResult",
    "cut_warning",
    "idle_warning",
]
