"""Which requests does a server run in each step, where a client keeps a fixed number of them in flight?"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

from tracelens_infer.steps.annotation import AttentionLoad, PhaseLoad


@dataclass(frozen=True, slots=True)
class Client:
    """A closed loop: ``concurrency`` requests at once, outputs of ``shortest_output`` to ``output_tokens`` tokens.

    ``prompts`` requests in all, None for no end. A ``warm`` server runs them already, each somewhere in its output.
    """

    concurrency: int = 64
    prompt_tokens: int = 1024
    output_tokens: int = 1024
    length_ratio: float = 0.8
    budget_tokens: int = 8192
    prompts: int | None = None
    warm: bool = True

    def output_length(self, rng: random.Random) -> int:
        return rng.randint(max(1, round(self.length_ratio * self.output_tokens)), self.output_tokens)


@dataclass(slots=True)
class Request:
    """How far is it? ``prefilled`` of its prompt, ``written`` of ``output_tokens``."""

    output_tokens: int
    prefilled: int = 0
    written: int = 0


def step_loads(client: Client, rng: random.Random) -> Iterator[AttentionLoad]:
    """What does each step compute? Ends when every prompt is answered; never without a number of prompts.

    Running requests decode a token each, and what the budget leaves goes to prompts in the order they came.
    """
    waiting = client.prompts
    running: list[Request] = []
    begun = client.warm  # the first requests are somewhere in their output
    while True:
        free = client.concurrency - len(running)
        admitted = free if waiting is None else min(free, waiting)
        waiting = None if waiting is None else waiting - admitted
        for _ in range(admitted):
            request = Request(client.output_length(rng))
            if begun:
                request.prefilled, request.written = client.prompt_tokens, rng.randrange(request.output_tokens)
            running.append(request)
        begun = False
        if not running:
            return
        yield _step(client, running)
        running = [request for request in running if request.written < request.output_tokens]


def _step(client: Client, running: list[Request]) -> AttentionLoad:
    decoding = [request for request in running if request.prefilled == client.prompt_tokens]
    generation = [(1, client.prompt_tokens + request.written) for request in decoding]
    budget = client.budget_tokens - len(decoding)
    context = []
    for request in running:
        chunk = min(client.prompt_tokens - request.prefilled, budget)
        if chunk > 0:
            request.prefilled += chunk
            budget -= chunk
            context.append((chunk, request.prefilled))
            request.written += request.prefilled == client.prompt_tokens  # the last chunk gives the first token
    for request in decoding:
        request.written += 1
    return AttentionLoad(_sums(context), _sums(generation))


def _sums(work: list[tuple[int, int]]) -> PhaseLoad:
    return PhaseLoad(
        len(work),
        query_tokens=sum(query for query, _ in work),
        kv_tokens=sum(kv for _, kv in work),
        query_kv=sum(query * kv for query, kv in work),
        query_query=sum(query * query for query, _ in work),
    )
