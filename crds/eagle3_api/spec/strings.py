"""Bounded strings that several sections have: names, labels, paths, repositories of a hub, sizes."""

from typing import Annotated

from pydantic import StringConstraints

Name = Annotated[str, StringConstraints(min_length=1, max_length=253, pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$")]
Label = Annotated[str, StringConstraints(max_length=317)]
Text = Annotated[str, StringConstraints(min_length=1, max_length=512)]

Path = Annotated[str, StringConstraints(min_length=2, max_length=512, pattern=r"^/[^\x00]*$")]

#: ``organisation/name`` of a hub.
_REPOSITORY = r"[A-Za-z0-9][-A-Za-z0-9._]{0,95}/[A-Za-z0-9][-A-Za-z0-9._]{0,95}"
Repository = Annotated[str, StringConstraints(max_length=193, pattern=f"^{_REPOSITORY}$")]
PathOrRepository = Annotated[
    str, StringConstraints(min_length=2, max_length=512, pattern=rf"^(/[^\x00]*|{_REPOSITORY})$")
]
#: A draft that is adopted may also lie in an object store.
PathOrRepositoryOrAddress = Annotated[
    str, StringConstraints(min_length=2, max_length=512, pattern=rf"^(/[^\x00]*|s3://[-A-Za-z0-9._/]+|{_REPOSITORY})$")
]
HubRevision = Annotated[str, StringConstraints(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][-A-Za-z0-9._/]*$")]

Quantity = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$", max_length=32)]
