// A worker of the chaos. The arguments: the directory of worker.js, the servers, the place of the
// queue, the lease in seconds, and the file for the runs whose end has counted.
'use strict';
const fs = require('node:fs');
const path = require('node:path');
const { setTimeout: sleep } = require('node:timers/promises');
const redis = require('redis');

const [examples, urls, place, lease, told] = process.argv.slice(2);
const runs = new Map();

// The same client, which notes the ends that have counted.
function telling(client) {
  const send = client.sendCommand.bind(client);
  client.sendCommand = async (words, ...rest) => {
    const rows = await send(words, ...rest);
    if (words[1] !== 'wl_turn') return rows;
    const args = words.slice(30); // Behind the keys, and the place of a clock.
    const ends = args.slice(11 + Number(args[9]));
    for (const row of rows) {
      let places = row[0] === 'finished' ? ends.map((_, at) => at / 6 + 1) : [];
      if (row[0] === 'ended' && row[3] === 'finished') places = row[11].split(',').map(Number);
      for (const at of places.filter(Number.isInteger)) fs.appendFileSync(told, runs.get(ends[6 * at - 5]));
    }
    return rows;
  };
  return client;
}

const { createClient } = redis;
redis.createClient = (options) => telling(createClient(options));
const { run } = require(path.join(examples, 'worker.js'));
const now = () => Math.round((performance.timeOrigin + performance.now()) * 1000);

async function handle(job) {
  const [payload, begun] = [JSON.parse(job.payload), now()];
  if (payload.n % 13 === 0 && !job.failures && !job.crashes) throw new Error('not in the first attempt');
  await sleep(payload.n % 20);
  const line = [job.id, job.kind, payload.key ?? '-', begun, now(), 'javascript'].join(' ');
  runs.set(String(job.token), `${line}\n`);
  return '"javascript"';
}

// The input ends with the test.
process.stdin.on('end', () => process.exit(1)).resume();
run(urls, place, { plain: handle, narrow: handle }, 4, lease * 1000).then(
  () => process.exit(0),
  (error) => { console.error(error); process.exit(1); },
);
