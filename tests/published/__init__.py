"""Drafts in the layouts in which other trainers publish them, built from their public descriptions.

``shapes`` has the tensors of a draft, ``layouts`` the families.
"""
