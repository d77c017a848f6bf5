#!/usr/bin/python3
"""A worker for a queue of waterline in Redis, to copy: on one server, or in a cluster."""
import json, logging, os, random, re, select, signal, socket, threading, time, traceback
from types import SimpleNamespace
import redis, redis.backoff, redis.retry  # 4.3 or later

WORDS = """head job state lane0 lane1 lane2 lane3 due run done dead expires forget index use held
    turn refill after before data meta shown note tick seen""".split()  # The keys.
ROW = """what number id outcome state token kind payload pushed since priority more data error
    failures crashes due""".split()
ABOUT = {"number": random.getrandbits(53), "name": f"{socket.gethostname()}/{os.getpid()}",
         "process": os.getpid(), "host": socket.gethostname(), "language": "python",
         "version": "1.0"}  # For those who look at the workers.
jobs, servers, stops = {}, [], threading.Event()  # The jobs that it has, by their tokens.
bell, rope = os.pipe()


def run(urls, place, handlers, slots=8, lease=30000, poll=1000):
    """Calls `handlers[job.kind](job)`, each in a thread: it returns JSON text to keep, or None.
    `place` is that of the queue: `wl:{mail}:`, or with a tag `wl:{shop}:mail:`.
    At SIGTERM or SIGINT it takes no more, and returns once what it has is ended."""
    servers.extend(urls.split(","))
    os.set_blocking(rope, False)
    signal.set_wakeup_fd(rope)
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stops.set())
    threading.Thread(target=listen, args=[place + "bell"], daemon=True).start()
    keys, most = [place + word for word in WORDS], min(lease / 3000, 10)
    # A call that hangs would let all leases end. The driver makes none again by itself.
    bounds = {"socket_timeout": most, "retry": redis.retry.Retry(redis.backoff.NoBackoff(), 0)}
    text = {"decode_responses": True, "encoding_errors": "surrogateescape"}
    while jobs or not stops.is_set():
        try:
            with redis.from_url(servers[0], **bounds, **text).client() as db:
                call = lambda name, *args: db.fcall(name, 26, *keys, "", *args)
                call("wl_greet", db.info("server")["run_id"])
                renewed = 0
                while (renewed := turn(call, handlers, slots, lease, poll, renewed)) or jobs:
                    pass
        except redis.RedisError as error:
            moved = re.search(r"(?i)moved(error)? \d+ (\S+)$", f"{type(error).__name__} {error}")
            code, *words = str(error).split(" ")
            if code == "WQ012":  # Data that is too large for the queue is a failure.
                for job in jobs.values():
                    if job.end and len(job.end[3].encode()) > int(words[2]) + 1:
                        job.end = ("failed", "", f"={error}", "")
            elif moved:  # To the node of the cluster that has the queue.
                node = re.sub(r"[^/@]+$", moved[2], servers[0])
                servers[:] = [node, *(server for server in servers if server != node)]
            elif code.startswith("WQ"):
                raise  # It would be the same again.
            else:
                logging.warning("no answer, again in a second: %s", error)  # The handlers go on.
                servers.append(servers.pop(0))
                time.sleep(random.uniform(0.2, 1))


def turn(call, handlers, slots, lease, poll, renewed):
    """Says what has ended, and begins what it is given. Returns when the leases were renewed, in
    seconds; 0: it stops. After a lost answer the same ends are said again: each counts once."""
    stopping, now = stops.is_set(), time.monotonic()
    about = [{**ABOUT, "kinds": [*handlers], "slots": slots, "stopping": stopping}]
    about, name = "=" + json.dumps(about), "=" + ABOUT["name"]
    for job in [job for job in jobs.values() if job.payload is None]:  # It was too large for a row.
        for row in call("wl_load", 1, job.number, job.token):
            job.id, job.payload, job.data = row[2], row[4], row[5]
            begin(job, handlers)
    if stopping or now > renewed + lease / 3000:
        leases = [number for job in jobs.values() for number in (job.number, job.token)]
        held = call("wl_renew", lease, "", int(stopping), about, len(jobs), *leases)
        for job in [job for job in jobs.values() if job.number not in held]:
            jobs.pop(job.token).lost.set()  # A handler that still runs has nothing more to do.
        renewed = now
    ended = [job for job in jobs.values() if job.end]
    ends = [word for job in ended for word in (job.number, job.token, *job.end)]
    rows = call("wl_turn", int(not stopping), slots - len(jobs) + len(ended), "", lease, name, 0,
                poll + 1000, "", about, len(handlers), *handlers, len(ended), *ends)
    for job in ended:
        del jobs[job.token]
    sleep = min(poll, lease / 4)
    for row in rows:
        row = SimpleNamespace(**dict(zip(ROW, row + [None] * 17)), end=None, lost=threading.Event())
        if row.what == "claimed":
            jobs[row.token], row.id = row, row.id or f"~{row.number}"
            if row.payload is not None:
                begin(row, handlers)
        if row.what in ("claimed", "again"):
            sleep = 0  # There may be more.
        elif row.what == "peek" and row.number:
            sleep = min(sleep, max(row.number - row.since, 20))
    if select.select([bell], [], [], sleep / 1000)[0]:
        os.read(bell, 4096)
    return 0 if stopping else renewed


def begin(job, handlers):
    threading.Thread(target=attempt, args=[job, handlers[job.kind]], daemon=True).start()


def attempt(job, handler):
    try:
        said = handler(job) or ""
        json.loads(said.encode().decode() or "null", parse_constant=int)  # Or it is a failure.
        job.end = ("finished", "", "", said and "=" + said)
    except BaseException as error:
        logging.exception("the job %s failed", job.id)
        said = repr(traceback.format_exception_only(type(error), error)[0].strip())
        job.end = ("put_back" if stops.is_set() else "failed", "", "=" + said, "")
    os.write(rope, b"\0")


def listen(channel):
    """Wakes the worker when a job has become ready. That may be lost, so a turn looks, too."""
    while True:
        try:
            ears = redis.from_url(servers[0], socket_keepalive=True).pubsub()
            ears.execute_command("SSUBSCRIBE", channel)
            while ears.parse_response()[0] != b"sunsubscribe":  # It moves to another node.
                os.write(rope, b"\0")
        except (redis.RedisError, OSError):
            time.sleep(1)


if __name__ == "__main__":
    run(os.environ["REDIS_URL"], "wl:{mail}:", {"receipt": lambda job: print(job.payload)})
