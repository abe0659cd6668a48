"""``python3 -m eagle3_draft``."""

from eagle3_draft.runtime.entry import main

# An engine's workers that are spawned import this module too
if __name__ == "__main__":
    raise SystemExit(main())
