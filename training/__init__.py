"""Reads what imagebeam convert wrote and trains Keras models on it; never imports Beam."""
