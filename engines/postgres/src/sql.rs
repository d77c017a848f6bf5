//! The statements, for one schema.

use crate::options::{PgOptions, quoted};
use crate::row::Found;
use crate::row::Mine;
use postgres::Row;
use postgres::types::{ToSql, Type};
use std::time::Duration;

/// The timeline of the server, from the name of the file that it writes to: it changes at once when
/// a standby is promoted, and needs no rights.
pub(crate) const TIMELINE: &str =
    "('x' || substr(pg_walfile_name(pg_current_wal_insert_lsn()), 1, 8))::bit(32)::bigint";

/// When the transaction began, in microseconds, which tells it from others on the connection.
const BEGAN: &str = "(extract(epoch FROM now()) * 1000000)::bigint";

/// The channel on which this crate's processes notify each other. The payload is the schema and the
/// name of a progress.
pub(crate) const CHANNEL: &str = "waterline";

/// A parameter of a statement without a name, which any pooler passes on.
pub(crate) type Value<'a> = (&'a (dyn ToSql + Sync), Type);

pub(crate) fn row_of<'a>(name: &'a &'a str, mine: &'a Mine) -> [Value<'a>; 4] {
    [(name, Type::TEXT), (&mine.epoch, Type::INT8), (&mine.token, Type::INT8), (&mine.timeline, Type::INT8)]
}

/// The statements that are the same in each call.
#[derive(Debug)]
pub(crate) struct Sql {
    schema: String,
    /// The beginning of each payload.
    payload: String,
    /// The settings of each transaction. They end with it, since a pooler shares the connection.
    pub(crate) settings: String,
    /// The same, and then the time at which the transaction began.
    pub(crate) noted_settings: String,
    pub(crate) began: String,
    pub(crate) version: String,
    pub(crate) take: String,
    pub(crate) look: String,
    pub(crate) renew: String,
    pub(crate) set_back: String,
    pub(crate) release: String,
    pub(crate) done: String,
    pub(crate) records: String,
    pub(crate) wishes: String,
    pub(crate) own: String,
    pub(crate) take_wishes: String,
    pub(crate) remove_records: String,
    pub(crate) put_record: String,
    pub(crate) wish: String,
    pub(crate) rung: String,
    pub(crate) forget_done: String,
    pub(crate) forget: [String; 5],
    pub(crate) add_move: String,
    pub(crate) trim_moves: String,
    pub(crate) moves: String,
    pub(crate) names: String,
}

/// The parts of a save besides the row of the name.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Parts {
    pub(crate) lost_pieces: bool,
    pub(crate) pieces: bool,
    pub(crate) lost_records: bool,
    pub(crate) records: bool,
}

