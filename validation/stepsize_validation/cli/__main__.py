"""``python -m stepsize_validation.cli``."""

import sys

from stepsize_validation.cli import main

sys.exit(main())
