// The handlers of the tests, on the worker that the page shows. The arguments: the directory of
// worker.js, the servers, the place of the queue, the slots, the lease and the poll in seconds.
'use strict';
const fs = require('node:fs');
const path = require('node:path');
const { setTimeout: sleep } = require('node:timers/promises');

const [examples, urls, place, slots, lease, poll] = process.argv.slice(2);
const { run } = require(path.join(examples, 'worker.js'));

async function echo(job) {
  return job.payload;
}

// Ends when the file of this name is there, or when the job is lost.
async function slow(job) {
  const path = JSON.parse(job.payload);
  fs.writeFileSync(`${path}.begun`, '');
  while (!fs.existsSync(path)) {
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

async function large() {
  return `"${'x'.repeat(2000)}"`;
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
const handlers = { echo, slow, odd, wrong, large, thrown, half, cut };
run(urls, place, handlers, Number(slots), lease * 1000, poll * 1000).then(
  () => { console.error('stopped'); process.exit(0); },
  (error) => { console.error(error); process.exit(1); },
);
