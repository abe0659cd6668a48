"""Conversations: from JSON Lines to tokens that know which of them are the assistant's.

``conversations`` and ``tokenizer_files`` need the standard library alone, so that Inspect can judge data and target in a
small image; ``template`` makes a text of a conversation, ``spans`` says where in it the answers are, ``rendering`` brings in
transformers and makes tokens of it, and ``prompts`` is what travels on to the probe.
"""
