// A worker of graphile-worker: `node graphile.js MODULE URL`. It writes a line once it listens, and
// works until its input ends. The settings are those of its own page about performance.
const { Logger, run } = require(process.argv[2]);

// A line for each job would cost more than the job.
const write = () => (level, message) => {
  if (level === 'error' || level === 'warning') process.stderr.write(`graphile-worker: ${message}\n`);
};

async function main() {
  const runner = await run({
    preset: {
      worker: {
        connectionString: process.argv[3],
        concurrentJobs: 24,
        // Eight processes share the server's connections with others, and batches need few.
        maxPoolSize: 10,
        localQueue: { size: 500 },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
      },
    },
    taskList: { k: async () => {} },
    noHandleSignals: true,
    parsedCronItems: [],
    logger: new Logger(write),
  });
  process.stdout.write('ready\n');
  process.stdin.on('end', () => runner.stop().then(() => process.exit(0)));
  process.stdin.resume();
}

main().catch((error) => {
  process.stderr.write(`${error.stack}\n`);
  process.exit(1);
});
