"""``python3 -m eagle3_draft``."""

from eagle3_draft.cli import main

raise SystemExit(main())
