"""Local training of many clients at once: tensors stacked on a leading axis, through ``torch.func``.

Every verb does for each client exactly what :class:`SequentialClient` does for one, with the same batches and the same
masks. Clients of unequal size are padded; a client that has fewer batches keeps its weights and its momentum from the
step on at which it would have stopped alone. Nothing of a round waits for the device that computes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.func import vmap

from commonground.algorithms import Batch, Output, Tensors
from commonground.algorithms.base import Loss, Penalty
from commonground.data.inputs import Inputs, chunks, each, first_of, select, to_device
from commonground.engine.clients.base import LocalTraining, Phase, Pool
from commonground.engine.clients.batches import CohortSchedule, knowing_rows, real_rows
from commonground.engine.clients.captured import refuse_stacked
from commonground.engine.clients.checked import checked_loss, checked_penalty
from commonground.engine.clients.common import Common, plain
from commonground.engine.clients.draws import PhaseDraws
from commonground.engine.clients.example_gradients import ExampleGradients
from commonground.engine.clients.linear_head import fit_linear_heads
from commonground.engine.clients.optimizers import Rates, StackedOptimizer, gradients_of, keep_inactive
from commonground.engine.clients.stacking import call_stacked, names_inside, stacking_of
from commonground.engine.clients.step_graphs import step_graphs
from commonground.engine.clients.turns import Turns
from commonground.engine.option_checks import check_own_steps
from commonground.engine.setup import Setup
from commonground.errors import ModelError
from commonground.models import ModelCut, call_with
from commonground.privacy import is_private_part, noisy_means

__all__ = ["StackedClients"]


class StackedClients(LocalTraining):
    """The verbs for a stacked cohort.

    A tensor is kept once as long as it is common to all clients (what the server sent) and gets its leading axis when
    it is first trained or set.

    Args:
        setup: data, model and algorithm.
    """

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._stacking = stacking_of(setup)
        self._graphs = step_graphs(setup)

    def begin(
        self,
        round: int,
        clients: Sequence[int],
        shared: Tensors,
        personal: Tensors,
        extra: Sequence[Tensors] = (),
    ) -> None:
        """Take up a round of several clients.

        Args:
            round: 1-based round.
            clients: their numbers.
            shared: tensors received from the server, without a leading axis.
            personal: the clients' own tensors, stacked in the order of ``clients``.
            extra: what the server sent to each client alone.
        """
        self._take_up(round, clients, clients)
        shared = {name: value for name, value in shared.items() if not is_private_part(name)}  # no business of a method
        shared, personal = self.setup.moved(shared), self.setup.moved(personal)
        own = {name: torch.stack([e[name] for e in extra]) for name in (extra[0] if extra else {})}
        common = {name: value.as_subclass(Common) for name, value in shared.items()}
        self.received, self._received_stacked = self.setup.in_order({**common, **own}), set(own)
        names = self.setup.initial
        self.state = {name: personal[name].clone() for name in self.setup.state_names}
        mine = {name: value.clone() for name, value in personal.items() if name in names}
        mine |= {name: value.clone() for name, value in own.items() if name in names}
        self.values: Tensors = {name: value for name, value in shared.items() if name in names} | mine
        self._stacked = set(mine)
        self.class_counts = self._class_counts()
        # Shapes of the stacked tensors that the method has.
        self._given = {self._counts.shape, *(value.shape for value in (*self.state.values(), *own.values()))}
        self._turns = Turns(len(clients))
        self.loss: Tensor | None = None
        for name in ("steps", "_padding"):  # of the round before
            self.__dict__.pop(name, None)

    # -- tensors ------------------------------------------------------------------------------------------------

    def stack(self, names: Sequence[str]) -> None:
        """Give these tensors their leading axis, if they have none yet."""
        for name in names:
            if name not in self._stacked:
                value = self.values[name]
                self.values[name] = value.expand(len(self.keys), *value.shape).clone()
                self._stacked.add(name)

    def get(self, group: str | Sequence[str]) -> Tensors:
        """See :meth:`commonground.algorithms.Client.get`; stacked."""
        names = self.setup.groups.names(group)
        self.stack(names)
        return self._giving({name: self.values[name].detach().clone() for name in names})

    def whole_models(self) -> Tensors:
        """All tensors of the clients' models, stacked, with BatchNorm statistics that clients keep to themselves."""
        names = self.setup.groups.whole("all")
        self.stack(names)
        return {name: self.values[name].detach().clone() for name in names}

    def _giving(self, tensors: Tensors) -> Tensors:
        self._given |= {value.shape for value in tensors.values()}
        return tensors

    def set(self, tensors: Tensors) -> None:
        """See :meth:`commonground.algorithms.Client.set`."""
        self.stack(list(tensors))
        for name, value in tensors.items():
            old = self.values[name]
            new = plain(value).to(old.dtype).expand_as(old)
            self.values[name] = keep_inactive(self._active, old, new).clone()

    def send(self, group: str | Sequence[str] | Tensors) -> Tensors:
        """See :meth:`commonground.algorithms.Client.send`; what is common to all gets its leading axis."""
        if not isinstance(group, dict):
            return self.get(group)
        return {name: self._of_all(name, value) for name, value in group.items()}

    def keep(self, state: Tensors) -> None:
        """See :meth:`commonground.algorithms.Client.keep`."""
        for name, value in self._kept(state):
            old = self.state[name]
            self.state[name] = keep_inactive(self._active, old, plain(value).to(old.dtype)).clone()

    def scale(self, tensors: Tensors, factor: Tensor | float) -> Tensors:
        """See :meth:`commonground.algorithms.Client.scale`."""
        if not isinstance(factor, Tensor) or factor.ndim == 0:
            return {name: value * factor for name, value in tensors.items()}
        return {
            # As a single number does, the factor takes the tensor's number type.
            name: value
            * factor.to(value.dtype if value.is_floating_point() else factor.dtype).view(
                -1, *[1] * self._rank(name, value)
            )
            for name, value in tensors.items()
        }

    def dot(self, one: Tensors, other: Tensors) -> Tensor:
        """See :meth:`commonground.algorithms.Client.dot`."""
        products = [self._with_axis(name, value) * self._with_axis(name, other[name]) for name, value in one.items()]
        sums = torch.stack([product.reshape(len(self.keys), -1).sum(1) for product in products]).sum(0)
        return self._giving({"dot": sums})["dot"]

    def _rank(self, name: str, value: Tensor) -> int:
        """Dimensions of one client's tensor. Under a name of the method's own, what is known to be common and what has
        no place for a leading axis has none; the rest is stacked.
        """
        declared = self.setup.declared.get(name)
        if declared is not None:
            return declared.ndim
        alone = isinstance(value, Common) or value.shape[:1] != (len(self.keys),)
        return value.ndim if alone else value.ndim - 1

    def _of_all(self, name: str, value: Tensor) -> Tensor:
        """The tensor with its leading axis, also where it is common to all."""
        whole = self._with_axis(name, value)
        return whole if whole.ndim == value.ndim else whole.clone()

    def _with_axis(self, name: str, value: Tensor) -> Tensor:
        whole = plain(value)
        return whole.expand(len(self.keys), *value.shape) if value.ndim == self._rank(name, value) else whole

    def _own(self, values: Tensors) -> tuple[Tensors, Tensors]:
        """What loss and penalty see of the client: stacked entries, and common ones."""
        stacked = {name: value for name, value in values.items() if name in self._stacked}
        common = {name: value for name, value in values.items() if name not in self._stacked}
        return {**stacked, **self.state, **self._counted()}, common

    def step(self, direction: Tensors, lr: float | None = None) -> None:
        """See :meth:`commonground.algorithms.Client.step`."""
        check_own_steps(self.setup.config, self.setup.algorithm)
        rate = self.lr if lr is None else lr
        self.stack(list(direction))
        self.set({name: self.values[name] - rate * value for name, value in direction.items()})

    # -- training -----------------------------------------------------------------------------------------------

    def _look_at(self, loss: Loss | None, penalty: Penalty | None) -> None:
        for what, function in (("loss", loss), ("penalty", penalty)):
            refuse_stacked(what, function, len(self.keys), self.setup.declared, self._given, self._steps)

    @property
    def _steps(self) -> Tensor | None:
        """``steps``, if anything was trained in this round."""
        return self.__dict__.get("steps")

    def _count_steps(self, schedule: CohortSchedule) -> None:
        before = schedule.own_steps if self._steps is None else self._steps
        self.steps = keep_inactive(self._active, before, schedule.own_steps)
        self._mark_lone((schedule.counts == 1).any(1) & np.array(self._present()))

    def _mark_lone(self, alone: npt.NDArray[np.bool_]) -> None:
        """Remember a client that has a batch of a single sample, of which BatchNorm has no statistics."""
        self._stacking.lone = self.keys[int(alone.argmax())] if alone.any() else None

    @contextmanager
    def _training(self, names: Sequence[str], group: str | Sequence[str]) -> Iterator[None]:
        touched = [*names, *self._train_mode(names, group)]
        self.stack(touched)
        if self._active is None:
            yield
            return
        before, loss = {name: self.values[name].clone() for name in touched}, self.loss
        yield
        self._leave_alone(before)
        self.loss = self._merged_loss(loss, self.loss)

    def _leave_alone(self, before: Tensors) -> None:
        """Give the clients that have no batch their tensors back."""
        for name, old in before.items():
            self.values[name] = keep_inactive(self._active, old, self.values[name])

    def _merged_loss(self, before: Tensor | None, now: Tensor | None) -> Tensor | None:
        """The last loss of each client; of one that has none, NaN."""
        if now is None or self._active is None:
            return now
        old = torch.full_like(now, float("nan")) if before is None else before
        return keep_inactive(self._active, old.detach(), now.detach())

    @property
    def _active(self) -> Tensor | None:
        return self._turns.active

    def _present(self) -> list[bool]:
        return [bool(there) for there in self._turns.there]

    def _only(self, schedule: CohortSchedule, step: int) -> AbstractContextManager[None]:
        return self._turns.taken(schedule.active(step), schedule.counts[:, step] > 0)

    def _pool(self, split: ModelCut | None, names: Sequence[str]) -> Pool:
        outside = () if split is None else [name for name in self.values if name not in split.rest_names]
        if split is not None and split.captured and any(name in self._stacked for name in outside):
            split = None
        rows, y = self._rows()
        if split is None:
            return Pool(self.model, names_inside(self.model, self.values), rows, y, self._starts())
        padded = self._features(split)
        starts = torch.arange(len(self.keys), device=self.device).view(-1, 1) * padded.shape[1]
        labels = self._pad({"y": y})["y"].flatten(0, 1)
        inside = {name: inner for name, inner in split.rest_names.items() if name in self.values}  # not its constants
        return Pool(split.rest, inside, {"x": padded.flatten(0, 1)}, labels, starts, split)

    def _batch(self, pool: Pool, schedule: CohortSchedule, draws: PhaseDraws, step: int) -> Batch:
        index = at = schedule.places[:, step] + pool.starts
        if (home := first_of(pool.rows).device) != self.device:
            at = schedule.where(home)[:, step].clamp(min=0) + self._host_starts()
        rows = select(pool.rows, at)
        if pool.split is None:
            rows = self.setup.inputs.arrange(each(lambda x: draws.change(x, step), rows))
        return Batch(rows, pool.labels[index], schedule.weight(step), draws.masks(step))

    def _of_batch(self, reference: Tensor, schedule: CohortSchedule, step: int) -> Tensor:
        clients = torch.arange(len(self.keys), device=self.device).unsqueeze(1)
        return reference[clients, schedule.places[:, step]]

    def _optimizer(self, names: Sequence[str], rates: Rates) -> StackedOptimizer:
        return StackedOptimizer(self.values, names, rates)

    def _batch_losses(
        self,
        module: nn.Module,
        names: Mapping[str, str],
        leaves: Tensors,
        batch: Batch,
        loss: Loss | None,
        reference: Tensor | None = None,
    ) -> Tensor:
        """[C] mean loss of each client's batch (0 where it has none)."""
        values, setup = {**self.values, **leaves}, self.setup
        with setup.autocast():
            output, features = self._stacking.run(module, names, values, self._stacked, batch, loss is not None)
        output = setup.wide(output)
        clients, rows = batch.weight.shape
        if loss is None:
            single = self._rows_losses(output.flatten(0, 1), batch.y.flatten(0, 1), batch).view(clients, rows)
        else:
            own, common = self._own(values)
            given = {} if reference is None else {"reference": reference}
            seen = None if features is None else setup.wide(features)

            def of_one(z: Tensor, f: Tensor | None, y: Tensor, o: Tensors, w: Tensor, g: Tensors, a: Tensors) -> Tensor:
                with self._as_one(o, common, a):
                    made = loss(Output(z, f, {**common, **o}, w, **g), y)  # type: ignore[arg-type]
                return checked_loss(made, rows, clients)

            single = vmap(of_one)(output, seen, batch.y, own, batch.weight, given, self._alone())
        return (single * batch.weight).sum(1) / batch.weight.sum(1).clamp(min=1)

    def _rows_losses(self, output: Tensor, y: Tensor, batch: Batch) -> Tensor:
        """The objective's losses of all clients' rows; a user's function is not given padding, of which it may have no
        finite loss.
        """
        if self.task.own is None:
            return self.task.loss(output, y)
        there = to_device(real_rows(batch.weight), self.device)
        losses = self.task.loss(output[there], y[there])
        return losses.new_zeros(len(output)).index_copy(0, there, losses)

    def _clipped_sums(self, examples: ExampleGradients, leaves: Tensors, batch: Batch) -> tuple[Tensors, Tensor]:
        inside = names_inside(self.model, self.values)
        rest = {name: self.values[name] for name in inside if name not in leaves}
        own = {name: value for name, value in rest.items() if name in self._stacked}
        common = {name: value for name, value in rest.items() if name not in self._stacked}
        return examples.of_each({name: leaf.detach() for name, leaf in leaves.items()}, batch, own, common)

    def _with_noise(self, sums: Tensors, schedule: CohortSchedule, step: int, std: float) -> Tensors:
        each = [{name: value[place] for name, value in sums.items()} for place in range(len(self.keys))]
        drawn = self._step_noise(each, step)
        return noisy_means(sums, torch.stack(drawn), std, schedule.full)

    def _alone(self) -> Tensors:
        """What else a loss or penalty may ask the client for and is stacked: what the server sent to each alone, and
        under an empty name the steps.
        """
        steps = {} if self._steps is None else {"": self._steps}
        return {name: self.received[name] for name in self._received_stacked} | steps

    @contextmanager
    def _as_one(self, own: Tensors, common: Tensors, alone: Tensors) -> Iterator[None]:
        """While open, a loss or penalty that asks the client itself (``client.get``, ``client.state``,
        ``client.received``, ``client.steps``) meets one.
        """
        kept, steps = (self.values, self._stacked, self.state, self._counts, self.received), self._steps
        self.received = {**self.received, **{name: value for name, value in alone.items() if name}}
        if steps is not None:
            self.steps = alone[""]
        values = {name: value for name, value in {**common, **own}.items() if name in self.values}
        self.values, self._stacked = values, set(values)
        self.state = {name: own[name] for name in self.state}
        self._counts = own.get("class_counts", self._counts)
        try:
            yield
        finally:
            self.values, self._stacked, self.state, self._counts, self.received = kept
            if steps is not None:
                self.steps = steps

    def _values(self) -> Tensors:
        return self.values

    def _penalties(self, penalty: Penalty, leaves: Tensors) -> Tensor:
        own, common = self._own({**self.values, **leaves})

        def of_one(o: Tensors, a: Tensors) -> Tensor:
            with self._as_one(o, common, a):
                given = penalty({**common, **o}, self.received)
                return checked_penalty(given, self.dtype, self.device, len(self.keys))

        return vmap(of_one)(own, self._alone())

    def _record(self, losses: Sequence[Tensor], schedule: CohortSchedule) -> None:
        recorded = schedule.recorded()
        total = torch.zeros(len(self.keys), dtype=self.dtype, device=self.device)
        seen = torch.zeros_like(total)
        for step in range(int(schedule.last_epoch.min()), schedule.steps):
            total += losses[step] * recorded[:, step]
            seen += recorded[:, step]
        self.loss = total / seen.clamp(min=1)

    def _fit_linear_head(self, phase: Phase) -> None:
        heads = {name: self.values[name] for name in phase.names}
        each_client = (len(self.keys), -1)
        features, labels = (t.unflatten(0, each_client) for t in (phase.pool.rows["x"], phase.pool.labels))
        self.loss = fit_linear_heads(heads, features, labels, phase.schedule, phase.rates, self._graphs_for(phase))

    # -- forward ------------------------------------------------------------------------------------------------

    def _features(self, split: ModelCut) -> Tensor:
        """Outputs of the frozen first part for every client, padded [C, n_max, …].

        While the first part is common to all, every sample of the cohort goes through it in one pass.
        """
        inner = names_inside(split.first, self.values)
        rows, _ = self._rows()
        arrange = self.setup.inputs.arrange
        with torch.no_grad(), self.setup.autocast():
            if not any(name in self._stacked for name in inner if name not in split.rest_names or not split.captured):
                values = {i: self.values[n] if n not in self._stacked else self.values[n][0] for n, i in inner.items()}

                def run(x: Inputs) -> Tensor:
                    out: Tensor = call_with(split.first, values, x)
                    return out

                parts = [
                    split.features(run, arrange(each(torch.clone, c)))
                    for c in chunks(rows, self._stacking.rows_per_pass)
                ]
                return self._pad({"x": self.setup.wide(torch.cat(parts))})["x"]
            if split.captured:
                raise ModelError("features of differing bodies need a model that is a chain of layers")
            padded = arrange(self._pad(rows))
            out, _ = call_stacked(split.first, inner, self.values, self._stacked, {}, padded, None, False)
            return self.setup.wide(out)

    def features(self) -> Tensor:
        """See :meth:`commonground.algorithms.Client.features`; stacked and padded [C, n_max, …]."""
        self._needs_samples("features")
        self.model.eval()
        padded = self.setup.inputs.arrange(self._pad(self._rows()[0]))
        with torch.no_grad(), self.setup.autocast():
            weight = torch.ones(len(self.keys), int(self.sizes.max()), dtype=self.dtype, device=self.device)
            names = names_inside(self.model, self.values)
            batch = Batch(padded, weight.long(), knowing_rows(weight, torch.arange(weight.numel(), device="cpu")))
            features = self._stacking.run(self.model, names, self.values, self._stacked, batch, True)[1]
        assert features is not None
        return self._giving({"features": self.setup.wide(features)})["features"]

    def class_means(self) -> Tensor:
        """See :meth:`commonground.algorithms.Client.class_means`; stacked."""
        self._needs_samples("class means")
        y = self._pad({"y": self._rows()[1]})["y"]
        means = self._means_by_class(self.features().flatten(2), y, self._there())
        return self._giving({"means": means})["means"]

    def _there(self) -> Tensor:
        """[C, n_max] 1 for a client's row and 0 for padding."""
        there = torch.from_numpy(np.arange(self.sizes.max())[np.newaxis, :] < self.sizes[:, np.newaxis])
        return knowing_rows(to_device(there.to(self.dtype), self.device), real_rows(there))

    @cached_property
    def _padding(self) -> Tensor:
        """[C, n_max], on the host: positions of each client's rows among all, its own repeated to fill."""
        position = np.arange(self.sizes.max())[np.newaxis, :] % self.sizes[:, np.newaxis]
        return torch.from_numpy(position) + self._host_starts()

    def _pad(self, flat: Inputs) -> Inputs:
        """Rows of all clients one after the other [Σn, …] as [C, n_max, …], padded with the client's own rows."""
        return select(flat, to_device(self._padding, first_of(flat).device))

    def gradient(
        self,
        group: str | Sequence[str],
        batch: Batch | None = None,
        *,
        at: Tensors | None = None,
        loss: Loss | None = None,
        penalty: Penalty | None = None,
    ) -> Tensors:
        """See :meth:`commonground.algorithms.Client.gradient`; stacked."""
        self._needs_samples("gradients")
        self._look_at(loss, penalty)
        names = self.setup.groups.trainable(group)
        moving = self._train_mode(names, group)
        self.stack([*names, *(at or {}), *moving])
        before = {} if self._active is None else {name: self.values[name].clone() for name in moving}
        batch = batch or self._whole()
        moved = {name: self._of_each_client(name, value) for name, value in (at or {}).items()}
        leaves = {name: moved.get(name, self.values[name]).detach().requires_grad_() for name in names}
        values = {**self.values, **moved, **leaves}
        inside = names_inside(self.model, values)
        each_client = self._batch_losses(self.model, inside, {**moved, **leaves}, batch, loss)
        self._leave_alone(before)
        self.loss = self._merged_loss(self.loss, each_client.detach())
        if penalty is not None:
            each_client = each_client + self._penalties(penalty, {**moved, **leaves})
        return self._giving(gradients_of(each_client.sum(), leaves))

    def _of_each_client(self, name: str, value: Tensor) -> Tensor:
        """A tensor for every client; of running statistics, which training moves, each has its own."""
        given = value.expand_as(self.values[name])
        return given.clone() if name in self.setup.buffers else given

    def mean_loss(self, batch: Batch | None = None, *, at: Tensors | None = None, loss: Loss | None = None) -> Tensor:
        """See :meth:`commonground.algorithms.Client.mean_loss`; stacked."""
        self._needs_samples("the loss")
        self._look_at(loss, None)
        batch = batch or self._whole(tested=True)
        self.stack(list(at or {}))
        moved = {name: value.expand_as(self.values[name]) for name, value in (at or {}).items()}
        self.model.eval()
        with torch.no_grad():
            inside = names_inside(self.model, {**self.values, **moved})
            found = self._batch_losses(self.model, inside, moved, batch._replace(masks=None), loss)
        return self._giving({"loss": found})["loss"]

    def _whole(self, *, tested: bool = False) -> Batch:
        """All training data of each client as one batch, changed and masked at random unless it is to be tested on."""
        rows, y = self._rows()
        padded, labels, weight = self._pad(rows), self._pad({"y": y})["y"], self._there()
        if tested:
            return Batch(self.setup.inputs.arrange(padded), labels, weight)
        self._mark_lone(self.sizes == 1)
        draws = self._draws_of_all()
        changed = each(lambda x: draws.change(x, 0), padded)
        return Batch(self.setup.inputs.arrange(changed), labels, weight, draws.masks(0))
