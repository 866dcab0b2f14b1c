import collections

import numpy as np
import pytest
import tensorflow as tf

from beam_pipeline.errors import DatasetError, UsageError
from beam_pipeline.options import FeatureNames
from tests import fakes
from tests.training.datasets import face, write_dataset
from training.decode import encoded_decoder
from training.input_pipeline import read_split
from training.read_options import ReadOptions
from training.resample import random_places
from training.shards import open_dataset
from training.split_reader import SplitReader
from training.target import ImageTarget, target_for

NO_CACHE = ReadOptions(cache="none")


def keys_of(batches) -> list[str]:
    """Keys with weight 1, in order."""
    return [
        key.decode()
        for batch in batches
        for key, weight in zip(batch["key"].numpy(), batch["weight"].numpy(), strict=True)
        if weight
    ]


def reader_of(path, batch_size=5, **arguments) -> SplitReader:
    arguments.setdefault("options", NO_CACHE)
    info = open_dataset(str(path))
    split = arguments.pop("split", "train")
    target = arguments.pop("target", None) or target_for(info, image_size=(12, 16))
    return SplitReader(info, split, target, batch_size=batch_size, **arguments)


ALL = sorted(f"train/{number}" for number in range(24))


@pytest.mark.parametrize("encoding", ["jpeg", "png", "raw", "mixed"])
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(
    ("names", "compressed"), [(FeatureNames.DEFAULT, False), (FeatureNames.SLIM, True)]
)
def test_reads_every_encoding_names_and_compression(
    tmp_path, encoding, channels, names, compressed
):
    write_dataset(
        tmp_path, encoding=encoding, channels=channels, names=names, compressed=compressed
    )
    seen = 0
    for images, labels in read_split(str(tmp_path), "train", batch_size=5):
        assert images.dtype == tf.uint8
        assert images.shape[1:] == (12, 16, channels)
        for image, label in zip(images.numpy(), labels.numpy(), strict=True):
            bar = image.astype(int).reshape(3, 4, -1).mean(axis=(1, 2))
            assert bar.argmax() == label
            seen += 1
    assert seen == 24


@pytest.mark.parametrize("encoding", ["png", "raw"])
def test_lossless_pixels_come_back_exactly(tmp_path, encoding):
    write_dataset(tmp_path, encoding=encoding)
    for batch in reader_of(tmp_path, padded=False).stored_batches():
        for key, image, label in zip(
            batch["key"].numpy(), batch["image"].numpy(), batch["label"].numpy(), strict=True
        ):
            number = int(key.decode().split("/")[1])
            np.testing.assert_array_equal(image, face(label, number, (12, 16), 1))


@pytest.mark.parametrize("encoding", ["jpeg", "png", "raw"])
@pytest.mark.parametrize("resize_mode", ["stretch", "crop"])
def test_mixed_sizes_and_changed_channels_batch(tmp_path, encoding, resize_mode):
    write_dataset(tmp_path, encoding=encoding, size=None, channels=3)
    (images, _), *_ = read_split(
        str(tmp_path),
        "train",
        batch_size=24,
        image_size=(9, 9),
        channels=1,
        resize_mode=resize_mode,
    )
    assert images.shape == (24, 9, 9, 1)
    assert images.numpy().std() > 20


def test_mixed_sizes_need_a_size(tmp_path):
    write_dataset(tmp_path, size=None)
    with pytest.raises(UsageError, match=r"differ in size.*--image_size"):
        read_split(str(tmp_path), "train", batch_size=2)


@pytest.mark.parametrize("cache", ["none", "memory", "file"])
@pytest.mark.parametrize("shards", [1, 3])
def test_training_order_is_decided_by_seed_and_epoch(tmp_path, cache, shards):
    data = write_dataset(tmp_path / "data", shards=shards)
    options = ReadOptions(cache=cache, cache_dir=str(tmp_path / "cache"))
    orders = []
    for global_seed, (seed, epoch) in enumerate([(1, 0), (1, 0), (1, 1), (2, 0), (0, 0)]):
        tf.random.set_seed(global_seed)  # must make no difference
        reader = reader_of(data, seed=seed, options=options)
        orders.append(keys_of(reader.training_batches(epoch, epoch + 1)))
        assert sorted(orders[-1]) == ALL
    assert orders[0] == orders[1]
    assert len({tuple(order) for order in orders}) == 4


@pytest.mark.parametrize("cache", ["none", "memory"])
def test_a_stream_of_epochs_can_be_entered_anywhere(tmp_path, cache):
    write_dataset(tmp_path)
    reader = reader_of(tmp_path, seed=3, options=ReadOptions(cache=cache))
    assert reader.steps == 5
    whole = [batch["key"].numpy().tolist() for batch in reader.training_batches(0, 3)]
    assert len(whole) == 15
    tail = [batch["key"].numpy().tolist() for batch in reader.training_batches(1, 3, first_step=2)]
    assert tail == whole[7:]


