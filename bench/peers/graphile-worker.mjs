// graphile-worker beside Millrace: --what setup|enqueue|drain|latency --jobs N --database URI [--mode M].
// Modes: `batched` (a local queue of 500, completions gathered for one turn of the event loop: its fastest)
// and `default` (a claim and a completion a job).
import pg from "pg";
import {
  QUEUE, Tally, die, latency, options, pause, payload, print, produce, producing, stopwatch,
} from "./common.mjs";

process.env.NO_LOG_SUCCESS = "1"; // as its documentation asks for when speed counts
const { Logger, makeWorkerUtils, run } = await import("graphile-worker");

const AT_ONCE = 20000; // jobs in one call of addJobs()
const CONCURRENCY = 24;
const given = options();
const mode = given.mode ?? "batched";
const pgPool = new pg.Pool({ connectionString: given.database, max: CONCURRENCY + 2 });
pgPool.on("error", (error) => die(String(error)));
const logger = new Logger(() => (level, message) => {
  if (level === "error") process.stderr.write(message + "\n");
});
const batched = {
  worker: { localQueue: { size: 500 }, completeJobBatchDelay: 0, failJobBatchDelay: 0 },
};

const count = async () =>
  Number((await pgPool.query("SELECT count(*) FROM graphile_worker.jobs")).rows[0].count);

async function enqueue(utils, jobs) {
  for (let from = 0; from < jobs; from += AT_ONCE) {
    const specs = [];
    for (let i = from; i < Math.min(jobs, from + AT_ONCE); i++)
      specs.push({ identifier: QUEUE, payload: payload(i) });
    await utils.addJobs(specs);
  }
}

const start = (handler) =>
  run({
    pgPool,
    logger,
    concurrency: CONCURRENCY,
    noHandleSignals: true,
    taskList: { [QUEUE]: handler },
    parsedCronItems: [],
    preset: mode === "batched" ? batched : {},
  });

async function drain() {
  const before = await count();
  const tally = new Tally(given.jobs);
  let finished;
  const handled = new Promise((resolve) => (finished = resolve));
  const watch = stopwatch();
  const runner = await start((data) => {
    tally.add(data);
    if (tally.handled === given.jobs) finished();
  });
  await handled;
  while (await count()) await pause(1); // a finished job is deleted; the last deletes may be on their way
  const figures = watch();
  await runner.stop();
  return { ...figures, done: before - (await count()), twice: tally.twice };
}

const whats = {
  async setup() {
    const utils = await makeWorkerUtils({ pgPool, logger });
    await utils.migrate();
    await enqueue(utils, given.jobs);
    return { done: await count() };
  },
  async enqueue() {
    const utils = await makeWorkerUtils({ pgPool, logger });
    const watch = stopwatch();
    await enqueue(utils, given.jobs);
    return { ...watch(), done: await count() };
  },
  drain,
  async latency() {
    const figures = await latency(import.meta.url, given, async (onJob) => {
      const runner = await start(onJob);
      return () => runner.stop();
    });
    return { ...figures, done: given.jobs - (await count()) };
  },
};

if (producing) {
  const utils = await makeWorkerUtils({ pgPool, logger });
  await produce((data) => utils.addJob(QUEUE, data));
} else {
  const run = whats[given.what] ?? die("--what is one of " + Object.keys(whats).join(", "));
  const figures = await run();
  print({ peer: "graphile-worker", what: given.what, mode, jobs: given.jobs, ...figures });
  process.exit(0);
}
