"""What images.py is made of: one file for each thing that must be known about image files."""
