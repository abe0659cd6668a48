"""Bounded strings that several sections have: names, labels, paths, repositories of a hub, sizes."""

from typing import Annotated

from pydantic import StringConstraints

from eagle3_api.spec.schema import Says

Name = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
Label = Annotated[str, StringConstraints(max_length=317)]
LabelValue = Annotated[str, StringConstraints(max_length=63, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")]
Text = Annotated[str, StringConstraints(min_length=1, max_length=512)]

_ABSOLUTE = StringConstraints(min_length=2, max_length=512, pattern=r"^/[^\x00]*$")
Path = Annotated[
    str,
    _ABSOLUTE,
    Says("a path as pods see it, which begins with / and leads into a volume of placement.volumes"),
]

MountPath = Annotated[str, _ABSOLUTE, Says("where pods see the volume: a path that begins with /")]

#: ``organisation/name`` of a hub.
_REPOSITORY = r"[A-Za-z0-9][-A-Za-z0-9._]{0,95}/[A-Za-z0-9][-A-Za-z0-9._]{0,95}"
Repository = Annotated[str, StringConstraints(max_length=193, pattern=f"^{_REPOSITORY}$")]
PathOrRepository = Annotated[
    str,
    StringConstraints(min_length=2, max_length=512, pattern=rf"^(/[^\x00]*|{_REPOSITORY})$"),
    Says("a path as pods see it, which begins with /, or organisation/name of a hub"),
]
#: A draft that is adopted may also lie in an object store.
PathOrRepositoryOrAddress = Annotated[
    str,
    StringConstraints(min_length=2, max_length=512, pattern=rf"^(/[^\x00]*|s3://[-A-Za-z0-9._/]+|{_REPOSITORY})$"),
    Says("a path as pods see it, which begins with /, or organisation/name of a hub, or s3://BUCKET/PREFIX/sha256-..."),
]
HubRevision = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][-A-Za-z0-9._/]*$")]

Quantity = Annotated[
    str,
    StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$", max_length=32),
    Says("a quantity is a number and Kubernetes' unit, without a space and without B: 500Gi, 2Ti, 1.5T"),
]
