import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf

from beam_pipeline.errors import UsageError
from training.augment import STRENGTHS, build_augmentation, parse_augment
from training.devices import (
    Hardware,
    choose_precision,
    choose_xla,
    cluster_workers,
    find_hardware,
    set_up,
)
from training.models import MODELS, ModelSpec, build_model, resolve_name
from training.optimizers import OPTIMIZERS, WarmupCosine, build_optimizer


@pytest.mark.parametrize("shape", [(48, 48, 1), (48, 48, 3), (8, 5, 1), (1, 1, 3)])
def test_small_cnn_fits_any_small_image(shape):
    model = build_model("small_cnn", ModelSpec(shape, 7, dropout=0.5))
    logits = model(np.zeros((2, *shape), np.float32))
    assert logits.shape == (2, 7)
    assert np.isfinite(logits.numpy()).all()
    assert model.count_params() < 1_000_000


@pytest.mark.parametrize(
    "name", ["mobilenet_v3_small", "efficientnet_v2_b0", "resnet50", "convnext_tiny"]
)
def test_applications_take_gray_images_too(name):
    keras.utils.set_random_seed(1)
    model = build_model(name, ModelSpec((32, 32, 1), 4))
    logits = model(np.random.default_rng(1).uniform(0, 255, (2, 32, 32, 1)), training=False)
    assert logits.shape == (2, 4)
    assert logits.dtype == tf.float32


def test_every_registered_application_exists():
    from training.models import _APPLICATIONS

    assert set(_APPLICATIONS) < set(MODELS)
    for class_name, _ in _APPLICATIONS.values():
        assert callable(getattr(keras.applications, class_name))


def test_resnet_pixels_are_bgr_without_the_mean():
    from training.models import _to_caffe

    inputs = keras.Input((1, 1, 3))
    model = keras.Model(inputs, _to_caffe(inputs))
    pixels = np.array([[[[10.0, 20.0, 30.0]]]])
    want = keras.applications.resnet50.preprocess_input(pixels.copy())
    np.testing.assert_allclose(model(pixels).numpy(), want, rtol=1e-5)


def test_local_weights_are_loaded(tmp_path):
    spec = ModelSpec((16, 16, 1), 3, width=0.1)
    first = build_model("small_cnn", spec)
    first.save_weights(tmp_path / "w.weights.h5")
    import dataclasses

    second = build_model(
        "small_cnn", dataclasses.replace(spec, weights=str(tmp_path / "w.weights.h5"))
    )
    for one, other in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_auto_chooses_by_size():
    assert resolve_name("auto", (48, 96)) == "small_cnn"
    assert resolve_name("auto", (48, 97)) == "mobilenet_v3_small"


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_weight_decay_leaves_biases_and_normalization_alone(name):
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3), keras.layers.BatchNormalization()]
    )
    for variable in model.trainable_variables:
        variable.assign(keras.ops.ones_like(variable))
    optimizer = build_optimizer(name, 0.5)
    optimizer.build(model.trainable_variables)
    optimizer.learning_rate.assign(0.1)
    optimizer.apply([tf.zeros(v.shape) for v in model.trainable_variables])
    kernel, *others = model.trainable_variables
    assert float(kernel[0, 0]) == pytest.approx(0.95)  # 1 - 0.1 × 0.5
    for variable in others:
        assert float(variable[0]) == pytest.approx(1.0), variable.path


def test_the_schedule_warms_up_and_ends_at_zero():
    schedule = WarmupCosine(0.1, warmup=4, total=20)
    rates = [schedule.rate(step) for step in range(21)]
    assert rates[:4] == pytest.approx([0.025, 0.05, 0.075, 0.1])
    assert rates[4] == pytest.approx(0.1)
    assert rates[12] == pytest.approx(0.05)
    assert rates[20] == pytest.approx(0)
    assert all(a >= b for a, b in itertools.pairwise(rates[4:]))
    assert WarmupCosine(0.1, 0, 1).rate(0) == 0.1


@pytest.mark.parametrize(
    ("capabilities", "precision"),
    [
        ([(9, 0)], "mixed_bfloat16"),
        ([(8, 0), (9, 0)], "mixed_bfloat16"),
        ([(7, 5), (9, 0)], "mixed_float16"),
        ([(6, 1)], "float32"),
        ([(9, 0), None], "float32"),
        ([], "float32"),
    ],
)
def test_precision_and_xla_follow_the_device(capabilities, precision):
    names = tuple(f"GPU:{number}" for number in range(len(capabilities))) or ("CPU:0",)
    hardware = Hardware(names, tuple(capabilities))
    assert choose_precision("auto", hardware) == precision
    assert choose_precision("float32", hardware) == "float32"
    assert choose_xla("auto", hardware) == bool(capabilities)
    assert choose_xla("on", hardware) is True
    assert choose_xla("off", hardware) is False


