"""The tiny target on real SGLang servers, without a cluster.

server.py     a server on this machine's CPU
drafts.py     a draft that was trained for it
proposals.py  what a draft proposes there, and what the reference proposes in its place
recorder      the plug-in of SGLang that writes the former down
"""
