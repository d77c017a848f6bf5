#!/usr/bin/python3
"""Pushes a job into a queue of waterline in Redis: on one server, or in a cluster.

It needs redis 4.3 or later:
    REDIS_URL=redis://localhost ./producer.py 1 ann@example.org
"""
import json, os, re, sys, time

import redis, redis.backoff, redis.retry

WORDS = """head job state lane0 lane1 lane2 lane3 due run done dead expires forget index use held
    turn refill after before data meta shown note tick seen""".split()


def push(urls, place, kind, payload, settings, patience=30):
    """Returns the id and what became of the push. `place` is that of the queue: `wl:{mail}:`.
    After a lost answer it is made again, so its settings have to make it unique."""
    servers, end = urls.split(","), time.monotonic() + patience
    keys, once = [place + word for word in WORDS], redis.retry.Retry(redis.backoff.NoBackoff(), 0)
    job = (1, kind, json.dumps(payload), json.dumps(settings))
    while True:
        try:
            with redis.from_url(servers[0], socket_timeout=10, retry=once).client() as db:
                db.fcall("wl_greet", 26, *keys, "", db.info("server")["run_id"])
                row = db.fcall("wl_push", 26, *keys, "", "", *job)[0]
                return row[2].decode(), row[3].decode()
        except redis.RedisError as error:
            moved = re.search(r"(?i)moved(error)? \d+ (\S+)$", f"{type(error).__name__} {error}")
            if moved:  # To the node of the cluster that has the queue.
                servers.insert(0, re.sub(r"[^/@]+$", moved[2], servers[0]))
            elif str(error).startswith("WQ") or time.monotonic() > end:
                raise
            else:
                servers.append(servers.pop(0))
                time.sleep(0.2)


def order(urls, number, customer):
    # Its row is committed already. The same push makes no second job within a day, also if the
    # first one has ended. One job of a customer at a time.
    name = f"receipt-{number}"
    unique = {"fingerprint": name, "until": "within", "within_ms": 86400000}
    settings = {"id": name, "unique": unique, "key": customer}
    return push(urls, "wl:{mail}:", "receipt", {"order": number}, settings)


if __name__ == "__main__":
    print(*order(os.environ["REDIS_URL"], int(sys.argv[1]), sys.argv[2]))
