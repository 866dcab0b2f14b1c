import pytest

from tests.training import runs
from tests.training.datasets import write_dataset


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """(dataset directory, workdir) of a run that has learned its dataset well, but not quite."""
    root = tmp_path_factory.mktemp("trained")
    data = write_dataset(
        root / "data",
        splits={"train": 48, "validation": 12, "test": 30},
        encoding="mixed",
        size=(24, 24),
    )
    runs.train(data, root / "run", epochs=8, width=0.25, augment="none", dropout=0.0, batch_size=16)
    return data, root / "run"
