#!/usr/bin/env node
// A queue of BullMQ, on the Redis server of the driver, which says the words of `protocol`.
const { Queue, Worker } = require('bullmq');
const Redis = require('ioredis');

const ABOUT =
  'BullMQ\t{bullmq} on {ioredis}, a worker with concurrency 50, or as given, that keeps the last 1,000 finished ' +
  'jobs and 5,000 failed ones, as in its documentation';

const words = Object.fromEntries(process.argv.slice(2).map((word) => word.split('=')));
const [jobs, block] = [Number(words.jobs), Number(words.block)];
const connection = { host: '127.0.0.1', port: Number(words.port), maxRetriesPerRequest: null };

async function push(queue) {
  const data = 'x'.repeat(98);
  if (block === 1) {
    for (let job = 0; job < jobs; job++) await queue.add('k', data);
    return;
  }
  for (let first = 0; first < jobs; first += block) {
    const length = Math.min(block, jobs - first);
    await queue.addBulk(Array.from({ length }, () => ({ name: 'k', data })));
  }
}

function run() {
  const concurrency = Number(words.in_flight) || 50;
  const options = { connection, concurrency, removeOnComplete: { count: 1000 }, removeOnFail: { count: 5000 } };
  return new Promise((resolve) => {
    let left = jobs;
    const job = async () => {
      left -= 1;
      if (left === 0) resolve();
    };
    new Worker('q', job, options);
  });
}

// The nanoseconds of CPU time that the server has used: those of all its threads.
async function used(server) {
  const said = await server.info('cpu');
  const seconds = (name) => Number(said.match(new RegExp(`${name}:([0-9.]+)`))[1]);
  return Math.round((seconds('used_cpu_sys') + seconds('used_cpu_user')) * 1e9);
}

async function main() {
  const [queue, server] = [new Queue('q', { connection }), new Redis(connection)];
  await queue.waitUntilReady();
  if (words.call === 'run') await push(queue);
  const cpu = await used(server);
  const begun = process.hrtime.bigint();
  await (words.call === 'run' ? run() : push(queue));
  const wall = process.hrtime.bigint() - begun;
  process.stdout.write(`wall=${wall} cpu=${(await used(server)) - cpu}\n`, () => process.exit(0));
}

if (process.argv[2] === 'about') {
  console.log(ABOUT);
} else {
  main().catch((error) => {
    console.error(error);
    process.exit(1);
  });
}
