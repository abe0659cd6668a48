"""Drafts in the layouts in which other trainers publish them, built from their public descriptions.

``shapes`` has the tensors of a draft, ``layouts`` the families, ``kinds`` what is more than EAGLE-3's one Llama layer.
"""