def test_fastest_order_still_has_every_example(tmp_path):
    write_dataset(tmp_path, shards=4)
    options = ReadOptions(cache="none", deterministic=False, threads=2)
    assert sorted(keys_of(reader_of(tmp_path, options=options).training_batches(0, 1))) == ALL


@pytest.mark.parametrize("batch_size", [1, 5, 7, 24, 100])
def test_evaluation_counts_every_example_once(tmp_path, batch_size):
    write_dataset(tmp_path)
    reader = reader_of(tmp_path, batch_size)
    batches = list(reader.stored_batches())
    assert {batch["image"].shape[0] for batch in batches} == {batch_size}
    assert len(batches) == reader.steps
    assert sorted(keys_of(batches)) == ALL


def test_padding_repeats_images_of_its_own_batch(tmp_path):
    write_dataset(tmp_path)
    last = list(reader_of(tmp_path, 16).training_batches(0, 1))[-1]
    keys, weights = last["key"].numpy(), last["weight"].numpy()
    np.testing.assert_array_equal(weights, [1] * 8 + [0] * 8)
    assert keys[8:].tolist() == keys[:8].tolist()


def test_the_last_partial_batch_is_kept(tmp_path):
    write_dataset(tmp_path)
    dataset = read_split(str(tmp_path), "train", batch_size=10, training=True)
    assert len(dataset) == 3
    assert [len(labels) for _, labels in dataset] == [10, 10, 4]


@pytest.mark.parametrize("cache", ["none", "memory"])
@pytest.mark.parametrize(("shards", "workers"), [(1, 2), (2, 3), (4, 2), (5, 2)])
@pytest.mark.parametrize("training", [True, False])
def test_workers_share_the_examples(tmp_path, cache, shards, workers, training):
    write_dataset(tmp_path, shards=shards)
    seen, steps = [], []
    for worker in range(workers):
        reader = reader_of(
            tmp_path, 4, worker=worker, workers=workers, options=ReadOptions(cache=cache)
        )
        batches = reader.training_batches(2, 3) if training else reader.stored_batches()
        batches = list(batches)
        assert len(batches) == reader.steps
        steps.append(reader.steps)
        seen += keys_of(batches)
    assert sorted(seen) == ALL
    assert len(set(steps)) == 1


def test_an_input_context_selects_a_workers_part(tmp_path):
    write_dataset(tmp_path, shards=1)
    counts = []
    for worker in range(2):
        context = tf.distribute.InputContext(2, worker, 2)
        dataset = read_split(str(tmp_path), "train", batch_size=5, context=context)
        counts.append(sum(len(labels) for _, labels in dataset))
    assert counts == [12, 12]


def test_replicas_get_equal_parts_of_each_batch(tmp_path):
    write_dataset(tmp_path)
    whole = list(reader_of(tmp_path, 8).stored_batches())
    parts = list(reader_of(tmp_path, 8, replicas=2).stored_batches())
    assert len(parts) == 2 * len(whole)
    np.testing.assert_array_equal(
        np.concatenate([parts[0]["image"], parts[1]["image"]]), whole[0]["image"]
    )
    with pytest.raises(UsageError, match="multiple of 3"):
        reader_of(tmp_path, 8, replicas=3)


def test_class_sorted_input_gives_mixed_batches(tmp_path):
    write_dataset(tmp_path, splits={"train": 300}, shards=3)
    for _, labels in read_split(str(tmp_path), "train", batch_size=60, training=True):
        assert set(labels.numpy()) == {0, 1, 2}


@pytest.mark.parametrize("encoding", ["jpeg", "png", "raw"])
def test_random_crops_depend_on_seed_and_epoch_only(tmp_path, encoding):
    write_dataset(tmp_path, encoding=encoding, size=(40, 60))
    target = ImageTarget((12, 12), 1, random_crop=True)

    def crops(epoch, **options):
        reader = reader_of(tmp_path, 24, target=target, options=ReadOptions(**options), seed=5)
        (batch,) = reader.training_batches(epoch, epoch + 1)
        order = np.argsort(batch["key"].numpy())
        return batch["image"].numpy()[order]

    first = crops(0, threads=1)
    assert first.shape == (24, 12, 12, 1)
    np.testing.assert_array_equal(first, crops(0, threads=2))
    assert (first != crops(1, threads=2)).mean() > 0.5
    np.testing.assert_array_equal(crops(3, cache="memory"), crops(3, cache="memory"))


