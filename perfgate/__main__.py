"""``python -m perfgate``, the same as the command."""

import sys

from perfgate.cli import main

sys.exit(main())
