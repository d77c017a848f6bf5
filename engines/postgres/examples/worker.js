#!/usr/bin/env node
// A worker for a queue of waterline in PostgreSQL. Copy it, and give it handlers of your own.
//
// It needs pg 8, and a role that is a member of waterline_work:
//     DATABASE_URL=postgresql://mailer@localhost/shop ./worker.js
'use strict';
const os = require('node:os');
const { setTimeout: sleep } = require('node:timers/promises');
const pg = require('pg');

const CHANNEL = 'SELECT waterline.listen_to($1) AS channel';
const CLAIM = 'SELECT * FROM waterline.claim($1, $2, $3, $4, $5, p_async => true, p_listen => $6)';
const RENEW = 'SELECT waterline.renew($1, $2, $3) AS jobs';
const STOP = 'SELECT waterline.note_stop($1, $2)';
const ENDS = {
  finish: 'SELECT waterline.finish($1, $2, $3) AS jobs',
  fail: 'SELECT waterline.fail($1, $2, $3) AS jobs',
  snooze: 'SELECT waterline.snooze($1, $2, $3) AS jobs',
};

// Errors by which the server says that it cannot, now: no disk or memory, a stop, a replica, a conflict.
const SERVER = /^(08|25006|40|53|55P03|57P|58|XX)/;

/** A handler throws it if the job is not ready: again then. The attempt does not count. */
class Snooze extends Error {
  constructor(milliseconds) {
    super(`not ready: again in ${milliseconds} ms`);
    this.milliseconds = milliseconds;
  }
}

/**
 * Runs `handlers[kind](job)`, so many at once. A handler is async, returns JSON text to keep or
 * nothing, and must not block the event loop for a third of the lease. Of a job it gets
 * - what `claim` returns: bigints are strings, and the payload is the JSON text that was pushed;
 * - `writes`: pairs of a statement and its values. They and the end of the job are one transaction;
 * - `signal`: aborted if the job is no longer ours.
 */
class Worker {
  constructor(config, queue, handlers, { slots = 8, lease = 30000, poll = 1000 } = {}) {
    // It polls, too: a bell may be lost, and what time brings rings none.
    Object.assign(this, { config, queue, handlers, slots, lease, poll });
    this.name = `${os.hostname()}/${process.pid}`;
    this.running = new Set();
    this.stopping = false;
  }

  /** Works until SIGTERM or SIGINT. Then it ends what runs, and claims no more. */
  async run() {
    const stop = () => { this.stopping = true; this.ring(); };
    process.on('SIGTERM', stop).on('SIGINT', stop);
    for (let pause = 100; this.running.size || !this.stopping; pause = Math.min(pause * 2, 10000)) {
      // A call that hangs would let all leases end, so each has a bound.
      const patience = Math.max(2000, Math.ceil(this.lease / 3));
      const db = new pg.Client({
        ...this.config, keepAlive: true, connectionTimeoutMillis: 10000,
        statement_timeout: patience, query_timeout: patience + 1000,
      });
      db.on('error', () => this.ring()); // The next call on it fails.
      db.on('notification', () => this.ring());
      try {
        await db.connect();
        const { rows: [{ channel }] } = await db.query(CHANNEL, [this.queue]);
        await db.query(`LISTEN ${db.escapeIdentifier(channel)}`);
        pause = 100;
        await this.serve(db);
      } catch (error) {
        // Of the schema, the rights or the queue: it would be the same again.
        if (/^(42|WQ)/.test(error.code)) throw error;
        // The handlers go on. Their ends count if the leases hold until we are back.
        console.error(`no connection, again in ${pause} ms: ${error.message}`);
        await sleep(pause * (0.5 + Math.random() / 2));
      } finally {
        db.end().catch(() => {});
      }
    }
    process.off('SIGTERM', stop).off('SIGINT', stop);
  }

  async serve(db) {
    let renewed = performance.now();
    let told = false;
    while (this.running.size || !this.stopping) {
      const done = [...this.running].filter((job) => job.end);
      if (done.length) await this.end(db, done);
      if (this.stopping && !told) {
        await db.query(STOP, this.held()); // If we are killed from now on, that is no crash.
        told = true;
      }
      if (performance.now() - renewed >= this.lease / 3) {
        renewed = performance.now();
        if (this.running.size) await this.renew(db);
      }
      const free = this.stopping ? 0 : this.slots - this.running.size;
      if (free === 0 || !(await this.claim(db, free))) {
        const due = renewed + this.lease / 3 - performance.now();
        await this.wait(Math.max(0, Math.min(this.poll, due)));
      }
    }
  }

