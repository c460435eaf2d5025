// What the peers' scripts share: arguments, the 24 bytes of a job, the line of figures, and latency with a
// producer in a thread of its own. bench/peers.py runs them, and says what each `what` means.
import { parseArgs } from "node:util";
import { Worker, isMainThread, parentPort, workerData } from "node:worker_threads";

export const QUEUE = "bench";
const EVERY_MS = 10; // between two jobs of the open loop
export const WARM_UP = 100; // the first of them open connections and warm the compiler; they do not count
const PATIENCE_MS = 60000;

export function options() {
  const given = isMainThread
    ? parseArgs({
        options: {
          what: { type: "string" },
          mode: { type: "string" },
          jobs: { type: "string", default: "0" },
          database: { type: "string" },
        },
      }).values
    : workerData.options;
  return { ...given, jobs: Number(given.jobs) };
}

// Exactly 24 bytes of JSON, of which the job's number is a part.
export const payload = (number) => ({ n: String(number).padStart(16, "0") });
export const numberOf = (data) => Number(data.n);

export const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Counts handled jobs apart from jobs handled twice.
export class Tally {
  constructor(jobs) {
    this.seen = new Uint8Array(jobs);
    this.handled = 0;
    this.twice = 0;
  }
  add(data) {
    const number = numberOf(data);
    if (this.seen[number]) this.twice++;
    else this.handled++;
    this.seen[number] = 1;
  }
}

// A stopwatch of wall time and of this process's processor time.
export function stopwatch() {
  const began = process.hrtime.bigint();
  const used = process.cpuUsage();
  return () => {
    const cpu = process.cpuUsage(used);
    return {
      seconds: Number(process.hrtime.bigint() - began) / 1e9,
      client_cpu_seconds: (cpu.user + cpu.system) / 1e6,
    };
  };
}

export function print(figures) {
  process.stdout.write(JSON.stringify(figures) + "\n");
}

export function die(message) {
  process.stderr.write(message + "\n");
  process.exit(3);
}

// ---- Latency -----------------------------------------------------------------------------------

const now = () => Number(process.hrtime.bigint()) / 1e6; // one clock for all threads

// In the producer's thread: a job each 10 ms by the clock, whether or not the earlier ones are committed yet;
// remembers when the producer heard of each commit.
export async function produce(send) {
  const { jobs } = workerData;
  const committed = new Float64Array(jobs);
  const sent = [];
  const began = now();
  for (let i = 0; i < jobs; i++) {
    const wait = began + i * EVERY_MS - now();
    if (wait > 0) await pause(wait);
    sent.push(send(payload(i)).then(() => (committed[i] = now())));
  }
  await Promise.all(sent);
  parentPort.postMessage(committed);
}

export const producing = !isMainThread;

// In the main thread: `start(onJob)` starts a worker and gives what stops it. Percentiles in ms from commit to the
// handler's start; less than nothing counts as nothing: a worker may see a commit before the producer
// hears of it.
export async function latency(script, given, start) {
  const jobs = given.jobs + WARM_UP;
  const started = new Float64Array(jobs);
  let count = 0;
  const stop = await start((data) => {
    const number = numberOf(data);
    if (started[number] === 0) count++;
    started[number] = now();
  });
  const watch = stopwatch();
  const committed = await new Promise((resolve, reject) => {
    const thread = new Worker(new URL(script), { workerData: { jobs, options: given } });
    thread.once("message", resolve);
    thread.once("error", reject);
  });
  const until = now() + PATIENCE_MS;
  while (count < jobs && now() < until) await pause(5);
  if (count < jobs) die(`only ${count} of ${jobs} jobs were handled`);
  const figures = watch();
  await stop();
  const times = Array.from(started, (time, i) => Math.max(0, time - committed[i]))
    .slice(WARM_UP)
    .sort((a, b) => a - b);
  const at = (share) => times[Math.min(times.length - 1, Math.floor(share * times.length))];
  return { ...figures, p50_ms: at(0.5), p99_ms: at(0.99), max_ms: times[times.length - 1] };
}
