"""The operator at work in tests: its process, a namespace for it, and a stand-in for the nodes."""

from operating.client import client_of
from operating.counting import CountingServer, counting, serving_http
from operating.kubelet import StandInKubelet
from operating.process import OperatorProcess
from operating.site import NotYetError, Site, condition

__all__ = [
    "CountingServer",
    "NotYetError",
    "OperatorProcess",
    "Site",
    "StandInKubelet",
    "client_of",
    "condition",
    "counting",
    "serving_http",
]
