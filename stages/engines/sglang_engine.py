"""The target on SGLang servers: answers by POST /generate, prompts by the server's own chat template.

Token ids go in and come out; text never takes part. Every reply is checked for being the one that was asked for.
"""
import collections
import itertools
import os
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from typing import NamedTuple

from stages.engines import spec_counters
from stages.engines.http_json import Broken, Refused
from stages.lib import chat
from stages.lib.refusal import Refusal

TRIES = 3
SECONDS = 3600.0  # for one POST; a server that hangs ends by its own watchdog (300 s) long before


class Answer(NamedTuple):
    ids: list  # as emitted, a stop id included
    reason: str  # "stop" or "length"
    meta: dict  # SGLang's meta_info: cached tokens, counters of speculation


class Post(NamedTuple):
    rows: list  # places in the list of prompts
    tries: int  # that are left


def sampling(max_new_tokens, temperature, top_p, stop_ids):
    """SGLang's sampling parameters of one request, all that shape the distribution: what is left out would come from the model's
    generation_config or from the server's --preferred-sampling-params."""
    return {"max_new_tokens": max_new_tokens, "min_new_tokens": 0, "temperature": temperature, "top_p": top_p, "top_k": -1, "min_p": 0.0,
            "frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0, "stop_token_ids": list(stop_ids),
            "ignore_eos": False, "n": 1}


