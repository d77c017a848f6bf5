// The handlers of the tests, on the worker that the page shows. The arguments: the directory of
// worker.js, the database, the queue, the slots, the lease and the poll in seconds.
'use strict';
const fs = require('node:fs');
const path = require('node:path');
const { setTimeout: sleep } = require('node:timers/promises');
const pg = require('pg');

const [examples, url, queue, slots, lease, poll] = process.argv.slice(2);
const { run } = require(path.join(examples, 'worker.js'));

const RUN = 'INSERT INTO runs VALUES ($1, $2, to_timestamp($3), clock_timestamp())';
const FINISH = 'SELECT cardinality(waterline.finish(ARRAY[$1::bigint], ARRAY[$2::bigint])) AS held';
const SNOOZE =
  "SELECT cardinality(waterline.snooze(ARRAY[$1::bigint], ARRAY[$2::bigint], '{20}')) AS held";
const LOOK = "SELECT 1 AS held FROM waterline.edit('q', $1, $2, $3)";

// Makes statements in one transaction. The first one ends the job or checks its lease: if that does
// not count, nothing is written.
async function write(first, values, ...writes) {
  for (;;) {
    const db = new pg.Client({ connectionString: url });
    db.on('error', () => {}); // The call on it fails, too.
    try {
      await db.connect();
      await db.query('BEGIN');
      const { rows: [{ held }] } = await db.query(first, values);
      if (held) for (const statement of writes) await db.query(...statement);
      await db.query('COMMIT');
      return;
    } catch (error) {
      if (/^(22|23|42|WQ)/.test(error.code)) throw error;
      await sleep(20); // The server is away, which is no failure of the job.
    } finally {
      db.end().catch(() => {});
    }
  }
}

async function work(job) {
  // The server is on this machine, so its clock is this one. It is cut to milliseconds here.
  const begun = (Date.now() + 1) / 1000;
  const number = Number(job.payload);
  if (number % 13 === 0 && job.failures === 0) throw new Error('not in the first attempt');
  if (Math.random() < 0.05) {
    await write(SNOOZE, [job.job, job.token]);
    return;
  }
  await sleep(Math.random() * 20);
  if (number % 2) {
    // The worker ends it. If it is killed before that, the job runs again.
    await write(LOOK, [job.id, job.job, job.token], [RUN, [job.id, 'node noted', begun]]);
  } else {
    await write(FINISH, [job.job, job.token], [RUN, [job.id, 'node', begun]]);
  }
}

async function echo(job) {
  return job.payload;
}

async function row(job) {
  await write(FINISH, [job.job, job.token], [RUN, [job.id, 'node', Date.now() / 1000]]);
}

async function refused(job) {
  const row = [RUN, [job.id, 'node', Date.now() / 1000]];
  await write(FINISH, [job.job, job.token], row, ['INSERT INTO runs VALUES (NULL)']);
}

// Waits until the file of this name is there, or the job is lost.
async function slow(job) {
  while (!fs.existsSync(JSON.parse(job.payload))) {
    if (job.signal.aborted) return console.error('lost', job.id);
    await sleep(10);
  }
}

async function odd() {
  throw new Error('odd: \0 \ud800 \u{1f30a}');
}

async function wrong() {
  return 'no JSON';
}

async function thrown() {
  throw Object.create(null); // It cannot be made a text.
}

async function half() {
  return '"\ud800"';
}

async function cut() {
  await new Promise((stop) => process.once('SIGTERM', stop));
  throw new Error('cut short');
}

// The input ends with the test.
process.stdin.on('end', () => process.exit(1)).resume();
const handlers = { plain: work, narrow: work };
for (const own of [echo, row, refused, slow, odd, wrong, thrown, half, cut]) {
  handlers[`node-${own.name}`] = own;
}
run(url, queue, handlers, Number(slots), lease * 1000, poll * 1000).then(
  () => { console.error('stopped'); process.exit(0); },
  (error) => { console.error(error); process.exit(1); },
);
