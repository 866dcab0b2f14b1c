"""One training step and one evaluation step, on one device or many."""

from __future__ import annotations

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from training import checkpoints
from training.augment import build_augmentation, parse_augment
from training.config import TrainConfig
from training.models import ModelSpec, build_model
from training.optimizers import build_optimizer

Batch = dict[str, tf.Tensor]


class Learner:
    """The model, its averaged copy, the optimizer, and what a step does to them.

    Args:
      config: of the run.
      model_name: a resolved name of the registry.
      spec: what the model must fit.
      class_weights: a factor for the loss of each class, or None.
      strategy: of the run; the learner is built in its scope.
      xla: compile the computation of gradients.

    Attributes:
      model: as it is trained.
      evaluated: the model whose weights count: the averaged copy, or `model` itself.
    """

    def __init__(
        self,
        config: TrainConfig,
        model_name: str,
        spec: ModelSpec,
        class_weights: Sequence[float] | None,
        strategy: tf.distribute.Strategy,
        xla: bool,
    ):
        self._config = config
        self._classes = spec.classes
        self._strategy = strategy
        self._class_weights = None if class_weights is None else tf.constant(class_weights)
        self._augmentation = build_augmentation(parse_augment(config.augment))
        self.model = build_model(model_name, spec)
        self.evaluated = self.model
        if config.ema:
            self.evaluated = build_model(model_name, spec)
            self.evaluated.set_weights(self.model.get_weights())
        self.optimizer = build_optimizer(config.optimizer, config.weight_decay)
        self.optimizer.build(self.model.trainable_variables)
        self._gradients = tf.function(self._compute_gradients, autograph=False, jit_compile=xla)
        self._logits = tf.function(
            lambda images: self.evaluated(images, training=False),
            autograph=False,
            jit_compile=xla,
        )

    @property
    def variables(self) -> list[keras.Variable]:
        """Everything that a step changes, dropout's random state included, in a fixed order."""
        averaged = [] if self.evaluated is self.model else self.evaluated.variables
        return [*self.model.variables, *self.optimizer.variables, *averaged]

    def load(self, arrays: Sequence[np.ndarray], path: str) -> None:
        """Sets all variables to what a checkpoint holds."""
        checkpoints.assign(self.variables, arrays, path)

    @tf.function(autograph=False)
    def train_step(self, batch: Batch, step: tf.Tensor, rate: tf.Tensor) -> tf.Tensor:
        """Trains on one global batch.

        Args:
          batch: `image`, `label` and `weight`, as input_pipeline gives them (per replica).
          step: int64 [], the number of the step in the run: with the run's seed it
            decides the augmentation.
          rate: float32 [], the learning rate.

        Returns:
          float32 [3]: summed loss, correct answers, examples.
        """
        self.optimizer.learning_rate.assign(rate)
        sums = self._strategy.run(self._train_replica, (batch, step))
        sums = self._strategy.reduce(tf.distribute.ReduceOp.SUM, sums, axis=None)
        if self.evaluated is not self.model:
            self._average(tf.cast(step, tf.float32))
        return sums

    def _train_replica(self, batch: Batch, step: tf.Tensor) -> tf.Tensor:
        context = tf.distribute.get_replica_context()
        replica = tf.cast(context.replica_id_in_sync_group, tf.int64)
        place = step * self._strategy.num_replicas_in_sync + replica
        seed = tf.cast(tf.stack([tf.constant(self._config.seed, tf.int64), place]), tf.int32)
        label, weight = batch["label"], batch["weight"]
        targets = tf.one_hot(label, self._classes)
        if self._config.label_smoothing:
            smoothing = self._config.label_smoothing
            targets = targets * (1 - smoothing) + smoothing / self._classes
        images = tf.cast(batch["image"], tf.float32)
        images, targets = self._augmentation(images, targets, seed)
        loss_weight = weight
        if self._class_weights is not None:
            loss_weight = weight * tf.linalg.matvec(targets, self._class_weights)
        # Over all replicas: the mean must not depend on how examples are dealt.
        examples = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(weight))
        loss, logits, gradients = self._gradients(images, targets, loss_weight / examples)
        gradients = self._clip(gradients, context)
        self.optimizer.apply(gradients, self.model.trainable_variables)
        right = tf.cast(tf.argmax(logits, axis=-1) == label, tf.float32)
        return tf.stack([loss * examples, tf.reduce_sum(right * weight), tf.reduce_sum(weight)])

    def _compute_gradients(
        self, images: tf.Tensor, targets: tf.Tensor, weight: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor, list[tf.Tensor]]:
        with tf.GradientTape() as tape:
            logits = self.model(images, training=True)
            losses = tf.nn.softmax_cross_entropy_with_logits(targets, logits)
            loss = tf.reduce_sum(losses * weight)
            scaled = self.optimizer.scale_loss(loss)
        return loss, logits, tape.gradient(scaled, self.model.trainable_variables)

    def _clip(self, gradients: list[tf.Tensor], context: tf.distribute.ReplicaContext) -> list:
        if not self._config.clip_norm:
            return gradients
        limit = self.optimizer.scale_loss(tf.constant(self._config.clip_norm))
        replicas = self._strategy.num_replicas_in_sync
        if replicas == 1:
            return tf.clip_by_global_norm(gradients, limit)[0]
        # The norm that counts is that of the sum over replicas. The optimizer will add the
        # replicas' gradients up: each gives its even part of the clipped sum.
        total = context.all_reduce(tf.distribute.ReduceOp.SUM, gradients)
        clipped, _ = tf.clip_by_global_norm(total, limit)
        return [gradient / replicas for gradient in clipped]

    def _average(self, step: tf.Tensor) -> None:
        """Moves the averaged weights: slowly, but fast in the first steps of a run."""
        decay = tf.minimum(self._config.ema, (1 + step) / (10 + step))
        trained = {id(variable) for variable in self.model.trainable_variables}
        for average, variable in zip(self.evaluated.weights, self.model.weights, strict=True):
            if id(variable) in trained:
                self._strategy.extended.update(
                    average.value,
                    lambda a, v: a.assign_sub((a - v) * tf.cast(1 - decay, a.dtype)),
                    args=(variable.value,),
                )
            else:  # moving statistics are averages already
                self._strategy.extended.update(
                    average.value, lambda a, v: a.assign(v), args=(variable.value,)
                )

    @tf.function(autograph=False)
    def evaluation_step(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        """Scores one global batch with the evaluated weights.

        Returns:
          float32 []: summed loss (without smoothing); float32 [classes, classes]:
          examples by true class (row) and answer (column).
        """
        loss, confusion = self._strategy.run(self._evaluate_replica, (batch,))
        add = tf.distribute.ReduceOp.SUM
        return (
            self._strategy.reduce(add, loss, axis=None),
            self._strategy.reduce(add, confusion, axis=None),
        )

    def _evaluate_replica(self, batch: Batch) -> tuple[tf.Tensor, tf.Tensor]:
        label, weight = batch["label"], batch["weight"]
        logits = self._logits(tf.cast(batch["image"], tf.float32))
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(label, logits)
        answers = tf.argmax(logits, axis=-1)
        confusion = tf.math.confusion_matrix(
            label, answers, self._classes, weights=weight, dtype=tf.float32
        )
        return tf.reduce_sum(losses * weight), confusion
