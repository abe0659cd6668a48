"""``Eagle3Draft.spec``: what a user writes. Sections mirror the stages.

The CustomResourceDefinition is generated from these models (``crd``): descriptions become ``kubectl explain``, bounds
become the schema, constant defaults become the API server's defaults, and ``rules`` become CEL rules whose messages say
what to do. Values that depend on the target (layers, digests, estimates) have no default here: Inspect derives them and
reports them in ``status.resolved``.

A module for each section, by its name, with the rules that stand in it; ``object`` has the object and the rules between
sections. All names are here too.
"""

from eagle3_api.spec.bucket import Bucket
from eagle3_api.spec.data import Data, Dataset, Regenerate
from eagle3_api.spec.draft import Draft
from eagle3_api.spec.duration import Duration, Period, seconds
from eagle3_api.spec.extract import Extract
from eagle3_api.spec.object import AutoApply, DeletionPolicy, Eagle3Draft, Eagle3DraftSpec, Metadata, QueueName
from eagle3_api.spec.placement import (
    STAGE_PLACEMENT,
    ClaimSource,
    EnvironmentVariable,
    Placement,
    Resource,
    SecretKey,
    Toleration,
    Volume,
)
from eagle3_api.spec.probe import Probe
from eagle3_api.spec.publish import Hook, OciArtifact, Publish
from eagle3_api.spec.serve import Argument, Serve, Speculative
from eagle3_api.spec.storage import CachedBucket, FeaturesRoot, Root, Storage
from eagle3_api.spec.strings import HubRevision, Path, PathOrRepository, Quantity, Repository
from eagle3_api.spec.target import Target
from eagle3_api.spec.train import EarlyStop, Logging, Loss, Train, Trainer, WeightsAndBiases
from eagle3_api.spec.watch import Failures, PrometheusReference, Watch

__all__ = [
    "STAGE_PLACEMENT",
    "Argument",
    "AutoApply",
    "Bucket",
    "CachedBucket",
    "ClaimSource",
    "Data",
    "Dataset",
    "DeletionPolicy",
    "Draft",
    "Duration",
    "Eagle3Draft",
    "Eagle3DraftSpec",
    "EarlyStop",
    "EnvironmentVariable",
    "Extract",
    "Failures",
    "FeaturesRoot",
    "Hook",
    "HubRevision",
    "Logging",
    "Loss",
    "Metadata",
    "OciArtifact",
    "Path",
    "PathOrRepository",
    "Period",
    "Placement",
    "Probe",
    "PrometheusReference",
    "Publish",
    "Quantity",
    "QueueName",
    "Regenerate",
    "Repository",
    "Resource",
    "Root",
    "SecretKey",
    "Serve",
    "Speculative",
    "Storage",
    "Target",
    "Toleration",
    "Train",
    "Trainer",
    "Volume",
    "Watch",
    "WeightsAndBiases",
    "seconds",
]
