#!/usr/bin/env node
// A worker for a queue of waterline in Redis, to copy: on one server, or in a cluster.
const os = require('node:os');
const { createClient } = require('redis'); // 4.6 or later
const WORDS = ('head job state lane0 lane1 lane2 lane3 due run done dead expires forget index ' +
  'use held turn refill after before data meta shown note tick seen').split(' ');
const ROW = ('what number id outcome state token kind payload pushed since priority more data ' +
  'error failures crashes due').split(' ');
const ABOUT = { name: `${os.hostname()}/${process.pid}`, process: process.pid, version: '1.0',
  number: Math.floor(Math.random() * 2 ** 53), host: os.hostname(), language: 'javascript' };
const jobs = new Map(); // The jobs that it has, by their tokens.
let [stops, ring, renewed] = [false, () => {}, 0];

/** Calls `handlers[job.kind](job)`: it is async, and returns JSON text to keep, or nothing.
 *  `place` is that of the queue: `wl:{mail}:`, or with a tag `wl:{shop}:mail:`.
 *  At SIGTERM or SIGINT it takes no more, and returns once what it has is ended. */
async function run(urls, place, handlers, slots = 8, lease = 30000, poll = 1000) {
  for (const name of ['SIGTERM', 'SIGINT']) process.on(name, () => { stops = true; ring(); });
  let servers = urls.split(',');
  const [keys, most] = [WORDS.map((word) => place + word), Math.min(lease / 3, 10000)];
  const late = (_, fail) => setTimeout(fail, most, new Error(`no answer in ${most} ms`)).unref();
  while (jobs.size || !stops) {
    const socket = { reconnectStrategy: false, connectTimeout: most };
    const db = createClient({ url: servers[0], socket, disableOfflineQueue: true });
    const ears = db.duplicate();
    // A call that hangs would let all leases end, so it has a bound.
    const send = (words) => Promise.race([db.sendCommand(words.map(String)), new Promise(late)]);
    const call = (name, ...args) => send(['FCALL', name, 26, ...keys, '', ...args]);
    try {
      for (const client of [db, ears]) await client.on('error', () => ring()).connect();
      await ears.sSubscribe(`${place}bell`, () => ring()); // It may be lost, so a turn looks, too.
      await call('wl_greet', /run_id:(\w+)/.exec(await send(['INFO', 'server']))[1]);
      for (renewed = 0; !(await turn(call, handlers, slots, lease, poll)) || jobs.size;);
    } catch (error) {
      const [code, , where, size] = error.message.split(' ');
      if (code === 'MOVED') { // To the node of the cluster that has the queue.
        const node = servers[0].replace(/[^/@]+$/, where);
        servers = [node, ...servers.filter((server) => server !== node)];
      } else if (code === 'WQ012') { // Data that is too large for the queue is a failure.
        for (const job of [...jobs.values()].filter((has) => has.end)) {
          const large = Buffer.byteLength(job.end[3]) > Number(size) + 1;
          if (large) job.end = ['failed', '', `=${error.message}`, ''];
        }
      } else if (code.startsWith('WQ')) {
        throw error; // It would be the same again.
      } else {
        console.error(`no answer, again in a second: ${error.message}`); // The handlers go on.
        servers.push(servers.shift());
        await new Promise((wake) => { setTimeout(wake, 200 + Math.random() * 800); });
      }
    } finally {
      for (const client of [db, ears]) if (client.isOpen) client.disconnect().catch(() => {});
    }
  }
}

// Says what has ended, and begins what it is given. After a lost answer the same ends are said
// again: each counts once. True: it stops.
async function turn(call, handlers, slots, lease, poll) {
  const bell = new Promise((wake) => { ring = wake; });
  const [stopping, kinds] = [stops, Object.keys(handlers)];
  const about = `=${JSON.stringify([{ ...ABOUT, kinds, slots, stopping }])}`;
  for (const job of [...jobs.values()].filter((has) => has.payload === null)) {
    for (const row of await call('wl_load', 1, job.number, job.token)) { // It was too large.
      [job.id, job.payload, job.data] = [row[2], row[4], row[5] ?? null];
      attempt(job, handlers);
    }
  }
  if (stopping || Date.now() > renewed + lease / 3) {
    const [now, has] = [Date.now(), [...jobs.values()]];
    const leases = has.flatMap((job) => [job.number, job.token]);
    const held = await call('wl_renew', lease, '', +stopping, about, has.length, ...leases);
    for (const job of has.filter(({ number }) => !held.includes(number))) {
      job.abort(); // A handler that still runs has nothing more to do.
      jobs.delete(job.token);
    }
    renewed = now;
  }
  const ended = [...jobs.values()].filter((job) => job.end);
  const ends = ended.flatMap((job) => [job.number, job.token, ...job.end]);
  const rows = await call('wl_turn', +!stopping, slots - jobs.size + ended.length, '', lease,
    `=${ABOUT.name}`, 0, poll + 1000, '', about, kinds.length, ...kinds,
    ended.length, ...ends);
  for (const job of ended) jobs.delete(job.token);
  let sleep = Math.min(poll, lease / 4);
  for (const columns of rows) {
    const row = Object.fromEntries(ROW.map((name, at) => [name, columns[at] ?? null]));
    if (row.what === 'claimed') {
      const job = Object.assign(new AbortController(), row, { id: row.id ?? `~${row.number}` });
      jobs.set(job.token, job);
      if (job.payload !== null) attempt(job, handlers);
    }
    if (row.what === 'claimed' || row.what === 'again') sleep = 0; // There may be more.
    const next = row.what === 'peek' && row.number ? row.number - row.since : sleep;
    sleep = Math.min(sleep, Math.max(next, 20));
  }
  const timer = setTimeout(ring, sleep);
  await bell.then(() => clearTimeout(timer));
  return stopping;
}

async function attempt(job, handlers) {
  try {
    const said = (await handlers[job.kind](job)) ?? '';
    JSON.parse(decodeURIComponent(encodeURIComponent(said)) || 'null'); // Or it is a failure.
    job.end = ['finished', '', '', said && `=${said}`];
  } catch (error) {
    console.error(`the job ${job.id} failed:`, error);
    const said = error instanceof Error ? String(error) : require('node:util').inspect(error);
    job.end = [stops ? 'put_back' : 'failed', '', `=${JSON.stringify(said)}`, ''];
  }
  ring();
}

Object.assign(exports, { run, show: (job) => console.log(job.payload) });
if (require.main === module) run(process.env.REDIS_URL, 'wl:{mail}:', { receipt: exports.show });
