"""`python -m beam_pipeline` is the imagebeam command."""

from beam_pipeline.cli import console

if __name__ == "__main__":
    console()
