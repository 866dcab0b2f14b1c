"""Labelled images to sharded TFRecords with Apache Beam."""
