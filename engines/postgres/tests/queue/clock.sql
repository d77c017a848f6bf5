-- The clock of a test: the time is the setting `waterline.now`, if there is one, and `chance` makes each
-- back-off as long as possible.
CREATE OR REPLACE FUNCTION waterline.clock() RETURNS bigint LANGUAGE sql AS
$$ SELECT coalesce(nullif(current_setting('waterline.now', true), '')::bigint,
    floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint) $$;
CREATE OR REPLACE FUNCTION waterline.chance() RETURNS float8 LANGUAGE sql AS $$ SELECT 1::float8 $$;
