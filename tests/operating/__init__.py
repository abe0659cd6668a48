"""The operator at work in tests: its process, a namespace for it, a stand-in for the nodes, and controllers of others."""

from operating.client import client_of
from operating.controller import JOBSET, KUEUE, Controller
from operating.counting import CountingServer, counting
from operating.kubelet import StandInKubelet
from operating.process import OperatorProcess
from operating.rights import kubeconfig_of_the_chart
from operating.site import NotYetError, Site, condition
from operating.web import serving_http

__all__ = [
    "JOBSET",
    "KUEUE",
    "Controller",
    "CountingServer",
    "NotYetError",
    "OperatorProcess",
    "Site",
    "StandInKubelet",
    "client_of",
    "condition",
    "counting",
    "kubeconfig_of_the_chart",
    "serving_http",
]