impl Sql {
    pub(crate) fn new(options: &PgOptions) -> Self {
        let s = quoted(&options.schema);
        // The row of a life, on the timeline on which it began.
        let mine = format!("name = $1 AND epoch = $2 AND token = $3 AND timeline = $4 AND timeline = {TIMELINE}");
        let payload = format!("{}/", options.schema);
        Self {
            settings: settings(options.ttl),
            noted_settings: format!("{}; SELECT {BEGAN}", settings(options.ttl)),
            began: format!("SELECT {BEGAN}"),
            version: version_sql(&options.schema),
            take: format!(
                "INSERT INTO {s}.progress AS p (name, epoch, token, timeline, holder, expires, renewed)
                 VALUES ($1, 1, $2, {TIMELINE}, $3, clock_timestamp() + $4 * interval '1 millisecond', clock_timestamp())
                 ON CONFLICT (name) DO UPDATE SET epoch = p.epoch + 1, token = $2, timeline = excluded.timeline,
                     holder = $3, expires = excluded.expires, renewed = excluded.renewed
                 WHERE p.expires <= clock_timestamp() OR p.token = $2
                 RETURNING epoch, timeline, saves, watermark, next"
            ),
            look: format!(
                "SELECT epoch, token, timeline, {TIMELINE}, saves, holder,
                     greatest(0, extract(epoch FROM greatest(expires, now()) - clock_timestamp()))::float8
                 FROM {s}.progress WHERE name = $1 FOR UPDATE"
            ),
            renew: format!(
                "UPDATE {s}.progress SET expires = clock_timestamp() + $5 * interval '1 millisecond',
                     renewed = clock_timestamp() WHERE {mine} RETURNING 1"
            ),
            // The last renewal is the last known time. What has passed since then is unknown.
            set_back: format!(
                "UPDATE {s}.progress SET expires = clock_timestamp() + (expires - renewed), renewed = clock_timestamp()
                 WHERE name = $1 AND renewed > clock_timestamp() + interval '1 second'
                 RETURNING extract(epoch FROM expires - clock_timestamp())::float8"
            ),
            // A renewal that is under way finds no row of its life.
            release: format!(
                "WITH free AS (UPDATE {s}.progress SET expires = '-infinity', token = 0
                     WHERE name = $1 AND epoch = $2 AND token = $3 RETURNING name)
                 SELECT pg_notify('{CHANNEL}', $4 || name) FROM free"
            ),
            wishes: format!("SELECT 1 FROM {s}.wish WHERE name = $1 LIMIT 1"),
            own: format!("SELECT 1 FROM {s}.progress WHERE {mine} FOR UPDATE"),
            take_wishes: format!("DELETE FROM {s}.wish WHERE name = $1 RETURNING kind, index, id"),
            remove_records: format!("DELETE FROM {s}.record WHERE name = $1 AND key = ANY ($2)"),
            put_record: format!("UPDATE {s}.record SET value = $3 WHERE name = $1 AND key = $2"),
            wish: format!("INSERT INTO {s}.wish (name, kind, index) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING"),
            rung: format!("SELECT pg_notify('{CHANNEL}', $1)"),
            forget_done: format!("DELETE FROM {s}.done WHERE name = $1"),
            // The epoch stays: a later life has a higher one.
            forget: [
                format!("UPDATE {s}.progress SET watermark = NULL, next = NULL, moved = NULL WHERE name = $1"),
                format!("DELETE FROM {s}.done WHERE name = $1"),
                format!("DELETE FROM {s}.record WHERE name = $1"),
                format!("DELETE FROM {s}.move WHERE name = $1"),
                format!("DELETE FROM {s}.wish WHERE name = $1"),
            ],
            add_move: format!(
                "INSERT INTO {s}.move (name, at, kind, \"from\", \"to\", reason) VALUES ($1, $2, $3, $4, $5, $6)"
            ),
            trim_moves: format!(
                "DELETE FROM {s}.move WHERE name = $1 AND id <=
                     (SELECT id FROM {s}.move WHERE name = $1 ORDER BY id DESC OFFSET $2 LIMIT 1)"
            ),
            moves: format!("SELECT at, kind, \"from\", \"to\", reason FROM {s}.move WHERE name = $1 ORDER BY id"),
            names: format!(
                "SELECT name, watermark, next, moved,
                     EXISTS (SELECT FROM {s}.done d WHERE d.name = p.name)
                         OR EXISTS (SELECT FROM {s}.record r WHERE r.name = p.name)
                 FROM {s}.progress p WHERE next IS NOT NULL ORDER BY name COLLATE \"C\""
            ),
            done: format!("SELECT piece, bits FROM {s}.done WHERE name = $1 ORDER BY piece"),
            records: format!("SELECT key, value FROM {s}.record WHERE name = $1 ORDER BY key"),
            schema: s,
            payload,
        }
    }

    /// The payload that names a progress of this schema.
    pub(crate) fn payload(&self, name: &str) -> String {
        format!("{}{name}", self.payload)
    }

    pub(crate) fn payload_prefix(&self) -> &str {
        &self.payload
    }

    /// Returns the statement of a save: it changes the row of the name if this life has it, and the
    /// rest only then, and answers how many rows that was. The parameters from the tenth on are
    /// those of [`Parts`]: one for the lost records, two for each other part.
    pub(crate) fn save(&self, parts: Parts) -> String {
        let s = &self.schema;
        let mut next = 10;
        let mut parameter = || {
            next += 1;
            next - 1
        };
        let mut sql = format!(
            "WITH mine AS (UPDATE {s}.progress SET saves = saves + 1, watermark = $7, next = $8,
                 moved = CASE WHEN watermark IS DISTINCT FROM $7 THEN clock_timestamp() ELSE moved END,
                 expires = greatest(CASE WHEN renewed <= clock_timestamp() + interval '1 second' THEN expires END,
                     clock_timestamp() + $6 * interval '1 millisecond'), renewed = clock_timestamp()
             WHERE name = $1 AND epoch = $2 AND token = $3 AND saves = $5 AND timeline = $4 AND timeline = {TIMELINE}
                 AND ($9::bigint IS NULL OR $9 = {BEGAN})
             RETURNING name)"
        );
        if parts.lost_pieces {
            let (below, gone) = (parameter(), parameter());
            sql += &format!(
                ", lost AS (DELETE FROM {s}.done d USING mine
                     WHERE d.name = mine.name AND (d.piece < ${below} OR d.piece = ANY (${gone})))"
            );
        }
        if parts.pieces {
            let (pieces, bits) = (parameter(), parameter());
            sql += &format!(
                ", piece AS (INSERT INTO {s}.done (name, piece, bits)
                     SELECT mine.name, p.piece, p.bits FROM mine, unnest(${pieces}, ${bits}) AS p (piece, bits)
                     ON CONFLICT (name, piece) DO UPDATE SET bits = excluded.bits)"
            );
        }
        if parts.lost_records {
            let keys = parameter();
            sql += &format!(
                ", unrecorded AS (DELETE FROM {s}.record r USING mine
                     WHERE r.name = mine.name AND r.key = ANY (${keys}))"
            );
        }
        if parts.records {
            let (keys, values) = (parameter(), parameter());
            sql += &format!(
                ", recorded AS (INSERT INTO {s}.record (name, key, value)
                     SELECT mine.name, r.key, r.value FROM mine, unnest(${keys}, ${values}) AS r (key, value)
                     ON CONFLICT (name, key) DO UPDATE SET value = excluded.value)"
            );
        }
        sql + " SELECT count(*) FROM mine"
    }

    /// The name of the schema, quoted.
    pub(crate) fn schema(&self) -> &str {
        &self.schema
    }
}

/// The statement that reads the version of the tables, and the oldest program that they serve.
pub(crate) fn version_sql(schema: &str) -> String {
    format!("SELECT version, coalesce(serves, version) FROM {}.version ORDER BY version DESC LIMIT 1", quoted(schema))
}

/// Returns the settings of a transaction. A statement ends within the TTL. A process that stands
/// still within a transaction loses it before its name is free, so its locks do not block the next
/// life.
fn settings(ttl: Duration) -> String {
    let (all, most) = (ttl.as_millis(), (ttl * 3 / 4).as_millis());
    format!(
        "SET LOCAL statement_timeout = {all}; SET LOCAL idle_in_transaction_session_timeout = {most}; SET LOCAL synchronous_commit = on"
    )
}

impl TryFrom<&Row> for Found {
    type Error = postgres::Error;

    fn try_from(row: &Row) -> Result<Self, postgres::Error> {
        let seconds: f64 = row.try_get(6)?;
        Ok(Self {
            epoch: row.try_get(0)?,
            token: row.try_get(1)?,
            timeline: row.try_get(2)?,
            server_timeline: row.try_get(3)?,
            saves: row.try_get(4)?,
            holder: row.try_get(5)?,
            left: Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX),
        })
    }
}