  async claim(db, free) {
    // A claim that is lost in a crash of the server does no harm: it need not wait for the disk.
    const kinds = Object.keys(this.handlers);
    const asked = [this.queue, free, this.name, kinds, this.lease, 2 * this.poll];
    const { rows } = await db.query(CLAIM, asked);
    for (const row of rows) {
      this.lose((old) => old.job === row.job);
      const abort = new AbortController();
      const job = { ...row, writes: [], abort, signal: abort.signal };
      this.running.add(job);
      this.work(job).finally(() => this.ring());
    }
    return rows.length;
  }

  async work(job) {
    try {
      job.said = await this.handlers[job.kind](job);
      job.end = 'finish';
    } catch (error) {
      if (error instanceof Snooze) {
        job.said = error.milliseconds;
        job.end = 'snooze';
      } else {
        console.error(`attempt ${job.failures + 1} of the job ${job.id} failed:`, error);
        this.fail(job, error);
      }
    }
  }

  fail(job, error) {
    // The database keeps no text with a NUL.
    job.said = String(error?.message || error).replaceAll('\0', '\ufffd');
    job.end = 'fail';
  }

  held() {
    const held = [...this.running].filter((job) => !job.signal.aborted);
    return [held.map((job) => job.job), held.map((job) => job.token)];
  }

  async renew(db) {
    const { rows: [{ jobs }] } = await db.query(RENEW, [...this.held(), this.lease]);
    this.lose((job) => !jobs.includes(job.job));
  }

  lose(isLost) {
    for (const job of this.running) {
      if (job.signal.aborted || !isLost(job)) continue;
      console.error(`the lease of the job ${job.id} is over: its end will not count`);
      job.abort.abort();
    }
  }

  /** Ends jobs, all of them and their writes in one transaction. */
  async end(db, jobs) {
    const own = jobs.filter((job) => !job.signal.aborted);
    const counted = new Set();
    try {
      await db.query('BEGIN');
      for (const [end, call] of Object.entries(ENDS)) {
        const some = own.filter((job) => job.end === end);
        if (some.length === 0) continue;
        const column = (name) => some.map((job) => job[name] ?? null);
        const { rows: [ended] } = await db.query(call, ['job', 'token', 'said'].map(column));
        ended.jobs.forEach((job) => counted.add(job));
      }
      // Behind the end: for a job that is no longer ours, nothing is written.
      for (const job of own.filter((job) => job.end === 'finish' && counted.has(job.job))) {
        for (const [statement, values] of job.writes) await db.query(statement, values);
      }
      await db.query('COMMIT');
    } catch (error) {
      await db.query('ROLLBACK'); // It fails if the connection has.
      // No job is at fault. All of them come again with the next connection.
      if (SERVER.test(error.code) || own.every((job) => job.end !== 'finish')) throw error;
      // A write was refused, and none was made: each job by itself, and this one fails.
      if (own.length === 1) this.fail(own[0], error);
      for (const job of own) await this.end(db, [job]);
      return;
    }
    for (const job of own.filter((job) => !counted.has(job.job))) {
      console.error(`an end of the job ${job.id} did not count: it is no longer ours`);
    }
    for (const job of jobs) this.running.delete(job);
  }

  /** Waits for an end, a signal, a notification or this time. */
  async wait(milliseconds) {
    let timer;
    if (!this.rung) {
      await new Promise((wake) => {
        this.wake = wake;
        timer = setTimeout(wake, milliseconds);
      });
    }
    clearTimeout(timer);
    this.rung = false;
  }

  ring() {
    this.rung = true;
    this.wake?.();
  }
}

module.exports = { Worker, Snooze };

if (require.main === module) {
  const receipt = async (job) => {
    const { order } = JSON.parse(job.payload);
    console.log('a receipt for the order', order);
    job.writes.push(['UPDATE orders SET receipt = now() WHERE id = $1', [order]]);
  };
  const config = { connectionString: process.env.DATABASE_URL };
  new Worker(config, 'mail', { receipt }).run().catch((error) => {
    console.error(error);
    process.exit(1);
  });
}
