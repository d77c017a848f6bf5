#!/usr/bin/python3
"""A worker for a queue of waterline in PostgreSQL. Copy it, and give it handlers of your own.

It needs psycopg 3.1 or later, and a role that is a member of waterline_work:
    DATABASE_URL=postgresql://mailer@localhost/shop ./worker.py
"""
import contextlib, json, logging, os, random, select, signal, socket, threading, time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import psycopg
from psycopg.rows import class_row

CHANNEL = "SELECT waterline.listen_to(%s)"
CLAIM = "SELECT * FROM waterline.claim(%s, %s, %s, %s, %s, p_async => true, p_listen => %s)"
RENEW = "SELECT waterline.renew(%s::bigint[], %s::bigint[], %s)"
STOP = "SELECT waterline.note_stop(%s::bigint[], %s::bigint[])"
ENDS = {
    "finish": "SELECT waterline.finish(%s::bigint[], %s::bigint[], %s::text[])",
    "fail": "SELECT waterline.fail(%s::bigint[], %s::bigint[], %s::text[])",
    "snooze": "SELECT waterline.snooze(%s::bigint[], %s::bigint[], %s::bigint[])",
}
# Errors by which the server says that it cannot, now: no disk or memory, a stop, a replica, a conflict.
SERVER = ("08", "25006", "40", "53", "55P03", "57P", "58", "XX")
log = logging.getLogger("worker")


class Snooze(Exception):
    """The job is not ready: again in Snooze(milliseconds). The attempt does not count."""


@dataclass(eq=False)
class Job:
    """A job as `claim` returns it. Its payload is the JSON text that was pushed."""
    job: int
    token: int
    id: str
    kind: str
    payload: str
    data: str | None
    failures: int
    crashes: int
    pushed: int
    more: str | None
    # Statements and their values: they and the end of the job are one transaction.
    writes: list = field(default_factory=list)
    # Set if the job is no longer ours: a long handler looks at it, and returns.
    lost: threading.Event = field(default_factory=threading.Event)
    end: str = "finish"
    said: str | int | None = None  # the data, the error or the delay

    def fail(self, error):
        # The database keeps no text with a NUL or with half a character.
        text = (str(error) or type(error).__name__).encode("utf-8", "replace").decode()
        self.end, self.said = "fail", text.replace("\0", "\ufffd")


