"""The handlers of the tests, on the worker that the page shows. The arguments: the directory of
worker.py, the database, the queue, the slots, the lease and the poll in seconds."""
import logging, os, random, sys, threading, time

examples, url, queue, slots, lease, poll = sys.argv[1:]
sys.path.insert(0, examples)
import psycopg, worker

RUN = "INSERT INTO runs VALUES (%s, %s, to_timestamp(%s), clock_timestamp())"
FINISH = "SELECT cardinality(waterline.finish(ARRAY[%s::bigint], ARRAY[%s::bigint]))"
SNOOZE = "SELECT cardinality(waterline.snooze(ARRAY[%s::bigint], ARRAY[%s::bigint], '{20}'))"
LOOK = "SELECT 1 FROM waterline.edit('q', %s, %s, %s)"


def write(first, values, *writes):
    """Makes statements in one transaction. The first one ends the job or checks its lease: if that
    does not count, nothing is written."""
    while True:
        try:
            with psycopg.connect(url) as db:
                if db.execute(first, values).fetchone()[0]:
                    for statement in writes:
                        db.execute(*statement)
            return
        except (psycopg.OperationalError, psycopg.InternalError):
            time.sleep(0.02)  # The server is away, which is no failure of the job.


def work(job):
    # The server is on this machine, so its clock is this one.
    begun, number = time.time(), int(job.payload)
    if number % 13 == 0 and job.failures == 0:
        raise ValueError("not in the first attempt")
    if random.random() < 0.05:
        return write(SNOOZE, [job.job, job.token])
    time.sleep(random.uniform(0, 0.02))
    if number % 2:
        # The worker ends it. If it is killed before that, the job runs again.
        write(LOOK, [job.id, job.job, job.token], (RUN, [job.id, "python noted", begun]))
    else:
        write(FINISH, [job.job, job.token], (RUN, [job.id, "python", begun]))


def echo(job):
    return job.payload


def row(job):
    write(FINISH, [job.job, job.token], (RUN, [job.id, "python", time.time()]))


def refused(job):
    null = ("INSERT INTO runs VALUES (NULL)",)
    write(FINISH, [job.job, job.token], (RUN, [job.id, "python", time.time()]), null)


def slow(job):
    """Ends when the file of this name is there, or when the job is lost."""
    while not os.path.exists(job.payload.strip('"')):
        if job.lost.wait(0.01):
            return print("lost", job.id, file=sys.stderr)


def odd(job):
    raise ValueError("odd: \0 \ud800 \U0001f30a")


def wrong(job):
    return "no JSON"


class Unprintable(Exception):
    def __repr__(self):
        raise ValueError("no text")


def thrown(job):
    raise Unprintable()


def half(job):
    return '"\ud800"'


def cut(job):
    worker.stops.wait()
    raise InterruptedError("cut short")


def orphan():
    """The end of the input is that of the test."""
    while os.read(0, 4096):
        pass
    os._exit(1)


threading.Thread(target=orphan, daemon=True).start()
handlers = {"plain": work, "narrow": work}
handlers |= {f"python-{own.__name__}": own for own in (echo, row, refused, slow, odd, wrong, thrown, half, cut)}
worker.run(url, queue, handlers, int(slots), int(float(lease) * 1000), int(float(poll) * 1000))
print("stopped", file=sys.stderr)