def test_devices_that_are_here_are_found():
    assert find_hardware(["cpu:0"]).devices == ("CPU:0",)
    with pytest.raises(UsageError, match="named twice"):
        find_hardware(["CPU:0", "cpu:0"])


def test_a_broken_cluster_description_is_explained(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "worker1:2222")
    with pytest.raises(UsageError, match="TF_CONFIG must be JSON such as"):
        cluster_workers()
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {"chief": ["a:1"], "worker": ["b:1", "c:1"]}}')
    assert cluster_workers() == 3
    with pytest.raises(UsageError, match="devices cannot be chosen"):
        set_up(["CPU:0"])


IMAGES = np.random.default_rng(3).uniform(0, 255, (16, 20, 24, 1)).astype(np.float32)
TARGETS = np.eye(4, dtype=np.float32)[np.arange(16) % 4]


def augment(text, seed=(1, 2), images=IMAGES):
    layers = build_augmentation(parse_augment(text))
    out, targets = layers(tf.constant(images), tf.constant(TARGETS), tf.constant(seed))
    return out.numpy(), targets.numpy()


@pytest.mark.parametrize("name", sorted(STRENGTHS))
def test_each_augmentation_follows_its_seed(name):
    images, targets = augment(name)
    assert images.shape == IMAGES.shape
    assert not np.allclose(images, IMAGES)
    assert images.min() >= -1e-3
    assert images.max() <= 255.001
    np.testing.assert_allclose(targets.sum(axis=1), 1, rtol=1e-5)
    again, _ = augment(name)
    np.testing.assert_array_equal(images, again)
    other, _ = augment(name, seed=(1, 3))
    assert not np.allclose(images, other)


def test_a_sure_flip_is_a_mirror():
    images, targets = augment("flip=1")
    np.testing.assert_allclose(images, IMAGES[:, :, ::-1], atol=1e-2)
    np.testing.assert_array_equal(targets, TARGETS)


def test_flips_have_their_probability():
    many = np.tile(IMAGES[:1], (16, 1, 1, 1))
    flipped = 0
    for seed in range(40):
        images, _ = augment("flip=0.25", seed=(seed, 0), images=many)
        flipped += sum(not np.allclose(image, many[0], atol=1e-2) for image in images)
    assert 110 <= flipped <= 210  # of 640


def test_translation_moves_by_whole_sides_at_most():
    images = np.zeros((64, 21, 21, 1), np.float32)
    images[:, 10, 10] = 255
    layers = build_augmentation(parse_augment("translate=0.2"))
    moved, _ = layers(tf.constant(images), tf.zeros((64, 2)), tf.constant([0, 0]))
    where = [np.unravel_index(image.argmax(), image.shape)[:2] for image in moved.numpy()]
    shifts = np.array(where) - 10
    assert abs(shifts).max() in (3, 4, 5)
    assert (shifts < -1).any()
    assert (shifts > 1).any()


def test_rotation_keeps_the_centre_and_turns_the_rest():
    images = np.zeros((64, 21, 21, 1), np.float32)
    images[:, 10, 10:] = 255  # a ray to the right
    layers = build_augmentation(parse_augment("rotate=90"))
    turned, _ = layers(tf.constant(images), tf.zeros((64, 2)), tf.constant([0, 0]))
    turned = turned.numpy()
    assert turned[:, 10, 10].min() > 120
    assert (turned[:, 2, 10] > 100).any()  # some point up …
    assert (turned[:, 18, 10] > 100).any()  # … and some down


def test_erasing_fills_a_rectangle_with_gray():
    images, _ = augment("erase=1")
    changed = (images != IMAGES)[..., 0]
    share = changed.mean(axis=(1, 2))
    assert share.max() <= 0.25
    assert (share > 0.005).mean() > 0.8
    assert (images[changed] == 127.5).all()


def test_mixup_mixes_targets_like_images():
    flat = np.tile(np.arange(16, dtype=np.float32)[:, None, None, None], (1, 4, 4, 1))
    layers = build_augmentation(parse_augment("mixup=1"))
    images, targets = layers(tf.constant(flat), tf.constant(TARGETS), tf.constant([5, 5]))
    for number in range(1, 16):
        share = number - float(images[number, 0, 0, 0])  # of the image before
        assert 0 <= share <= 0.5
        want = (1 - share) * TARGETS[number] + share * TARGETS[number - 1]
        np.testing.assert_allclose(targets[number], want, atol=1e-4)


def test_strengths_are_parsed():
    assert parse_augment("none") == {}
    assert parse_augment("flip, rotate=15") == {"flip": 0.5, "rotate": 15.0}
    assert parse_augment("rotate=0") == {}
    assert set(parse_augment("auto")) == {"flip", "rotate", "translate", "zoom", "contrast"}
    for text in ("rotate=200", "rotate=x", "flip=-1", "shear", ""):
        with pytest.raises(UsageError, match="augment"):
            parse_augment(text)
