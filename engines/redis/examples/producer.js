#!/usr/bin/env node
// Pushes a job into a queue of waterline in Redis: on one server, or in a cluster.
//
// It needs redis 4.6 or later:
//     REDIS_URL=redis://localhost ./producer.js 1 ann@example.org
'use strict';
const { createClient } = require('redis');

const WORDS = ('head job state lane0 lane1 lane2 lane3 due run done dead expires forget index ' +
  'use held turn refill after before data meta shown note tick seen').split(' ');

// Returns the id and what became of the push. `place` is that of the queue: `wl:{mail}:`. After a
// lost answer it is made again, so its settings have to make it unique.
async function push(urls, place, kind, payload, settings, patience = 30000) {
  const [servers, end] = [urls.split(','), Date.now() + patience];
  const keys = WORDS.map((word) => place + word);
  const job = [kind, JSON.stringify(payload), JSON.stringify(settings)];
  const late = (_, fail) => setTimeout(fail, 10000, new Error('no answer in 10 s')).unref();
  for (;;) {
    const socket = { reconnectStrategy: false };
    const db = createClient({ url: servers[0], socket, disableOfflineQueue: true });
    const send = (...words) => Promise.race([db.sendCommand(words), new Promise(late)]);
    try {
      await db.on('error', () => {}).connect(); // The call fails, too.
      const run = /run_id:(\w+)/.exec(await send('INFO', 'server'))[1];
      await send('FCALL', 'wl_greet', '26', ...keys, '', run);
      const [row] = await send('FCALL', 'wl_push', '26', ...keys, '', '', '1', ...job);
      return [row[2], row[3]];
    } catch (error) {
      const [code, , where] = error.message.split(' ');
      if (code === 'MOVED') { // To the node of the cluster that has the queue.
        servers.unshift(servers[0].replace(/[^/@]+$/, where));
      } else if (code.startsWith('WQ') || Date.now() > end) {
        throw error;
      } else {
        servers.push(servers.shift());
        await new Promise((wake) => { setTimeout(wake, 200); });
      }
    } finally {
      if (db.isOpen) await db.disconnect();
    }
  }
}

async function order(urls, number, customer) {
  // Its row is committed already. The same push makes no second job within a day, also if the first
  // one has ended. One job of a customer at a time.
  const id = `receipt-${number}`;
  const unique = { fingerprint: id, until: 'within', within_ms: 86400000 };
  const settings = { id, unique, key: customer };
  return push(urls, 'wl:{mail}:', 'receipt', { order: number }, settings);
}

module.exports = { push, order };

if (require.main === module) {
  order(process.env.REDIS_URL, Number(process.argv[2]), process.argv[3]).then(
    ([id, outcome]) => { console.log(id, outcome); },
    (error) => { console.error(error); process.exit(1); },
  );
}
