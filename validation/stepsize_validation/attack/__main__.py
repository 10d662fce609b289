"""``python -m stepsize_validation.attack``."""

import sys

from stepsize_validation.attack.command import main

if __name__ == "__main__":
    sys.exit(main())
