"""Where artifacts lie: folders that are finished or not, on a volume or in a bucket."""
