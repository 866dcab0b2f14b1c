import io
import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from beam_pipeline.errors import OutputError
from tests import fakes
from tests.training import runs
from tests.training.datasets import face
from training.export import export
from training.predict import Predictor
from training.read_options import ReadOptions
from training.shards import open_dataset
from training.split_reader import SplitReader
from training.trained import load_best

NAMES = ("angry", "happy", "sad")


@pytest.fixture(scope="module")
def exported(trained, tmp_path_factory):
    return export(str(trained[1]), str(tmp_path_factory.mktemp("export") / "model"))


def picture(label: int, seed: int = 5) -> np.ndarray:
    """A colour picture [60, 80, 3] that shows `label`, larger than the model's input."""
    small = face(label, seed, (24, 24), 1)[..., 0]
    return np.asarray(Image.fromarray(small).resize((80, 60)).convert("RGB"))


def test_the_signature_answers_as_evaluation_does(trained, exported):
    data, workdir = trained
    card, model = load_best(str(workdir))
    info = open_dataset(str(data))
    reader = SplitReader(
        info, "test", card.target, batch_size=30, options=ReadOptions(cache="none")
    )
    (batch,) = reader.stored_batches()
    want = tf.nn.softmax(model(tf.cast(batch["image"], tf.float32), training=False)).numpy()
    encoded = [
        tf.train.Example.FromString(record.numpy()).features.feature["image"].bytes_list.value[0]
        for record in tf.data.TFRecordDataset(sorted(map(str, data.glob("faces-test*"))))
    ]
    signature = tf.saved_model.load(f"{exported}/saved_model").signatures["serving_default"]
    got = signature(image_bytes=tf.constant(encoded))
    np.testing.assert_allclose(got["probabilities"].numpy(), want, atol=1e-5)
    assert got["labels"].numpy().tolist() == [b"angry", b"happy", b"sad"]
    best = want.argmax(axis=1)
    assert [NAMES[i].encode() for i in best] == got["label"].numpy().tolist()
    np.testing.assert_allclose(got["probability"].numpy(), want.max(axis=1), atol=1e-5)


def test_a_model_of_cut_images_answers_as_evaluation_does(trained, tmp_path):
    """It looks at the middle of an image of any size: the part that it was trained on."""
    data, _ = trained
    runs.train(data, tmp_path / "run", epochs=1, image_size=(20, 18), resize_mode="cut",
               random_crop=True)  # fmt: skip
    output = export(str(tmp_path / "run"), str(tmp_path / "model"))
    card, model = load_best(str(tmp_path / "run"))
    assert card.kept == (20 / 24, 18 / 24)
    info = open_dataset(str(data))
    reader = SplitReader(info, "test", card.target, batch_size=30)
    (batch,) = reader.stored_batches()
    want = tf.nn.softmax(model(tf.cast(batch["image"], tf.float32), training=False)).numpy()
    encoded, pixels = [], []
    for record in tf.data.TFRecordDataset(sorted(map(str, data.glob("faces-test*")))):
        feature = tf.train.Example.FromString(record.numpy()).features.feature
        encoded.append(feature["image"].bytes_list.value[0])
        pixels.append(tf.io.decode_image(encoded[-1], 1).numpy().astype(np.float32))
    signature = tf.saved_model.load(f"{output}/saved_model").signatures["serving_default"]
    got = signature(image_bytes=tf.constant(encoded))["probabilities"].numpy()
    np.testing.assert_allclose(got, want, atol=1e-5)
    of_pixels = keras.saving.load_model(f"{output}/model.keras")(np.stack(pixels))
    np.testing.assert_allclose(of_pixels["probabilities"].numpy(), want, atol=1e-4)
    # Twice as large, and the same part of it is looked at.
    large = [
        np.asarray(Image.fromarray(p[..., 0].astype(np.uint8)).resize((48, 48))) for p in pixels
    ]
    got = signature(image_bytes=tf.constant([fakes.encode(image, "PNG") for image in large]))
    np.testing.assert_allclose(got["probabilities"].numpy(), want, atol=0.1)


def test_the_signature_takes_any_size_and_format(exported):
    signature = tf.saved_model.load(f"{exported}/saved_model").signatures["serving_default"]
    images = [fakes.encode(picture(1), "JPEG"), fakes.encode(picture(2), "PNG")]
    images.append(fakes.encode(picture(0)[:, :, 0], "PNG"))
    got = signature(image_bytes=tf.constant(images))
    assert got["label"].numpy().tolist() == [b"happy", b"sad", b"angry"]


