"""imagebeam export: a trained model with labels and preprocessing inside, ready to serve."""

from __future__ import annotations

import os
import shutil
import uuid

import keras
import tensorflow as tf
from keras import layers

from beam_pipeline.dataset_info import labels_text
from beam_pipeline.errors import OutputError
from training.decode import encoded_decoder
from training.train_log import write_json
from training.trained import ModelCard, load_best

SAVED_MODEL = "saved_model"
KERAS_FILE = "model.keras"
LABELS_FILE = "label.labels.txt"


def export(workdir: str, output: str, *, overwrite: bool = False) -> str:
    """Exports the best weights of a run; returns `output`.

    Writes `saved_model/` (signature serving_default: `image_bytes` string [N], JPEG or PNG
    files of any size → `label` string [N], `probability` float32 [N], `probabilities`
    float32 [N, classes], `labels` string [classes]), `model.keras` (float pixels
    [N, any height, any width, channels], 0 to 255 → `probabilities` and `label`; needs
    nothing but Keras to load), `label.labels.txt` and `model.json`.

    Raises:
      OutputError: `workdir` holds no trained model, or `output` exists or cannot be written.
    """
    card, model = load_best(workdir)
    if (
        os.path.exists(output)
        and not overwrite
        and (not os.path.isdir(output) or os.listdir(output))
    ):
        raise OutputError(f"{output} exists and is not empty; choose another, or --overwrite")
    mine = f"{output.rstrip('/')}.{uuid.uuid4().hex[:8]}.part"
    try:
        os.makedirs(mine)
        pixels_model(card, model).save(os.path.join(mine, KERAS_FILE))
        tf.saved_model.save(
            module := ServedModel(card, model),
            os.path.join(mine, SAVED_MODEL),
            signatures={"serving_default": module.classify},
        )
        with open(os.path.join(mine, LABELS_FILE), "w", encoding="utf-8") as stream:
            stream.write(labels_text(card.labels))
        write_json(os.path.join(mine, ModelCard.FILE), card.to_json())
        if os.path.isdir(output):
            shutil.rmtree(output)
        os.rename(mine, output)
    except OSError as error:
        raise OutputError(f"cannot write {output}: {error}") from error
    finally:
        shutil.rmtree(mine, ignore_errors=True)
    return output


class ServedModel(tf.Module):
    """Encoded images in, names and probabilities out; decodes exactly as evaluation does."""

    def __init__(self, card: ModelCard, model: keras.Model):
        super().__init__()
        self._model = model
        self._target = card.target
        self._decode = encoded_decoder(card.target)
        self._labels = tf.constant(card.labels)

    @tf.function(
        autograph=False, input_signature=[tf.TensorSpec([None], tf.string, name="image_bytes")]
    )
    def classify(self, image_bytes: tf.Tensor) -> dict[str, tf.Tensor]:
        """The signature; see export()."""
        seed = tf.zeros([2], tf.int64)  # nothing is random here
        images = tf.map_fn(
            lambda data: self._decode({"image": data}, seed),
            image_bytes,
            fn_output_signature=tf.TensorSpec(self._target.shape, tf.uint8),
        )
        logits = self._model(tf.cast(images, tf.float32), training=False)
        probabilities = tf.nn.softmax(logits)
        return {
            "label": tf.gather(self._labels, tf.argmax(probabilities, axis=-1)),
            "probability": tf.reduce_max(probabilities, axis=-1),
            "probabilities": probabilities,
            "labels": tf.identity(self._labels),
        }


def pixels_model(card: ModelCard, model: keras.Model) -> keras.Model:
    """A Keras model from pixels of any size to {"probabilities", "label"}."""
    height, width, channels = card.input_shape
    inputs = keras.Input((None, None, channels), name="pixels")
    resized = [round(side / part) for side, part in zip((height, width), card.kept, strict=True)]
    # Averages when shrinking, as the decoder does where more than half of a side goes.
    x = layers.Resizing(*resized, crop_to_aspect_ratio=card.resize_mode == "crop", antialias=True)(
        inputs
    )
    if card.resize_mode == "cut":
        x = layers.CenterCrop(height, width)(x)
    # Told outright: Resizing is by default in training mode, and would take the rest along.
    logits = model(x, training=False)
    probabilities = layers.Softmax(dtype="float32", name="probabilities")(logits)
    best = keras.ops.argmax(probabilities, axis=-1)
    names = layers.StringLookup(
        vocabulary=list(card.labels), num_oov_indices=0, invert=True, name="label"
    )
    return keras.Model(
        inputs, {"probabilities": probabilities, "label": names(best)}, name=f"{card.model}_pixels"
    )
