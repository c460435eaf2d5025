-- What was applied, when and by which version. `fleet` is '' for the default table names; a fleet with tables of
-- its own in the same schema has its own line of versions.
CREATE TABLE IF NOT EXISTS {{schema_migrations}} (
    version    integer     NOT NULL,
    fleet      text        NOT NULL DEFAULT '',
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT now(),
    applied_by text        NOT NULL,
    PRIMARY KEY (version, fleet)
);
