// The handlers of the tests, on the worker that the page shows. The arguments: the directory of
// worker.js, the database, the queue, the slots, the lease and the poll in seconds.
'use strict';
const fs = require('node:fs');
const path = require('node:path');
const { setTimeout: sleep } = require('node:timers/promises');

const [examples, connectionString, queue, slots, lease, poll] = process.argv.slice(2);
const { Snooze, Worker } = require(path.join(examples, 'worker.js'));

const RUN = "INSERT INTO runs VALUES ($1, 'node', to_timestamp($2), clock_timestamp())";

async function work(job) {
  // The server is on this machine, so its clock is this one. It is cut to milliseconds here.
  const begun = (Date.now() + 1) / 1000;
  const number = Number(job.payload);
  if (number % 13 === 0 && job.failures === 0) throw new Error('not in the first attempt');
  if (Math.random() < 0.05) throw new Snooze(20);
  await sleep(Math.random() * 20);
  job.writes.push([RUN, [job.id, begun]]);
}

async function echo(job) {
  job.writes.push([RUN, [job.id, Date.now() / 1000]]);
  return job.payload;
}

// Ends when the file of this name is there, or when the job is lost.
async function slow(job) {
  while (!fs.existsSync(JSON.parse(job.payload)) && !job.signal.aborted) await sleep(10);
}

async function odd() {
  throw new Error('odd: \0 \ud800 \u{1f30a}');
}

async function refused(job) {
  job.writes.push([RUN, [job.id, Date.now() / 1000]]);
  job.writes.push(['INSERT INTO runs VALUES (NULL)', []]);
}

// The end of the input is that of the test.
process.stdin.on('end', () => process.exit(1)).resume();
const handlers = { plain: work, narrow: work };
for (const own of [echo, slow, odd, refused]) handlers[`node-${own.name}`] = own;
const options = { slots: Number(slots), lease: lease * 1000, poll: poll * 1000 };
new Worker({ connectionString }, queue, handlers, options).run().then(
  () => { console.error('stopped'); process.exit(0); },
  (error) => { console.error(error); process.exit(1); },
);
