"""The handlers of the tests, on the worker that the page shows. The arguments: the directory of
worker.py, the servers, the place of the queue, the slots, the lease and the poll in seconds."""
import os, sys, threading

examples, urls, place, slots, lease, poll = sys.argv[1:]
sys.path.insert(0, examples)
import worker


def echo(job):
    return job.payload


def slow(job):
    """Ends when the file of this name is there, or when the job is lost."""
    path = job.payload.strip('"')
    open(path + ".begun", "w").close()
    while not os.path.exists(path):
        if job.lost.wait(0.01):
            return print("lost", job.id, file=sys.stderr)


def odd(job):
    raise ValueError("odd: \0 \ud800 \U0001f30a")


def wrong(job):
    return "no JSON"


def large(job):
    return f'"{"x" * 2000}"'


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
handlers = {own.__name__: own for own in (echo, slow, odd, wrong, large, thrown, half, cut)}
worker.run(urls, place, handlers, int(slots), int(float(lease) * 1000), int(float(poll) * 1000))
print("stopped", file=sys.stderr)
