#!/usr/bin/env node
// A worker for a queue of waterline in PostgreSQL, to copy. Its user is in waterline_work.
const os = require('node:os');
const pg = require('pg'); // 8 or later
const WORK = 'SELECT * FROM waterline.work($1, $2, $3, $4, $5, $6, $7, $8, true, $9)';
const LOAD = `SELECT job::float, token::float, id, kind, payload, data, failures, crashes,
  pushed::float, more::json FROM waterline.load($1, $2)`;
const ABOUT = { number: Math.floor(Math.random() * 2 ** 53), process: process.pid, version: '1.0',
  host: os.hostname(), language: 'javascript' }; // For those who look at the workers.
const jobs = new Map(); // The jobs that it has, by their tokens.
let [stops, ring] = [false, () => {}];

/** Calls `handlers[job.kind](job)`: it is async, and returns JSON text to keep, or nothing.
 *  At SIGTERM or SIGINT it takes no more, and returns once what it has is ended. */
async function run(url, queue, handlers, slots = 8, lease = 30000, poll = 1000) {
  for (const name of ['SIGTERM', 'SIGINT']) process.on(name, () => { stops = true; ring(); });
  const ask = [queue, `${os.hostname()}/${process.pid}`, Object.keys(handlers), slots, lease, poll];
  const most = Math.min(lease / 3, 10000) | 0; // A call that hangs would let all leases end.
  const times = { connectionTimeoutMillis: 10000, query_timeout: most + 1000 };
  while (jobs.size || !stops) {
    const db = new pg.Client({ connectionString: url, statement_timeout: most, ...times });
    db.on('error', () => ring()).on('notification', () => ring());
    try {
      await db.connect();
      await db.query('SELECT waterline.listen($1)', [queue]);
      while (!(await turn(db, handlers, ask)) || jobs.size); // The last call says that it stops.
    } catch (error) {
      if (/^(22|42|WQ)/.test(error.code)) throw error; // It would be the same again.
      console.error(`no connection, again in a second: ${error.message}`); // The handlers go on.
      await new Promise((wake) => setTimeout(wake, 200 + Math.random() * 800));
    }
    db.end().catch(() => {});
  }
}

async function turn(db, handlers, asked) {
  const bell = new Promise((wake) => { ring = wake; });
  const stopping = stops;
  const has = JSON.stringify([...jobs.values()], ['job', 'token', 'end', 'said']);
  const { rows: [told] } = await db.query(WORK, [...asked, has, stopping, ABOUT]);
  for (const token of told.gone) {
    jobs.get(token).abort(); // A handler that still runs has nothing more to do.
    jobs.delete(token);
  }
  for (let row of told.jobs) {
    // One that did not fit into the answer. If it is not there, it is another's by now.
    if (!row.kind) row = (await db.query(LOAD, [[row.job], [row.token]])).rows[0];
    if (row) attempt(Object.assign(new AbortController(), row), handlers);
  }
  const timer = setTimeout(ring, told.sleep_ms);
  await bell.then(() => clearTimeout(timer));
  return stopping;
}

async function attempt(job, handlers) {
  jobs.set(job.token, job);
  try {
    const said = (await handlers[job.kind](job)) ?? null;
    JSON.parse(decodeURIComponent(encodeURIComponent(said))); // What is no JSON is a failure, too.
    [job.said, job.end] = [said === null ? null : String(said), 'finish'];
  } catch (error) {
    console.error(`the job ${job.id} failed:`, error);
    const said = error instanceof Error ? String(error) : require('node:util').inspect(error);
    [job.said, job.end] = [JSON.stringify(said), 'fail'];
  }
  ring();
}

Object.assign(exports, { run, show: (job) => console.log(job.payload) });
if (require.main === module) run(process.env.DATABASE_URL, 'mail', { receipt: exports.show });
