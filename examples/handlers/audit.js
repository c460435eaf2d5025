// Who did what, one row an event, exactly once; for Node.
//
//     CREATE TABLE audit (position bigint PRIMARY KEY, at timestamptz, stream text, event text, actor text);
//     millrace run examples/handlers/audit.yaml

const lines = require('node:readline').createInterface({ input: process.stdin });

function handle(event) {
  const stream = `${event.aggregate_type}/${event.aggregate_id}`;
  const actor = event.metadata?.actor ?? null;
  return {
    ok: true,
    sql: [{
      text: 'INSERT INTO audit (position, at, stream, event, actor) VALUES ($1, $2, $3, $4, $5)',
      params: [event.position, event.created_at, stream, event.event_type, actor],
    }],
  };
}

lines.on('line', (line) => {
  const event = JSON.parse(line);
  process.stdout.write(JSON.stringify({ ...handle(event), position: event.position }) + '\n');
});