@pytest.mark.parametrize("sides", [(30, 30), (64, 64)])  # shrunk while decoding, and not
def test_a_fused_crop_shows_the_same_picture_as_decode_then_crop(sides):
    y, x = np.mgrid[0:90, 0:120]
    pixels = np.stack([2 * y, 2 * x, x + y], axis=-1).astype(np.uint8)
    target = ImageTarget(sides, 3, resize_mode="crop")
    seed = tf.zeros([2], tf.int64)
    jpeg = encoded_decoder(target)({"image": fakes.encode(pixels, "JPEG", quality=98)}, seed)
    png = encoded_decoder(target)({"image": fakes.encode(pixels, "PNG")}, seed)
    difference = np.abs(jpeg.numpy().astype(int) - png.numpy().astype(int))
    assert difference.mean() < 2.5
    assert np.ptp(png.numpy()[..., 1]) > 150  # the whole central part is there


@pytest.mark.parametrize("sides", [(90, 120), (64, 64), (30, 40), (100, 200)])
@pytest.mark.parametrize("resize_mode", ["stretch", "crop", "cut"])
def test_a_known_size_decodes_like_an_unknown_one(sides, resize_mode):
    # Evaluation knows the size of a dataset's images; an exported model does not.
    data = fakes.encode(fakes.picture(90, 120, seed=4), "JPEG", quality=90)
    kept = (min(1, sides[0] / 90), min(1, sides[1] / 120)) if resize_mode == "cut" else (1, 1)
    target = ImageTarget(sides, 3, resize_mode=resize_mode, kept=kept)
    seed = tf.zeros([2], tf.int64)
    known = encoded_decoder(target, frozenset({"jpeg"}), (90, 120))({"image": data}, seed)
    unknown = encoded_decoder(target)({"image": data}, seed)
    np.testing.assert_array_equal(known, unknown)
    if sides == (90, 120) and resize_mode == "stretch":  # nothing to do: the stored pixels
        np.testing.assert_array_equal(known, tf.io.decode_jpeg(data, 3))


@pytest.mark.parametrize("encoding", ["jpeg", "png", "raw"])
def test_cut_takes_stored_pixels_from_the_middle(tmp_path, encoding):
    write_dataset(tmp_path, encoding=encoding)  # images of 12×16
    info = open_dataset(str(tmp_path))
    target = target_for(info, image_size=(8, 10), resize_mode="cut")
    assert target.kept == (8 / 12, 10 / 16)
    whole = list(reader_of(tmp_path, padded=False).stored_batches())
    cut = list(reader_of(tmp_path, padded=False, target=target).stored_batches())
    for a, b in zip(whole, cut, strict=True):
        np.testing.assert_array_equal(a["image"][:, 2:10, 3:13], b["image"])


@pytest.mark.parametrize("encoding", ["jpeg", "png", "raw"])
def test_cut_at_random_takes_stored_pixels_from_every_place(tmp_path, encoding):
    write_dataset(tmp_path, encoding=encoding)
    info = open_dataset(str(tmp_path))
    target = target_for(info, image_size=(11, 14), resize_mode="cut", random_crop=True)
    whole = {
        key: image
        for batch in reader_of(tmp_path, padded=False).stored_batches()
        for key, image in zip(batch["key"].numpy(), batch["image"].numpy(), strict=True)
    }
    places = collections.Counter()
    for batch in reader_of(tmp_path, padded=False, target=target).training_batches(0, 4):
        for key, image in zip(batch["key"].numpy(), batch["image"].numpy(), strict=True):
            found = [
                (top, left)
                for top in range(2)
                for left in range(3)
                if np.array_equal(whole[key][top : top + 11, left : left + 14], image)
            ]
            assert found
            places[found[0]] += 1
    assert len(places) == 6


def test_random_places_are_uniform_and_depend_on_their_own_seed_alone():
    stream = tf.fill([40_000], tf.constant(5 << 24, tf.int64))
    seeds = tf.stack([stream, tf.range(40_000, dtype=tf.int64)], 1)
    places = random_places(seeds).numpy()
    assert places.dtype == np.float32
    assert places.min() >= 0
    assert places.max() < 1
    for column in (0, 1):
        counts, _ = np.histogram(places[:, column], 20, (0, 1))
        assert np.abs(counts - 2000).max() < 250  # 5.7 standard deviations
    for a, b in ((places[:, 0], places[:, 1]), (places[:-1, 0], places[1:, 0])):
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.03
    np.testing.assert_array_equal(random_places(seeds[7:9]).numpy(), places[7:9])
    other = random_places(seeds + tf.constant([1, 0], tf.int64)).numpy()  # the next epoch
    assert abs(np.corrcoef(places[:, 0], other[:, 0])[0, 1]) < 0.03


