"""The handlers of the tests, on the worker that the page shows. The arguments: the directory of
worker.py, the database, the queue, the slots, the lease and the poll in seconds."""
import logging, os, random, sys, threading, time

examples, conninfo, queue, slots, lease, poll = sys.argv[1:]
sys.path.insert(0, examples)
from worker import Snooze, Worker

RUN = "INSERT INTO runs VALUES (%s, 'python', to_timestamp(%s), clock_timestamp())"


def work(job):
    # The server is on this machine, so its clock is this one.
    begun, number = time.time(), int(job.payload)
    if number % 13 == 0 and job.failures == 0:
        raise ValueError("not in the first attempt")
    if random.random() < 0.05:
        raise Snooze(20)
    time.sleep(random.uniform(0, 0.02))
    job.writes.append((RUN, [job.id, begun]))


def echo(job):
    job.writes.append((RUN, [job.id, time.time()]))
    return job.payload


def slow(job):
    """Ends when the file of this name is there, or when the job is lost."""
    while not os.path.exists(job.payload.strip('"')) and not job.lost.wait(0.01):
        pass


def odd(job):
    raise ValueError("odd: \0 \ud800 \U0001f30a")


def refused(job):
    job.writes.append((RUN, [job.id, time.time()]))
    job.writes.append(("INSERT INTO runs VALUES (NULL)", []))


def orphan():
    """The end of the input is that of the test."""
    while os.read(0, 4096):
        pass
    os._exit(1)


logging.basicConfig(level=logging.INFO)
threading.Thread(target=orphan, daemon=True).start()
handlers = {"plain": work, "narrow": work}
handlers |= {f"python-{own.__name__}": own for own in (echo, slow, odd, refused)}
Worker(conninfo, queue, handlers, int(slots), float(lease), float(poll)).run()
print("stopped", file=sys.stderr)