def test_the_keras_file_loads_without_this_package(exported, tmp_path):
    pixels = np.stack([picture(label)[..., :1] for label in range(3)]).astype(np.float32)
    np.save(tmp_path / "pixels.npy", pixels)
    program = (
        "import sys, json, numpy as np, keras\n"
        f"model = keras.saving.load_model({exported + '/model.keras'!r})\n"
        f"answer = model(np.load({str(tmp_path / 'pixels.npy')!r}))\n"
        "assert not {'training', 'beam_pipeline'} & set(sys.modules)\n"
        "print(json.dumps([[n.decode() for n in answer['label'].numpy().tolist()],"
        " answer['probabilities'].numpy().tolist()]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    names, probabilities = json.loads(done.stdout.splitlines()[-1])
    assert names == list(NAMES)
    signature = tf.saved_model.load(f"{exported}/saved_model").signatures["serving_default"]
    encoded = [fakes.encode(image[..., 0].astype(np.uint8), "PNG") for image in pixels]
    served = signature(image_bytes=tf.constant(encoded))["probabilities"].numpy()
    # Keras resizes floats, the signature rounds pixels to bytes: nearly the same.
    np.testing.assert_allclose(probabilities, served, atol=0.01)


def test_labels_and_card_lie_beside_the_model(exported):
    with open(f"{exported}/label.labels.txt") as stream:
        assert stream.read() == "angry\nhappy\nsad\n"
    with open(f"{exported}/model.json") as stream:
        assert json.load(stream)["input_shape"] == [24, 24, 1]


def test_nothing_is_overwritten_unasked(trained, tmp_path):
    (tmp_path / "here").mkdir()
    export(str(trained[1]), str(tmp_path / "here"))  # an empty folder is fine
    with pytest.raises(OutputError, match="exists and is not empty; choose another, or --over"):
        export(str(trained[1]), str(tmp_path / "here"))
    export(str(trained[1]), str(tmp_path / "here"), overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here"]


@pytest.mark.parametrize("source", ["export", "saved_model", "workdir"])
def test_predict_takes_what_export_and_train_wrote(trained, exported, tmp_path, source):
    model = {"export": exported, "saved_model": f"{exported}/saved_model"}
    predictor = Predictor(model.get(source, str(trained[1])))
    paths = []
    for label in range(3):
        path = tmp_path / f"{label}.png"
        path.write_bytes(fakes.encode(picture(label), "PNG"))
        paths.append(str(path))
    answers = predictor.predict(paths)
    assert [answer.label for answer in answers] == list(NAMES)
    for answer in answers:
        chances = list(answer.probabilities.values())
        assert chances == sorted(chances, reverse=True)
        assert sum(chances) == pytest.approx(1, abs=1e-5)


def test_predict_sees_rotated_and_cmyk_photos_as_convert_does(exported, tmp_path):
    upright = Image.fromarray(picture(2))
    plain, turned, ink = io.BytesIO(), io.BytesIO(), io.BytesIO()
    upright.save(plain, "JPEG", quality=95)
    exif = Image.Exif()
    exif[0x0112] = 3  # stored upside down, to be shown upright
    upright.rotate(180).save(turned, "JPEG", quality=95, exif=exif)
    upright.convert("CMYK").save(ink, "JPEG", quality=95)
    paths = []
    for name, stream in (("plain", plain), ("turned", turned), ("ink", ink)):
        (tmp_path / f"{name}.jpg").write_bytes(stream.getvalue())
        paths.append(str(tmp_path / f"{name}.jpg"))
    answers = Predictor(exported).predict(paths)
    assert [answer.label for answer in answers] == ["sad"] * 3
    want = answers[0].probabilities
    for answer in answers[1:]:
        assert answer.probabilities == pytest.approx(want, abs=0.05)
    # Turned without the note in EXIF, the same pixels mean another class.
    (tmp_path / "upside_down.png").write_bytes(fakes.encode(picture(2)[::-1, ::-1], "PNG"))
    (other,) = Predictor(exported).predict([str(tmp_path / "upside_down.png")])
    assert other.label == "angry"


def test_predict_refuses_what_is_no_image_and_goes_on(exported, tmp_path):
    (tmp_path / "good.png").write_bytes(fakes.encode(picture(0), "PNG"))
    (tmp_path / "text.jpg").write_text("hello")
    (tmp_path / "cut.jpg").write_bytes(fakes.encode(picture(0), "JPEG")[:500])
    names = ["text.jpg", "good.png", "cut.jpg", "missing.jpg", "good.png"]
    answers = Predictor(exported).predict([str(tmp_path / name) for name in names])
    assert [answer.label for answer in answers] == [None, "angry", None, None, "angry"]
    assert "not_an_image" in answers[0].refused
    assert "truncated" in answers[2].refused
    assert "No such file" in answers[3].refused


def test_what_holds_no_model_is_named(tmp_path):
    with pytest.raises(OutputError, match="holds no model"):
        Predictor(str(tmp_path))
    module = tf.Module()
    module.call = tf.function(lambda x: {"y": x}, input_signature=[tf.TensorSpec([], tf.float32)])
    tf.saved_model.save(module, str(tmp_path), signatures=module.call)
    with pytest.raises(OutputError, match="a SavedModel, but not of imagebeam export"):
        Predictor(str(tmp_path))
    assert keras.__version__
