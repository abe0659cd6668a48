"""``python3 -m eagle3_operator.cli``."""

from eagle3_operator.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
