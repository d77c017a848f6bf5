#!/usr/bin/python3
"""A worker for a queue of waterline in PostgreSQL, to copy. Its user is in waterline_work."""
import json, logging, os, random, select, signal, socket, threading, time, traceback
from types import SimpleNamespace
import psycopg  # 3.1 or later

WORK = "SELECT * FROM waterline.work(%s, %s, %s, %s, %s, %s, %s, %s, true, %s)"
LOAD = """SELECT job, token, id, kind, payload, data, failures, crashes, pushed, more::json
    FROM waterline.load(%s, %s)"""
ABOUT = json.dumps({"number": random.getrandbits(53), "process": os.getpid(), "version": "1.0",
    "host": socket.gethostname(), "language": "python"})  # For those who look at the workers.
jobs, stops = {}, threading.Event()  # The jobs that it has, by their tokens.
bell, rope = os.pipe()


def run(url, queue, handlers, slots=8, lease=30000, poll=1000):
    """Calls `handlers[job.kind](job)`, each in a thread: it returns JSON text to keep, or None.
    At SIGTERM or SIGINT it takes no more, and returns once what it has is ended."""
    os.set_blocking(rope, False)
    signal.set_wakeup_fd(rope)
    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, lambda *_: stops.set())
    asked = [queue, f"{socket.gethostname()}/{os.getpid()}", list(handlers), slots, lease, poll]
    most = min(lease // 3, 10000)  # A call that hangs would let all leases end, so it has a bound.
    bounds = {"connect_timeout": 10, "tcp_user_timeout": most, "keepalives_idle": 5,
              "keepalives_interval": 5, "options": f"-c statement_timeout={most}"}
    while jobs or not stops.is_set():
        try:
            with psycopg.connect(url, autocommit=True, **bounds) as db:
                db.add_notify_handler(lambda _: os.write(rope, b"\0"))
                db.execute("SELECT waterline.listen(%s)", [queue])
                while not turn(db, handlers, asked) or jobs:
                    pass  # Its last call says that it stops.
        except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError) as error:
            logging.warning("no connection, again in a second: %s", error)  # The handlers go on.
            time.sleep(random.uniform(0.2, 1))


def turn(db, handlers, asked):
    has = [dict(job=job.job, token=job.token, end=job.end, said=job.said) for job in jobs.values()]
    says = [json.dumps(has), stops.is_set(), ABOUT]
    more, gone, sleep_ms = db.execute(WORK, [*asked, *says]).fetchone()
    for token in gone:
        jobs.pop(token).lost.set()  # A handler that still runs has nothing more to do.
    for row in more:
        if "kind" not in row:  # It did not fit into the answer.
            loads = db.cursor(row_factory=psycopg.rows.dict_row)
            row = loads.execute(LOAD, [[row["job"]], [row["token"]]]).fetchone()
        if row:  # Or it is another's by now.
            job = SimpleNamespace(**row, end=None, said=None, lost=threading.Event())
            jobs[job.token] = job
            threading.Thread(target=attempt, args=[job, handlers[job.kind]], daemon=True).start()
    if bell in select.select([bell, db], [], [], sleep_ms / 1000)[0]:
        os.read(bell, 4096)
    return says[1]


def attempt(job, handler):
    try:
        said, end = handler(job) or None, "finish"
        json.loads((said or "null").encode().decode(), parse_constant=int)  # Or it is a failure.
    except BaseException as error:
        logging.exception("the job %s failed", job.id)
        said, end = repr(traceback.format_exception_only(type(error), error)[0].strip()), "fail"
    job.said, job.end = said, end  # In this order: a turn may read them meanwhile.
    os.write(rope, b"\0")


if __name__ == "__main__":
    run(os.environ["DATABASE_URL"], "mail", {"receipt": lambda job: print(job.payload)})
