"""Pipelines that read a finished dataset back."""
