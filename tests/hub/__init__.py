"""A stand-in for a hub (``stand_in``), in a test's own process or as a program in a pod.

The module needs nothing but the standard library, so that it runs where there is only Python.
"""
