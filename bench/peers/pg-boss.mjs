// pg-boss beside Millrace: --what setup|enqueue|drain|latency --jobs N --database URI [--mode M].
// Modes of latency: `notify` (the queue notifies, the worker listens) and `poll` (it looks each 0.5 s, the
// shortest it allows). Draining is fetch() of 100 and complete() of them, four at a time, without pause.
import { PgBoss } from "pg-boss";
import {
  QUEUE, Tally, WARM_UP, die, latency, options, pause, payload, print, produce, producing, stopwatch,
} from "./common.mjs";

const AT_ONCE = 5000; // jobs in one call of insert()
const BATCH = 100;
const LOOPS = 4;
const given = options();
const mode = given.mode ?? (given.what === "latency" ? "notify" : "batched");
const notify = mode === "notify";
// Neither schedules nor maintenance: nothing but the queue is measured.
const boss = new PgBoss({
  connectionString: given.database,
  supervise: false,
  schedule: false,
  useListenNotify: notify && !producing,
});
boss.on("error", (error) => die(String(error)));

const count = async (state) => {
  const rows = await boss.getDb().executeSql(
    `SELECT count(*) FROM pgboss.job WHERE name = $1 AND state = $2`, [QUEUE, state]);
  return Number(rows.rows[0].count);
};

async function enqueue(jobs) {
  for (let from = 0; from < jobs; from += AT_ONCE) {
    const batch = [];
    for (let i = from; i < Math.min(jobs, from + AT_ONCE); i++) batch.push({ data: payload(i) });
    await boss.insert(QUEUE, batch);
  }
}

async function loop(tally) {
  while (tally.handled < given.jobs) {
    const jobs = await boss.fetch(QUEUE, { batchSize: BATCH });
    for (const job of jobs) tally.add(job.data);
    if (jobs.length > 0)
      await boss.complete(QUEUE, jobs.map((job) => job.id));
    else await pause(1);
  }
}

const whats = {
  async setup() {
    await boss.createQueue(QUEUE);
    await enqueue(given.jobs);
    return { done: await count("created") };
  },
  async enqueue() {
    const watch = stopwatch();
    await enqueue(given.jobs);
    return { ...watch(), done: await count("created") };
  },
  async drain() {
    const tally = new Tally(given.jobs);
    const watch = stopwatch();
    await Promise.all(Array.from({ length: LOOPS }, () => loop(tally)));
    return { ...watch(), done: await count("completed"), twice: tally.twice };
  },
  async latency() {
    await boss.updateQueue(QUEUE, { notify });
    const figures = await latency(import.meta.url, given, async (onJob) => {
      await boss.work(
        QUEUE,
        { batchSize: BATCH, pollingIntervalSeconds: 0.5, notifyPollingIntervalSeconds: 0.5 },
        async (jobs) => jobs.forEach((job) => onJob(job.data)));
      return () => boss.offWork(QUEUE, { wait: true });
    });
    return { ...figures, done: (await count("completed")) - WARM_UP };
  },
};

await boss.start();
if (producing) {
  await produce((data) => boss.send(QUEUE, data));
} else {
  const run = whats[given.what] ?? die("--what is one of " + Object.keys(whats).join(", "));
  const figures = await run();
  print({ peer: "pg-boss", what: given.what, mode, jobs: given.jobs, ...figures });
  process.exit(0);
}
