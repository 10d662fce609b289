"""``python -m validation.attack``."""

import sys

from validation.attack.command import main

if __name__ == "__main__":
    sys.exit(main())