class Engine:
    """One target on one or more servers (sglang_server.serve), asked as if they were one."""

    def __init__(self, servers, vocab_size, per_post=16):
        """vocab_size: of the target. per_post: prompts of one POST; few, so that a slow answer holds up few others, and more than one:
        with 1024 in flight a prompt costs this side 0.8 ms of CPU alone and 0.05 ms among 16."""
        self.servers, self.vocab_size, self.per_post = servers, vocab_size, per_post
        self.infos = [server.http.call("/server_info", seconds=60.0) for server in servers]
        # twice what a server decodes at once: posts end raggedly, and its queue must not run dry meanwhile
        self.room = [2 * max(1, sum(s.get("effective_max_running_requests_per_dp", 0) for s in info["internal_states"]))
                     for info in self.infos]
        self.numbers = itertools.count()

    @property
    def seeded(self):
        """Who makes the random numbers: "request" (each one's seed), or "server" (--random-seed, so an answer depends on what else is
        in the batch). SGLang 0.5.15 reads a request's sampling_seed only under --enable-deterministic-inference, without a word."""
        return "request" if all(info["enable_deterministic_inference"] for info in self.infos) else "server"

    def generate(self, prompts, max_new_tokens, temperature, top_p, seeds, stop_ids, tick=lambda n: None):
        """One `(response_ids, finish_reason)` per prompt (a list of token ids), in order; a stop id is part of the response.

        In the place of a row that the server will not answer, or not in TRIES tries, stands the RuntimeError. Refusal ends the whole
        call: a server that has died, or a reply that is not the one asked for.
        """
        answers = self.ask(prompts, sampling(max_new_tokens, temperature, top_p, stop_ids), seeds, tick)
        return [a if isinstance(a, Exception) else (a.ids, a.reason) for a in answers]

    def ask(self, prompts, params, seeds, tick=lambda n: None, in_flight=None):
        """As generate, with the whole Answer per prompt. in_flight: at most so many prompts at once, one a POST; None: as many as the
        servers take."""
        for row, prompt in enumerate(prompts):
            # an id outside the embedding does not fail one request but ends the server
            if not prompt or min(prompt) < 0 or max(prompt) >= self.vocab_size:
                raise Refusal(f"prompt {row} is empty or holds an id outside the vocabulary of {self.vocab_size}")
        size, room = (1, [-(-in_flight // len(self.servers))] * len(self.servers)) if in_flight else (self.per_post, self.room)
        posts = collections.deque(Post(list(range(i, min(i + size, len(prompts)))), TRIES) for i in range(0, len(prompts), size))
        answers, flying = [None] * len(prompts), {}
        # threads that wait for a socket cost nothing; at most two servers' worth of posts are in the air
        with ThreadPoolExecutor(max(1, min(len(posts), sum(-(-r // size) for r in room)))) as pool:
            try:
                while posts or flying:
                    while posts and (at := self._freest(flying, room)) is not None:
                        post = posts.popleft()
                        flying[pool.submit(self._send, self.servers[at], post, prompts, params, seeds)] = at, post
                    done, _ = wait(flying, return_when=FIRST_COMPLETED)
                    for future in done:
                        at, post = flying.pop(future)
                        self._settle(future, self.servers[at], post, posts, answers, tick)
            except BaseException:
                for server in self.servers:
                    server.http.cut()  # or the pool would wait for answers that nobody wants
                pool.shutdown(cancel_futures=True)
                for server in self.servers:
                    server.http.mend()
                raise
        return answers

    def _freest(self, flying, room):
        """The server with the most room, None where all are full. An empty server has room for a post of any size."""
        load = [0] * len(self.servers)
        for at, post in flying.values():
            load[at] += len(post.rows)
        at = max(range(len(load)), key=lambda i: room[i] - load[i])
        return at if load[at] == 0 or room[at] - load[at] > 0 else None

    def _send(self, server, post, prompts, params, seeds):
        """The checked answers to one post, in order."""
        # fresh names each try: the server may still be at work on the last one's
        names = [f"eyrie-{os.getpid()}-{next(self.numbers)}" for _ in post.rows]
        body = {"rid": names, "input_ids": [prompts[r] for r in post.rows], "return_prompt_token_ids": True,
                # always a seed: under deterministic inference all requests without one draw the same numbers
                "sampling_params": [{**params, "sampling_seed": seeds[r]} for r in post.rows]}
        replies = server.http.call("/generate", body, SECONDS)
        if not isinstance(replies, list) or len(replies) != len(names):
            raise Refusal(f"the server at {server.url} gave {len(replies) if isinstance(replies, list) else 'no list of'} answers to "
                          f"{len(names)} prompts")
        return [checked(reply, name, prompts[r], params, self.vocab_size) for reply, name, r in zip(replies, names, post.rows)]

    def _settle(self, future, server, post, posts, answers, tick):
        """Note the answers of a post, or what becomes of one that failed: tried again, or taken apart to find the guilty prompt."""
        try:
            found = future.result()
        except Refused as error:
            if len(post.rows) > 1:
                posts.extendleft(Post([r], TRIES) for r in reversed(post.rows))
            else:
                answers[post.rows[0]] = error
            return
        except Broken as error:
            server.check()
            if post.tries > 1:
                posts.append(Post(post.rows, post.tries - 1))
            elif len(post.rows) > 1:
                posts.extend(Post([r], TRIES) for r in post.rows)
            else:
                answers[post.rows[0]] = error
            return
        for row, answer in zip(post.rows, found):
            if isinstance(answer, Exception) and isinstance(answer, Broken) and post.tries > 1:
                posts.append(Post([row], post.tries - 1))
            else:
                answers[row] = answer
        tick(sum(len(a.ids) for a in found if isinstance(a, Answer)))

    def stream(self, prompts, params, seeds, chain, in_flight=1):
        """Per prompt `(Answer, accepted drafts per verify pass)`, the last pass left out: for the comparison pass by pass.

        Few in flight, since chunks merge on a busy server; a request whose chunks are not its passes is streamed again, TRIES times,
        and then has its RuntimeError here.
        """
        for info in self.infos:
            if info["stream_interval"] != 1:
                raise Refusal(f"the server runs with --stream-interval {info['stream_interval']}; expected 1, a chunk per pass")

        def one(row):
            at = row % len(self.servers)
            for _ in range(TRIES):
                try:
                    return self._stream(self.servers[at], self.infos[at], prompts[row], {**params, "sampling_seed": seeds[row]}, chain)
                except Refused as error:
                    return error
                except (Broken, RuntimeError) as error:
                    if isinstance(error, Broken):
                        self.servers[at].check()
                    last = error
            return last

        with ThreadPoolExecutor(in_flight) as pool:
            try:
                return list(pool.map(one, range(len(prompts))))
            except BaseException:
                for server in self.servers:
                    server.http.cut()
                pool.shutdown(cancel_futures=True)
                for server in self.servers:
                    server.http.mend()
                raise

    def _stream(self, server, info, prompt, params, chain):
        name = f"eyrie-{os.getpid()}-{next(self.numbers)}"
        ids, lengths, event = [], [], None
        for event in server.http.events("/generate", {"rid": name, "input_ids": prompt, "sampling_params": params, "stream": True,
                                                      "return_prompt_token_ids": True}, SECONDS):
            # a chunk holds the whole answer so far, or with --incremental-streaming-output the new ids alone
            new = event["output_ids"] if info["incremental_streaming_output"] else event["output_ids"][len(ids):]
            ids, lengths = ids + new, lengths + [len(new)] * bool(new)
        answer = checked({**event, "output_ids": ids}, name, prompt, params, self.vocab_size)
        if isinstance(answer, Exception):
            raise answer
        return answer, spec_counters.per_pass(lengths, answer.meta, chain)

    def render(self, tok, dialogues, in_flight=8):
        """Token ids of OpenAI-style dialogues, by the server's own template, each equal to what stages/lib/chat.py makes of it: the
        draft is trained on these ids, and people will ask the server through that template. Refusal at the first difference."""
        def one(numbered):
            number, dialogue = numbered
            server = self.servers[number % len(self.servers)]
            for left in reversed(range(TRIES)):
                try:
                    theirs = server.http.call("/tokenize", {"messages": dialogue})["tokens"]
                    break
                except Broken:
                    server.check()
                    if not left:
                        raise
            ours = chat.render(tok, dialogue)
            if theirs != ours:
                at = next((i for i, (a, b) in enumerate(zip(theirs, ours)) if a != b), min(len(theirs), len(ours)))
                raise Refusal(f"the server renders dialogue {number} otherwise than Eyrie: at token {at} the server has "
                              f"{tok.decode(theirs[at:at + 8])!r}, Eyrie {tok.decode(ours[at:at + 8])!r}; check --chat-template and the "
                              "target's tokenizer files")
            return theirs

        with ThreadPoolExecutor(in_flight) as pool:
            return list(pool.map(one, enumerate(dialogues)))


def checked(reply, name, prompt, params, vocab_size):
    """The Answer in one reply of /generate; RuntimeError (Broken: worth another try) where the server gave this row up. Refusal where
    the reply is not the answer to this prompt: what is behind it can then be trusted no more."""
    meta, ids = reply["meta_info"], reply["output_ids"]
    reason, stops, most = meta["finish_reason"] or {}, params["stop_token_ids"], params["max_new_tokens"]

    def unless(fine, what):
        if not fine:
            raise Refusal(f"the reply to request {name} is not its answer: {what}; the server or something before it mixes up replies")

    unless(meta["id"] == name, f"it is named {meta['id']}")
    unless(reply["prompt_token_ids"] == prompt, "it echoes another prompt")
    if reason.get("type") == "abort":
        return Broken(f"the server gave up: {reason.get('message')}")
    unless(all(type(i) is int and 0 <= i < vocab_size for i in ids), f"its ids are not all in the vocabulary of {vocab_size}")
    unless(meta["completion_tokens"] == len(ids), f"{len(ids)} ids, and completion_tokens says {meta['completion_tokens']}")
    unless(len(ids) <= most, f"{len(ids)} ids, over the limit of {most}")
    unless(reason.get("type") in ("stop", "length"), f"its finish reason is {reason}")
    if isinstance(reason.get("matched"), str):
        return FloatingPointError(f"the server stopped with {reason['matched']!r}")  # "NaN happened": its logits are not finite
    if early := [i for i, token in enumerate(ids[:-1]) if token in stops]:
        # a verify pass that reaches the limit is cut there alone: the server does not look for an end id among its tokens
        unless(reason["type"] == "length" and "spec_verify_ct" in meta, "it goes on behind a stop id")
        return Answer(ids[:early[0] + 1], "stop", meta)
    if reason["type"] == "stop":
        unless(ids and reason.get("matched") == ids[-1], f"it stopped at {reason.get('matched')} and ends in {ids[-1:]}")
        unless(ids[-1] in stops, f"it stopped at id {ids[-1]}, which is none of the target's end ids {sorted(stops)}")
    elif len(ids) < most:
        return RuntimeError(f"cut after {len(ids)} of {most} tokens: the server's context length or KV pool is too small for this prompt")
    # the server looks at the length first, so that an end id in the last place reads "length" there
    return Answer(ids, "stop" if ids and ids[-1] in stops else "length", meta)
