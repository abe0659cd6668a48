"""The demo: ``python -m demo`` runs the product's one job on an embedded cluster and shows it as a user would see it."""
