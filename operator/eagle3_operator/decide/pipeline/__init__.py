"""Before serving: which stages there should be before a draft can serve, how each ended, and what of their output may go."""
