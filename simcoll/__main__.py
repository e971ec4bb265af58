"""`python -m simcoll`."""

import sys

from simcoll.cli import main

sys.exit(main())
