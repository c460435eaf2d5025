-- consumer_parts(name): the checkpoints that a consumer's name means: its own, or all slots of a partitioned one
-- ("name#0/4" ... "name#3/4"); a slot's own name means that slot.
CREATE OR REPLACE FUNCTION {{fn:consumer_parts}}(name text)
RETURNS SETOF text LANGUAGE sql STABLE AS $mr$
    SELECT c.consumer_name FROM {{consumer_checkpoints}} AS c
    WHERE c.consumer_name = name
        OR (starts_with(c.consumer_name, name || '#')
            AND substr(c.consumer_name, length(name) + 1) ~ '^#[0-9]+/[0-9]+$')
    ORDER BY 1
$mr$;
