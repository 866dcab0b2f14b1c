"""`python -m beam_pipeline` is the imagebeam command."""

import sys

from beam_pipeline.cli import main

if __name__ == "__main__":
    sys.exit(main())