class Worker:
    """Runs `handlers[kind](job)` in threads. A handler returns JSON text to keep, or None."""

    def __init__(self, conninfo, queue, handlers, slots=8, lease=30.0, poll=1.0):
        self.conninfo, self.queue, self.handlers = conninfo, queue, handlers
        self.slots, self.lease = slots, lease
        self.poll = poll  # a bell may be lost, and what time brings rings none
        self.running, self.stopping = {}, False  # the job of each future
        self.name = f"{socket.gethostname()}/{os.getpid()}"
        self.bell, self.rope = socket.socketpair()
        self.bell.setblocking(False)
        self.rope.setblocking(False)

    def run(self):
        """Works until SIGTERM or SIGINT. Then it ends what runs, and claims no more."""
        signal.set_wakeup_fd(self.rope.fileno(), warn_on_full_buffer=False)
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, lambda *_: setattr(self, "stopping", True))
        pause, patience = 0.1, max(2, int(self.lease / 3))
        with ThreadPoolExecutor(self.slots) as pool:
            while self.running or not self.stopping:
                try:
                    # A call that hangs would let all leases end, so each has a bound.
                    with psycopg.connect(
                        self.conninfo, autocommit=True, connect_timeout=10,
                        options=f"-c statement_timeout={patience}s", keepalives_idle=patience,
                        tcp_user_timeout=patience * 1000,
                    ) as db:
                        (channel,) = db.execute(CHANNEL, [self.queue]).fetchone()
                        # One may come with the answer of a call, so that the socket shows nothing.
                        db.add_notify_handler(lambda _: self.ring())
                        db.execute(f'LISTEN "{channel}"')
                        pause = 0.1
                        self.serve(db, pool)
                except (psycopg.OperationalError, psycopg.InterfaceError, psycopg.InternalError) as error:
                    # The handlers go on. Their ends count if the leases hold until we are back.
                    log.warning("no connection, again in %.1f s: %s", pause, error)
                    self.wait(pause * random.uniform(0.5, 1))
                    pause = min(pause * 2, 10)

    def serve(self, db, pool):
        renewed, told = time.monotonic(), False
        while self.running or not self.stopping:
            if done := [job for future, job in self.running.items() if future.done()]:
                self.end(db, done)
            if self.stopping and not told:
                db.execute(STOP, self.held())  # if we are killed from now on, that is no crash
                told = True
            if time.monotonic() - renewed >= self.lease / 3:
                renewed = time.monotonic()
                if self.running:
                    self.renew(db)
            free = 0 if self.stopping else self.slots - len(self.running)
            if not free or not self.claim(db, pool, free):
                due = renewed + self.lease / 3 - time.monotonic()
                self.wait(max(0, min(self.poll, due)), db if free else None)

    def claim(self, db, pool, free):
        # A claim that is lost in a crash of the server does no harm: it need not wait for the disk.
        lease, listens = int(self.lease * 1000), int(self.poll * 2000)
        asked = (self.queue, free, self.name, list(self.handlers), lease, listens)
        jobs = db.cursor(row_factory=class_row(Job)).execute(CLAIM, asked).fetchall()
        for job in jobs:
            self.lose(old for old in self.running.values() if old.job == job.job)
            future = pool.submit(self.work, job)
            self.running[future] = job
            future.add_done_callback(lambda _: self.ring())
        return jobs

    def work(self, job):
        try:
            job.said = self.handlers[job.kind](job)
        except Snooze as snooze:
            job.end, job.said = "snooze", snooze.args[0]
        except BaseException as error:  # of this thread alone
            log.exception("attempt %d of the job %s failed", job.failures + 1, job.id)
            job.fail(error)

    def held(self):
        held = [job for job in self.running.values() if not job.lost.is_set()]
        return [job.job for job in held], [job.token for job in held]

    def renew(self, db):
        (held,) = db.execute(RENEW, (*self.held(), int(self.lease * 1000))).fetchone()
        self.lose(job for job in self.running.values() if job.job not in held)

    def lose(self, jobs):
        for job in jobs:
            log.warning("the lease of the job %s is over: its end will not count", job.id)
            job.lost.set()

    def end(self, db, jobs):
        """Ends jobs, all of them and their writes in one transaction."""
        own, counted = [job for job in jobs if not job.lost.is_set()], set()
        try:
            with db.transaction():
                for end, call in ENDS.items():
                    some = [(job.job, job.token, job.said) for job in own if job.end == end]
                    if some:
                        (ended,) = db.execute(call, [*map(list, zip(*some))]).fetchone()
                        counted.update(ended)
                # Behind the end: for a job that is no longer ours, nothing is written.
                finished = (job for job in own if job.end == "finish" and job.job in counted)
                for statement, values in (write for job in finished for write in job.writes):
                    db.execute(statement, values)
        except Exception as error:
            is_of_server = (getattr(error, "sqlstate", None) or "").startswith(SERVER)
            if db.closed or is_of_server or all(job.end != "finish" for job in own):
                raise  # No job is at fault. All of them come again with the next connection.
            # A write was refused, and none was made: each job by itself, and this one fails.
            if len(own) == 1:
                own[0].fail(error)
            for job in own:
                self.end(db, [job])
            return
        for job in own:
            if job.job not in counted:
                log.warning("an end of the job %s did not count: it is no longer ours", job.id)
        self.running = {future: job for future, job in self.running.items() if job not in jobs}

    def wait(self, seconds, *others):
        """Waits for an end, a signal, a notification or this time."""
        select.select([self.bell, *filter(None, others)], [], [], seconds)
        with contextlib.suppress(BlockingIOError):
            self.bell.recv(4096)

    def ring(self):
        with contextlib.suppress(BlockingIOError):
            self.rope.send(b"\0")


if __name__ == "__main__":
    def receipt(job):
        order = json.loads(job.payload)["order"]
        print("a receipt for the order", order)
        job.writes.append(("UPDATE orders SET receipt = now() WHERE id = %s", [order]))

    logging.basicConfig(level=logging.INFO)
    Worker(os.environ.get("DATABASE_URL", ""), "mail", {"receipt": receipt}).run()
