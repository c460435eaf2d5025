-- What a shop might have long before it has a worker: customers, and invoices that must be sent.
CREATE TABLE customers (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text NOT NULL,
    email text
);
CREATE TABLE invoices (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    customer_id bigint NOT NULL REFERENCES customers,
    cents bigint NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

-- Step 1: the columns of a queue. A row that the application inserts is a queued job.
ALTER TABLE invoices
    ADD COLUMN state text NOT NULL DEFAULT 'queued',
    ADD COLUMN queued_at timestamptz NOT NULL DEFAULT now(),
    ADD COLUMN failure_message text,
    ADD COLUMN started_at timestamptz,
    ADD COLUMN finished_at timestamptz,
    ADD COLUMN process_after timestamptz,
    ADD COLUMN num_resets integer NOT NULL DEFAULT 0,
    ADD COLUMN num_failures integer NOT NULL DEFAULT 0,
    ADD COLUMN last_heartbeat_at timestamptz,
    ADD COLUMN execution_logs json[],
    ADD COLUMN worker_hostname text NOT NULL DEFAULT '',
    ADD COLUMN cancel boolean NOT NULL DEFAULT false,
    ADD COLUMN lease_generation bigint NOT NULL DEFAULT 0;

-- Step 2: an index for claims, in the order of the queue, and one for the resetter. Both hold only rows that are not
-- finished. On a table in use write CREATE INDEX CONCURRENTLY.
CREATE INDEX invoices_waiting ON invoices (queued_at, id) WHERE state IN ('queued', 'errored');
CREATE INDEX invoices_running ON invoices (id) WHERE state = 'processing';

-- Step 3: what the handler has to know lies in two tables, so it is read through a view.
CREATE VIEW invoice_jobs AS
    SELECT i.id, i.state, i.queued_at, i.process_after, i.finished_at, i.num_failures, i.cents, c.name, c.email
    FROM invoices i JOIN customers c ON c.id = i.customer_id;

-- Where the handler notes what it has sent.
CREATE TABLE sent_invoices (
    invoice_id bigint PRIMARY KEY REFERENCES invoices,
    email text NOT NULL,
    sent_at timestamptz NOT NULL DEFAULT now()
);
