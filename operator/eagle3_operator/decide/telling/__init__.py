"""What is said of it all: conditions, Events, and the columns of ``kubectl get``."""
