"""The product on a test cluster, as a user has it: images, the chart installed by real helm, volumes, a Prometheus.

    with Testbed.up() as bed:
        bed.create(tiny.manifest())
        bed.wait("tiny", lambda draft: draft.ready, seconds=600)

- ``images``: our two images from the wheel and the lock file, and the SGLang image for a CPU, without a docker engine;
- ``bed``: all of it together;
- ``draft``: an ``Eagle3Draft`` as it is read back;
- ``tiny``: the object that the tests and the demo create;
- ``elsewhere``: a hub and a registry, where an object is to have its target from and its draft go to;
- ``sign``: what signs it there.
"""

from testbed.bed import Testbed
from testbed.draft import Draft

__all__ = ["Draft", "Testbed"]
