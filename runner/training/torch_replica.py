"""The replica of real processes: one `DistributedDataParallel` and one communication hook.

The hook reads `GradientAveraging`, which has all that a strategy may ask for (group, weights, reduction).
There is only one DDP wrapper because a second one on the same module would run its hooks as well.
"""

import inspect
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from ...strategies.gradients import DEFAULT_BUCKET_MIB, Pipeline
from ...strategies.replica import Batch, Replica, StepTimes
from ..communication.cuda_timing import Mark, StepTimings, one_step_late
from ..communication.torch_communicator import GradBucket, Summed, TorchCommunicator, done_sum
from .device_model import Device
from .precision import LossScaler, outputs_of
from .slow_device import Padding
from .workload import generator_states, set_generators

# The switch has two names: torch 2.14 deprecates the first, 2.9 does not know the second.
_KNOWN = inspect.signature(DistributedDataParallel.__init__).parameters
_NO_FORWARD_SYNC: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _KNOWN else "broadcast_buffers": False
}


class _Reaching(torch.autograd.Function):
    """Makes the loss depend on all parameters; those that it does not use get no gradient.

    `DistributedDataParallel` waits for every parameter in every step. A parameter without a gradient adds
    zeros to the sum, since other ranks may use it.
    """

    @staticmethod
    def forward(ctx: Any, loss: Tensor, *parameters: Tensor) -> Tensor:
        ctx.number = len(parameters)
        return loss.view_as(loss)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return gradients[0], *[None] * ctx.number


class WithLoss(nn.Module):
    """Model and criterion as one module, so that DDP sees the loss, and one element for stop requests.

    `stop_flag` is a parameter of value zero whose gradient is this rank's stop request (`request`). DDP sums
    it with its first bucket: all ranks know of a stop request in the step in which it is made, without
    another collective.

    The rank's weight multiplies the loss, so that the backward pass gives weighted gradients and buckets need
    only be summed: PyTorch's averaging would read all gradients once more to divide them. The `scaler`, if
    there is one, multiplies the loss too, but not the stop request.
    `reached`: parameters that the loss must depend on, whatever the model uses in a step.
    """

    def __init__(self, model: nn.Module, criterion: nn.Module) -> None:
        super().__init__()
        self.model, self.criterion = model, criterion
        # Of the model's type: DDP never mixes types in a bucket, so another type would need a collective.
        like = next(model.parameters()).detach()
        self.stop_flag = nn.Parameter(like.new_zeros(1))
        self.register_buffer("request", like.new_zeros(1), persistent=False)
        self.request: Tensor
        self.reached: list[Tensor] = []

    def forward(
        self,
        inputs: Tensor,
        targets: Tensor,
        weight: float,
        blank: bool = False,
        autocast: torch.dtype | None = None,
        scaler: LossScaler | None = None,
    ) -> tuple[Tensor, Tensor]:
        loss = self.criterion(outputs_of(self.model, inputs, autocast), targets)
        request = self.request
        if not blank:
            not_finite = ~torch.isfinite(loss.detach())
            request = torch.maximum(request, not_finite.to(request.dtype))
        # The stop request is added as zero: no bit of the loss or of a gradient changes. It is added after
        # the weight, so that a rank without samples (weight 0) can request a stop too.
        weighted = loss if weight == 1 else loss * weight
        if scaler is not None:
            weighted = scaler.scale(weighted)
            request = torch.maximum(request, scaler.lost().to(request.dtype))
        joined = weighted + (self.stop_flag * request).sum().to(loss.dtype)
        if self.reached:
            joined = _Reaching.apply(joined, *self.reached)
        return joined, torch.zeros_like(loss) if blank else loss.detach()