def test_cut_needs_images_of_one_size_that_are_large_enough(tmp_path):
    one, other = write_dataset(tmp_path / "one"), write_dataset(tmp_path / "other", size=None)
    with pytest.raises(UsageError, match=r"cannot cut 13x16 out of .* which are 12x16"):
        read_split(str(one), "train", batch_size=2, image_size=(13, 16), resize_mode="cut")
    with pytest.raises(UsageError, match=r"needs images of one size.*--resize"):
        read_split(str(other), "train", batch_size=2, image_size=(8, 8), resize_mode="cut")
    with pytest.raises(UsageError, match="kept parts"):
        ImageTarget((8, 8), 3, "cut", kept=(0.0, 1.0))


@pytest.mark.parametrize("random_crop", [False, True])
def test_images_kept_in_memory_are_those_that_a_stream_reads(tmp_path, random_crop):
    """Training keeps a split that its shuffle buffer would hold; a smaller buffer streams."""
    write_dataset(tmp_path, shards=3, encoding="png")
    target = ImageTarget((10, 12), 3, random_crop=random_crop)
    seen = []
    for buffer in (None, 5):
        options = ReadOptions(cache="none", shuffle_records=buffer)
        reader = reader_of(tmp_path, seed=2, target=target, options=options)
        batches = list(reader.training_batches(0, 2))
        assert (reader._kept is not None) == (buffer is None)
        examples = collections.Counter()
        for batch in batches:
            for index, key in enumerate(batch["key"].numpy()):
                pixels = b"" if random_crop else batch["image"][index].numpy().tobytes()
                weight = float(batch["weight"][index])
                examples[key, int(batch["label"][index]), pixels] += weight
        seen.append(examples)
    assert +seen[0] == +seen[1]
    assert set(seen[0].values()) >= {2.0}


def test_the_file_cache_is_used_again(tmp_path):
    data = write_dataset(tmp_path / "data")
    options = ReadOptions(cache="file", cache_dir=str(tmp_path / "cache"))
    first = keys_of(reader_of(data, options=options).stored_batches())
    (file,) = (tmp_path / "cache").glob("*.npy")
    file.write_bytes(file.read_bytes()[:-1] + b"\x07")  # seen by the next reader
    last = list(reader_of(data, 24, options=options).stored_batches())[-1]
    assert last["image"].numpy().ravel()[-1] == 7
    assert keys_of([last]) == first
    assert len(list((tmp_path / "cache").iterdir())) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"cache": "disk"}, "cache must be one of"),
        ({"cache": "file"}, "--cache_dir"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"ram_budget": 5}, "ram_budget must be at least"),
        ({"prefetch": -1}, "prefetch must be"),
    ],
)
def test_read_options_check_themselves(arguments, message):
    with pytest.raises(UsageError, match=message):
        ReadOptions(**arguments)


def test_a_ram_budget_bounds_caches_buffers_and_parallel_calls(tmp_path):
    write_dataset(tmp_path)
    info = open_dataset(str(tmp_path))
    big = ImageTarget((400, 400), 3)  # 24 × 480 kB
    with pytest.raises(UsageError, match=r"cache 'memory' needs 10 MiB.*budget of 8 MiB"):
        SplitReader(
            info, "train", big, batch_size=1, options=ReadOptions("memory", ram_budget=8 << 20)
        )
    with pytest.raises(UsageError, match="budget of 8 MiB is too small"):
        SplitReader(info, "train", big, batch_size=5, options=ReadOptions(ram_budget=8 << 20))
    reader = SplitReader(
        info, "train", big, batch_size=1, options=ReadOptions(ram_budget=8 << 20, threads=50)
    )
    assert reader.cache == "none"
    assert reader._parallel == 5  # 4 MiB hold 8 batches; 3 of them are ready or being read


def test_without_labels_they_are_minus_one(tmp_path):
    write_dataset(tmp_path, labelled=False)
    labels = np.concatenate(
        [labels for _, labels in read_split(str(tmp_path), "train", batch_size=9)]
    )
    assert collections.Counter(labels.tolist()) == {-1: 24}


def test_a_label_outside_the_map_stops_reading(tmp_path):
    write_dataset(tmp_path, label_offset=1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="label id outside the map"):
        list(read_split(str(tmp_path), "train", batch_size=24, options=NO_CACHE))


def test_unknown_splits_and_too_many_workers_are_named(tmp_path):
    write_dataset(tmp_path)
    with pytest.raises(DatasetError, match="no split 'val'; it has train"):
        read_split(str(tmp_path), "val", batch_size=2)
    with pytest.raises(DatasetError, match="24 images, not enough for 25 workers"):
        reader_of(tmp_path, worker=24, workers=25)
