"""The tiny target on real SGLang servers, without a cluster.

server.py  a server on this machine's CPU
drafts.py  a draft that was trained for it
"""