class TorchReplica(Replica):
    """A replica whose gradients are averaged in buckets during the backward pass. `padding`: see `pad`."""

    def __init__(self, model: nn.Module, criterion: nn.Module, comm: TorchCommunicator) -> None:
        super().__init__(model, criterion)
        self.comm = comm
        self._with_loss = WithLoss(model, criterion.to(comm.device))
        self._module: nn.Module = self._with_loss
        self._helper: ThreadPoolExecutor | None = None
        self._stream: torch.cuda.Stream | None = None
        self._pipeline = Pipeline()
        self._failure: BaseException | None = None
        self._bucket = 0
        self._members: tuple[int, ...] = ()
        self._bucket_weight = 1.0
        self._blank = False
        self._last_launch = 0
        self._computed: Mark = 0
        # With gloo the host waits for each step anyway. All ranks have the same backend.
        self.delayed_flag = not comm.host_waits
        self._late_times = StepTimings()
        self._late_stop_flag = one_step_late(self._event, pinned=comm.device.type == "cuda")
        self.padding: Padding | None = None

    def pad(self, device: Device) -> None:
        """Make forward and backward take as long as on `device`, from now on."""
        self.padding = Padding(self._with_loss, device)

    def measure_layers(self, samples: int, steps: int) -> None:
        """Measure each layer's share of forward and backward, which `padding` needs; after `pad`."""
        assert self.noise is not None, "the train context sets it"
        assert self.padding is not None
        inputs, targets = self.noise(samples)
        with self.untouched():
            self.padding.measure(lambda: self._step_alone(inputs, targets), steps)

    def compute_gradients(self, batch: Batch) -> Tensor:
        averaging, traffic = self.averaging, self.comm.traffic
        self._members = self.comm.members(averaging.group) if averaging.group is not None else ()
        weight = averaging.weight(batch, self._members, self.comm.rank)
        self._blank = len(batch.targets) == 0
        in_loss = averaging.scale == "loss" or weight == 0
        self._bucket, self._bucket_weight = 0, 1.0 if in_loss else weight
        key = traffic.launch("gradients", self._members, 0) if self._members else 0
        self._with_loss.stop_flag.grad = None
        self._clear_gradients()
        self._with_loss.request.fill_(float(self.requests_stop))
        started = self._mark()
        with self.stand_in(batch) as (inputs, targets):
            *earlier, (last, share) = self.parts(len(targets))
            forwards, losses = [], []
            scale = weight if in_loss else 1.0
            for part, share_of_part in earlier:
                took, loss_of_part = self._part_alone(inputs[part], targets[part], scale * share_of_part)
                forwards.append(took)
                losses.append(share_of_part * loss_of_part)
            module = self._module if averaging.overlap else self._with_loss
            took, joined, loss = self._forward(
                module, inputs[last], targets[last], scale * share, blank=self._blank
            )
            forwards.append(took)
            if losses:
                loss = torch.stack([*losses, share * loss]).sum()
        if len(self._members) < 2:
            joined.backward()
            if self._blank:
                self._clear_gradients()
            computed = self._mark()
        else:
            with self.comm.waiting_in(f"backward, all_reduce on gradients/{averaging.group}"):
                joined.backward()
                if not averaging.overlap:
                    self._sum_afterwards()
                computed = self._computed
            if self._failure is not None:
                raise self._failure
            # The last bucket is launched when the last gradient is complete: from then on backward() only
            # waits for sums, which are exposed. Buckets that ended earlier were hidden behind computation. A
            # host that runs ahead of its GPU waits for nothing here; events give the times later.
            traffic.launches[key] = self._last_launch
            if not self.delayed_flag:
                traffic.block(key, self._last_launch, self.comm.now())
        done = self._mark() if self.delayed_flag else computed
        if self.padding is not None:
            self.padding.end()
        self.stop_requested = self._read_stop_flag()
        self._late_times.add(
            batch.samples_of_rank, forward=forwards, started=started, computed=computed, done=done
        )
        self._keep(self._late_times.known())
        self._unscale()
        return loss

    def wait_pending(self) -> None:
        self._keep(self._late_times.wait_pending())
        self.comm.synchronise()  # the optimizer's step and the strategy's work after it

    def take_device_ns(self) -> tuple[int, int] | None:
        compute_ns, exposed_ns = self._late_times.take_sums()
        return (compute_ns, exposed_ns + self.comm.take_exposed_ns()) if self.delayed_flag else None

    @contextmanager
    def untouched(self) -> Iterator[None]:
        # Times and flags of earlier steps are kept, and read later as if nothing had happened in between.
        self.wait_pending()
        times, stop_flag = self._late_times, self._late_stop_flag
        times.exposed_ns += self.comm.take_exposed_ns()
        self._late_times = StepTimings()
        self._late_stop_flag = one_step_late(self._event, pinned=self.comm.device.type == "cuda")
        with super().untouched():
            yield
            self.wait_pending()
        self.comm.take_exposed_ns()
        self._late_times, self._late_stop_flag = times, stop_flag

    def _read_stop_flag(self) -> bool:
        """Whether a rank of the group requested a stop in this step, or on GPUs in the one before."""
        stop_flag = self._with_loss.stop_flag.grad
        flag_of = self._late_stop_flag if self.delayed_flag else Tensor.item
        return stop_flag is not None and flag_of(stop_flag) != 0

    def _keep(self, times: list[StepTimes]) -> None:
        self.times.extend(times)
        if times:
            _, self.forward_ns, self.compute_ns = times[-1]

    def _forward(
        self, module: nn.Module, inputs: Tensor, targets: Tensor, weight: float, *, blank: bool = False
    ) -> tuple[tuple[Mark, Mark], Tensor, Tensor]:
        """When forward began and ended, what backward begins with, and the mean loss [], detached."""
        if self.padding is not None:
            self.padding.begin(0 if blank else len(targets))
        began = self._mark()
        joined, loss = module(inputs, targets, weight, blank, self.autocast, self.scaler)
        ended = self._mark()
        if self.padding is not None:
            self.padding.begin_backward()
        return (began, ended), joined, loss

    def _part_alone(self, inputs: Tensor, targets: Tensor, weight: float) -> tuple[tuple[Mark, Mark], Tensor]:
        """Forward and backward of a part of the batch without DDP, which would sum its gradients.

        The gradients are accumulated. Returns when forward began and ended, and the part's loss [].
        """
        forward, joined, loss = self._forward(self._with_loss, inputs, targets, weight)
        joined.backward()
        if self.padding is not None:
            self.padding.end()
        return forward, loss

    def time_steps(self, samples: int, steps: int) -> list[float]:
        assert self.noise is not None, "the train context sets it"
        took = []
        with self.untouched():
            inputs, targets = self.noise(samples)
            for _ in range(steps):
                self.comm.synchronise()
                started = self.comm.now()
                self._step_alone(inputs, targets)
                self._unscale()
                self.step()
                self.comm.synchronise()
                took.append((self.comm.now() - started) / 1e9)
        return took

    def _step_alone(self, inputs: Tensor, targets: Tensor) -> None:
        """Forward and backward without averaging, with padding if there is any."""
        self._clear_gradients()
        for part, share in self.parts(len(targets)):
            self._part_alone(inputs[part], targets[part], share)

    def rng_state(self) -> dict[str, Tensor]:
        state = generator_states(self.comm.device)
        if self.padding is not None:
            state["device"] = torch.tensor(self.padding.device.drawn)
        return state

    def load_rng_state(self, state: dict[str, Tensor]) -> None:
        set_generators(state, self.comm.device)
        if self.padding is not None:
            self.padding.device.drawn = int(state["device"])

    def _averaging_changed(self) -> None:
        averaging, device = self.averaging, self.comm.device
        wrapped = isinstance(self._module, DistributedDataParallel)
        if averaging.group is None or not averaging.overlap or wrapped or self.comm.ddp_group() is None:
            return
        ddp = DistributedDataParallel(
            self._with_loss,
            device_ids=[device.index] if device.type == "cuda" else None,
            process_group=self.comm.ddp_group(),
            # PyTorch's first bucket is small, so that the first sum starts early, only where this is None.
            bucket_cap_mb=None if averaging.bucket_mib == DEFAULT_BUCKET_MIB else averaging.bucket_mib,  # pyright: ignore[reportArgumentType] (a float, PyTorch says int)
            gradient_as_bucket_view=averaging.bucket_view,
            # Buffers are averaged where a model is evaluated or saved, not by a hidden broadcast per step.
            **_NO_FORWARD_SYNC,
        )
        ddp.register_comm_hook(self, type(self).launch_bucket)
        self._module, self._with_loss.reached = ddp, self.parameters.tensors

    # PyTorch compares the annotations with the types themselves, so they must not be strings.
    def launch_bucket(self, bucket: GradBucket) -> Summed:
        """The communication hook: sum a bucket whose gradients are complete, during the backward pass."""
        if bucket.is_last():
            self._computed_here()
        shapes = [tuple(gradient.shape) for gradient in bucket.gradients()]
        with nullcontext() if self.padding is None else self.padding.excluded():
            return self.sum_bucket(bucket.buffer(), shapes, last=bucket.is_last())

    def sum_bucket(self, buffer: Tensor, shapes: Sequence[tuple[int, ...]], *, last: bool) -> Summed:
        """Start the sum of the next bucket of this step over the group; the future holds it.

        A `Reduction` runs on a helper thread, its buckets in a `Pipeline`: sums are complete at the latest
        after the `last` one. Its error is kept for `compute_gradients`, and later buckets are not summed:
        their collectives would be matched with other ranks' next ones.
        """
        index, self._bucket = self._bucket, self._bucket + 1
        group, reduction = self.averaging.group, self.averaging.reduction
        if len(self._members) < 2 or group is None:
            return done_sum(buffer)
        if self._bucket_weight != 1:
            buffer.mul_(self._bucket_weight)
        if self._blank:
            buffer.nan_to_num_(0.0, 0.0, 0.0)  # 0 · NaN is NaN
        if reduction is None:
            return self.comm.start_sum(buffer, group)
        if self._helper is None:
            self._helper = ThreadPoolExecutor(1, thread_name_prefix="buckets")
            # Another stream: on the one that computes, backward would wait for each sum.
            self._stream = torch.cuda.Stream(buffer.device) if buffer.is_cuda else None
        stream = self._stream
        ready = None if stream is None else torch.cuda.current_stream(buffer.device).record_event()
        future: Summed = torch.futures.Future(devices=None if stream is None else [buffer.device])

        def work() -> None:
            with torch.cuda.stream(stream):  # None: changes nothing
                # PyTorch's reducer would take an exception set in a future for a tensor, and hide it.
                if self._failure is not None:
                    future.set_result(buffer)
                    return
                try:
                    if stream is not None and ready is not None:
                        stream.wait_event(ready)
                    levels = reduction.levels(buffer, index, shapes, self.comm)
                    self._pipeline.add(levels, lambda: future.set_result(buffer), last=last)
                except BaseException as error:
                    self._failure = error
                    self._pipeline.abandon()

        self._helper.submit(work)
        return future

    def _sum_afterwards(self) -> None:
        """Sum buckets after the backward pass, one by one, in the order in which gradients are computed."""
        self._computed_here()
        stop_flag = self._with_loss.stop_flag.grad
        assert stop_flag is not None, "the loss depends on it"
        for bucket in _buckets([stop_flag, *reversed(self._gradients())], self.averaging.bucket_mib * 2**20):
            flat = torch.cat([gradient.reshape(-1) for gradient in bucket])
            flat = self.sum_bucket(flat, [tuple(gradient.shape) for gradient in bucket], last=True).wait()
            for gradient, piece in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
                gradient.copy_(piece.view_as(gradient))

    def _computed_here(self) -> None:
        """Note that the last gradient is complete: the rest of the backward pass is waiting for sums.

        A GPU may still compute when the host comes here. Where the host waits for sums (gloo), it waits for
        the GPU first, so that the time after this point is communication only.
        """
        self._computed = self._mark()
        if not self.delayed_flag:
            self.comm.synchronise()
        self._last_launch = self.comm.now()

    def _mark(self) -> Mark:
        """The present time of this rank's computation; on a GPU an event behind all launched work."""
        if self.comm.device.type != "cuda":
            return self.comm.now()
        event = self._event()
        event.record(torch.cuda.current_stream(self.comm.device))
        return event

    def _event(self) -> torch.cuda.Event:
        return torch.cuda.Event(enable_timing=True)


def _buckets(gradients: Sequence[Tensor], size: float) -> list[list[Tensor]]:
    """Runs of gradients of one type and at most `size` bytes (or one gradient)."""
    buckets: list[list[Tensor]] = []
    filled = 0
    for gradient in gradients:
        took = gradient.numel() * gradient.element_size()
        if buckets and buckets[-1][0].dtype == gradient.dtype and filled + took <= size:
            buckets[-1].append(gradient)
            filled += took
        else:
            buckets.append([gradient])
            filled = took
    return buckets
