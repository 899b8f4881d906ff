"""Two pools instead of one fleet: prompts on prefill replicas, their caches over a link, decoding on decode replicas.

Models: the decode replica is chosen when the prompt is done; it asks for the cache once it has blocks for it (as
vLLM's NixlConnector reads), and until all of it is there the prefill replica keeps its own. A transfer has the link of
its sender and that of its receiver to itself, in the order of asking. Where the first token comes with the cache, an
output of one token is complete with its prompt and goes nowhere.
Leaves out: layers sent while others are computed, prefixes that a decode replica has already, failures.
Numbers: a `Disaggregation`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import simpy

from specsim.config import ReplicaLimits, RouterName
from specsim.disaggregation import Disaggregation
from specsim.engine.choosers import Chooser, LeastOutstanding, RoundRobin
from specsim.engine.observe import Observer
from specsim.engine.pools import DecodeReplica, PrefillReplica
from specsim.engine.router import Source
from specsim.records import HandoverColumns, RequestColumns

__all__ = ["Handover", "Side", "decode_chooser"]


def decode_chooser(name: RouterName, replicas: Sequence[DecodeReplica]) -> Chooser:
    """The chooser of a router over decode replicas, which share no prefixes."""
    return RoundRobin(len(replicas)) if name == "round_robin" else LeastOutstanding(replicas)


class Handover:
    """Moves requests from one pool to the other and writes down when.

    Args:
        rows: of the run as a whole; a request that is complete with its prompt gets its times here.
        limits: of a replica.
        wake: told of a prefill, or a decode, replica that may have something to do.
    """

    def __init__(
        self,
        env: simpy.Environment,
        plan: Disaggregation,
        limits: ReplicaLimits,
        rows: RequestColumns,
        columns: HandoverColumns,
        wake: tuple[Callable[[int], None], Callable[[int], None]],
        observers: Sequence[Observer] = (),
    ) -> None:
        self._env = env
        self._plan = plan
        self._limits = limits
        self._rows = rows
        self._columns = columns
        self._wake_prefill, self._wake_decode = wake
        self._observers = observers
        self._token_comes = limits.discipline.hand_over == "token"
        self._sender_free_s = [0.0] * plan.prefill_replicas
        self._receiver_free_s = [0.0] * plan.decode_replicas

    def connect(
        self,
        prefill: Sequence[PrefillReplica],
        decode: Sequence[DecodeReplica],
        chooser: Chooser,
        source: Source,
    ) -> tuple[Side, Side]:
        """What prefill and decode replicas see of the run, once the pools, the chooser of decode replicas and the
        router of prefill replicas are there."""
        self._prefill, self._decode, self._chooser, self._source = prefill, decode, chooser, source
        return Side(source, self.computed), Side(source, self.finished)

    def computed(self, request: int, now_s: float) -> None:
        """The prompt of a request is done."""
        self._source.returned(request)
        rows = self._rows
        if self._token_comes and rows.output_tokens[request] == 1:
            rows.first_token_s[request] = rows.finish_s[request] = now_s
            self._prefill[rows.replica[request]].sent(request)
            self._source.completed(now_s)
            return
        index = self._chooser.choose(request)
        self._columns.decode_replica[request] = index
        self._decode[index].submit(request, now_s)
        self._wake_decode(index)

    def pull(self, request: int, replica: int, now_s: float) -> None:
        """A decode replica, numbered behind the prefill ones, has blocks for a request and asks for its cache."""
        columns, plan = self._columns, self._plan
        sender, receiver = int(self._rows.replica[request]), replica - plan.prefill_replicas
        start_s = max(now_s, self._sender_free_s[sender], self._receiver_free_s[receiver])
        link_s = plan.link_s(int(self._rows.prompt_tokens[request]), self._limits)
        end_s = start_s + link_s
        self._sender_free_s[sender] = self._receiver_free_s[receiver] = end_s
        columns.room_s[request], columns.transfer_start_s[request], columns.link_s[request] = now_s, start_s, link_s
        for observer in self._observers:
            self._at(start_s - now_s, partial(self._tell_began, observer, request))
        self._at(end_s - now_s + plan.link_latency_s, lambda _: self._arrived(request, sender, receiver))

    def _at(self, delay_s: float, call: Callable[[simpy.Event], None]) -> None:
        self._env.timeout(delay_s).callbacks.append(call)

    def _tell_began(self, observer: Observer, request: int, _: simpy.Event) -> None:
        observer.transfer_began(request, self._env.now)

    def _arrived(self, request: int, sender: int, receiver: int) -> None:
        now_s = self._env.now
        self._columns.transfer_end_s[request] = now_s
        for observer in self._observers:
            observer.transferred(request, now_s)
        self._prefill[sender].sent(request)
        self._wake_prefill(sender)
        self._decode[receiver].receive(request)
        self._wake_decode(receiver)

    def finished(self, request: int, now_s: float) -> None:
        """A request has its last token."""
        if self._chooser.watches:
            self._chooser.finished(request)
        self._source.completed(now_s)


class Side:
    """What a replica of one pool needs of the run around it, as a source offers it to a fleet."""

    def __init__(self, source: Source, finished: Callable[[int, float], None]) -> None:
        self._source = source
        self.deliver = source.deliver
        self.finished = finished

    @property
    def next_s(self) -> float:
        """From when on `deliver` has something to do."""
        return self._source.next_s
