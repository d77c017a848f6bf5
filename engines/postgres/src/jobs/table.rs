//! The table of a stream: how it is found, and the reasons to refuse it.

use crate::error::Error;
use postgres::types::Type;
use postgres::{Client, Row};

/// A table that is a stream, with its names as they stand in statements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    /// With its schema, and quoted.
    pub(crate) table: String,
    /// The channel on which a trigger notifies: the bare name of the table.
    pub(crate) channel: String,
    /// The column of the ids, not quoted.
    pub(crate) id: String,
    /// The sequence of the ids, with its schema, and quoted.
    pub(crate) sequence: String,
    pub(crate) origin: Origin,
    /// `a` (always): each row gets its id from the sequence, whatever a writer says.
    pub(crate) identity: String,
    pub(crate) has_children: bool,
    /// True if the driver knows the type of each column.
    pub(crate) knows_types: bool,
    pub(crate) database: u32,
}

/// What must not change while a life reads: otherwise the same id is another job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) table: u32,
    pub(crate) sequence: u32,
    pub(crate) column: i16,
    /// The file of the sequence: a new one with each `RESTART` or change of its parameters.
    pub(crate) file: u32,
    pub(crate) parameters: String,
    pub(crate) timeline: String,
}

/// Finds a table by its name, in at most one row.
const FIND: &str = "
    SELECT c.oid, format('%I.%I', n.nspname, c.relname), c.relname::text, c.relkind::text, c.relpersistence::text,
           row_security_active(c.oid), substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8),
           (SELECT oid FROM pg_database WHERE datname = current_database()),
           c.relkind = 'r' AND EXISTS (SELECT FROM pg_inherits h WHERE h.inhparent = c.oid),
           ARRAY(SELECT a.atttypid FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
           i.attnum, i.attname, i.attidentity, i.sequence_oid, i.sequence, i.increment, i.cache, i.cycle, i.lowest, i.is_unique,
           i.is_readable, i.file, i.parameters
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    LEFT JOIN LATERAL (
        SELECT a.attnum, a.attname::text AS attname, a.attidentity::text AS attidentity, s.oid AS sequence_oid,
               format('%I.%I', m.nspname, s.relname) AS sequence, q.seqincrement AS increment, q.seqcache AS cache,
               q.seqcycle AS cycle, q.seqmin AS lowest,
               has_sequence_privilege(s.oid, 'SELECT, USAGE') AS is_readable,
               pg_relation_filenode(s.oid) AS file, q::text AS parameters,
               EXISTS (
                   SELECT FROM pg_index x
                   WHERE x.indrelid = c.oid AND x.indisunique AND x.indisvalid AND x.indpred IS NULL
                     AND x.indkey[0] = a.attnum AND (x.indnkeyatts = 1 OR c.relkind = 'p')
               ) AS is_unique
        FROM pg_depend d
        JOIN pg_class s ON s.oid = d.objid AND s.relkind = 'S'
        JOIN pg_namespace m ON m.oid = s.relnamespace
        JOIN pg_sequence q ON q.seqrelid = s.oid
        JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = d.refobjsubid
        WHERE d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass AND d.refobjid = c.oid
          AND d.deptype IN ('a', 'i')
        ORDER BY a.attidentity <> '' DESC, is_unique DESC, a.attnum
        LIMIT 1
    ) i ON true
    WHERE c.oid = to_regclass($1)";

pub(crate) fn find(client: &mut Client, settings: &str, table: &str) -> Result<FoundTable, Error> {
    let mut transaction = client.transaction()?;
    transaction.batch_execute(settings)?;
    if transaction.query_typed_one("SELECT pg_is_in_recovery()", &[])?.try_get(0)? {
        return Err(Error::config(
            "the server is a replica, which knows no running transactions of its primary",
            "connect to the primary (with several hosts: target_session_attrs=read-write)",
        ));
    }
    let found = transaction.query_typed_opt(FIND, &[(&table, Type::TEXT)])?;
    transaction.commit()?;
    let Some(found) = found else {
        return Err(Error::config(
            format!("there is no table {table}, or its schema is not in the search_path"),
            "create or restore it, or name it with its schema",
        ));
    };
    Ok(FoundTable::try_from(&found)?)
}

/// The answer of [`FIND`].
pub(crate) struct FoundTable {
    oid: u32,
    table: String,
    channel: String,
    kind: String,
    persistence: String,
    has_policies: bool,
    timeline: String,
    database: u32,
    has_children: bool,
    types: Vec<u32>,
    ids: Option<Ids>,
}

struct Ids {
    column: i16,
    name: String,
    identity: String,
    sequence_oid: u32,
    sequence: String,
    increment: i64,
    cache: i64,
    cycle: bool,
    lowest: i64,
    is_unique: bool,
    is_readable: bool,
    file: u32,
    parameters: String,
}

impl TryFrom<&Row> for FoundTable {
    type Error = postgres::Error;

    fn try_from(row: &Row) -> Result<Self, postgres::Error> {
        let ids = match row.try_get(10)? {
            None => None,
            Some(column) => Some(Ids {
                column,
                name: row.try_get(11)?,
                identity: row.try_get(12)?,
                sequence_oid: row.try_get(13)?,
                sequence: row.try_get(14)?,
                increment: row.try_get(15)?,
                cache: row.try_get(16)?,
                cycle: row.try_get(17)?,
                lowest: row.try_get(18)?,
                is_unique: row.try_get(19)?,
                is_readable: row.try_get(20)?,
                file: row.try_get(21)?,
                parameters: row.try_get(22)?,
            }),
        };
        Ok(Self {
            oid: row.try_get(0)?,
            table: row.try_get(1)?,
            channel: row.try_get(2)?,
            kind: row.try_get(3)?,
            persistence: row.try_get(4)?,
            has_policies: row.try_get(5)?,
            timeline: row.try_get(6)?,
            database: row.try_get(7)?,
            has_children: row.try_get(8)?,
            types: row.try_get(9)?,
            ids,
        })
    }
}

impl FoundTable {
    /// Returns what must not change; `None` if no column has a sequence of its own.
    pub(crate) fn origin(&self) -> Option<Origin> {
        let Ids { sequence_oid: sequence, column, file, ref parameters, .. } = *self.ids.as_ref()?;
        let (parameters, timeline) = (parameters.clone(), self.timeline.clone());
        Some(Origin { table: self.oid, sequence, column, file, parameters, timeline })
    }
}

/// Refuses a table that is no stream, with advice.
pub(crate) fn check(name: &str, found: &FoundTable) -> Result<Stream, Error> {
    let refused = |what: String, advice: String| Err(Error::config(what, advice));
    let FoundTable { table, .. } = found;
    if !matches!(&*found.kind, "r" | "p") {
        return refused(format!("{name} is no table"), "name the table that has the rows".to_owned());
    }
    if found.persistence != "p" {
        return refused(
            format!("{name} is not logged, so a crash of the server gives its ids to other rows"),
            format!("ALTER TABLE {table} SET LOGGED"),
        );
    }
    if found.has_policies {
        return refused(
            format!("policies hide rows of {name} from this user, and a hidden row looks like a gap"),
            "connect as the owner of the table, or as a user with BYPASSRLS".to_owned(),
        );
    }
    let (Some(ids), Some(origin)) = (&found.ids, found.origin()) else {
        return refused(
            format!("no column of {name} gets its values from a sequence of its own"),
            format!("ALTER TABLE {table} ADD COLUMN id bigint GENERATED ALWAYS AS IDENTITY UNIQUE"),
        );
    };
    check_sequence(name, ids)?;
    let Ids { sequence, name: column, .. } = ids;
    if !ids.is_unique {
        let partitioned = if found.kind == "p" { " (it may have more columns behind the id)" } else { "" };
        return refused(
            format!(
                "no unique index of {name} {} the column {column}{partitioned}",
                if partitioned.is_empty() { "is on" } else { "begins with" }
            ),
            format!("ALTER TABLE {table} ADD PRIMARY KEY ({column})"),
        );
    }
    Ok(Stream {
        table: table.clone(),
        channel: found.channel.clone(),
        id: column.clone(),
        sequence: sequence.clone(),
        origin,
        identity: ids.identity.clone(),
        has_children: found.has_children,
        knows_types: found.types.iter().all(|number| Type::from_oid(*number).is_some()),
        database: found.database,
    })
}

/// Refuses a sequence whose values do not only go up.
fn check_sequence(name: &str, ids: &Ids) -> Result<(), Error> {
    let refused = |what: String, advice: String| Err(Error::config(what, advice));
    let Ids { sequence, .. } = ids;
    if !ids.is_readable {
        return refused(
            format!("this user may not read the sequence of {name}"),
            format!("GRANT SELECT ON SEQUENCE {sequence} to the user of the store"),
        );
    }
    if ids.cache != 1 {
        return refused(
            format!("the sequence of {name} has CACHE {}, so a session gives low ids away late", ids.cache),
            format!("ALTER SEQUENCE {sequence} CACHE 1, and end the sessions that have taken ids"),
        );
    }
    if ids.cycle {
        return refused(
            format!("the sequence of {name} has CYCLE, so ids come back"),
            format!("ALTER SEQUENCE {sequence} NO CYCLE"),
        );
    }
    if ids.increment < 0 {
        return refused(
            format!("the sequence of {name} counts down"),
            format!("ALTER SEQUENCE {sequence} INCREMENT 1 with a MAXVALUE above all ids"),
        );
    }
    if ids.lowest < 0 {
        return refused(
            format!("the sequence of {name} may give ids below 0, which are no indices"),
            format!("ALTER SEQUENCE {sequence} MINVALUE 0"),
        );
    }
    Ok(())
}

impl Stream {
    /// Refuses a column into which writers may put values of their own.
    pub(crate) fn insist_on_always(&self, name: &str) -> Result<(), Error> {
        let Self { table, id, .. } = self;
        let always = self.identity == "a";
        if always && self.has_children {
            return Err(Error::config(
                format!("other tables inherit from {name}, and whoever inserts into one of them gives it an id"),
                "make them partitions, or promise with `PgJobs::trust_writers` that each id is of the sequence",
            ));
        }
        if always {
            return Ok(());
        }
        Err(Error::config(
            format!(
                "the column {id} of {name} is not GENERATED ALWAYS AS IDENTITY, so a writer may give an id of its own"
            ),
            format!(
                "ALTER TABLE {table} ALTER COLUMN {id} SET GENERATED ALWAYS (for a serial column first drop its default, and ADD \
                 GENERATED ALWAYS AS IDENTITY), or promise with `PgJobs::trust_writers` that no writer does"
            ),
        ))
    }
}

impl Origin {
    pub(crate) fn differs(&self, now: &Self) -> Option<String> {
        if self.timeline != now.timeline {
            return Some(format!("the timeline of the server was {} and is {}", self.timeline, now.timeline));
        }
        if self.table != now.table {
            return Some("the table was dropped, and is another one now".to_owned());
        }
        if (self.column, self.sequence) != (now.column, now.sequence) {
            return Some("the ids are in another column, or have another sequence".to_owned());
        }
        // A new file with the same parameters. Changing these makes one, too, but keeps the value.
        if self.file != now.file && self.parameters == now.parameters {
            return Some("their sequence began anew, as with TRUNCATE … RESTART IDENTITY".to_owned());
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found() -> FoundTable {
        let ids = Ids {
            column: 1,
            name: "id".to_owned(),
            identity: "a".to_owned(),
            sequence_oid: 3,
            sequence: "public.events_id_seq".to_owned(),
            increment: 1,
            cache: 1,
            cycle: false,
            lowest: 1,
            is_unique: true,
            is_readable: true,
            file: 7,
            parameters: "(3,20,1,1,9,1,1,f)".to_owned(),
        };
        FoundTable {
            oid: 2,
            table: "public.events".to_owned(),
            channel: "events".to_owned(),
            kind: "r".to_owned(),
            persistence: "p".to_owned(),
            has_policies: false,
            timeline: "00000001".to_owned(),
            database: 5,
            has_children: false,
            types: vec![20, 25],
            ids: Some(ids),
        }
    }

    fn refused(change: impl FnOnce(&mut FoundTable, &mut Ids)) -> String {
        let mut found = found();
        let mut ids = found.ids.take().unwrap();
        change(&mut found, &mut ids);
        found.ids = Some(ids);
        match check("events", &found) {
            Err(Error::Config { what, advice }) => format!("{what}: {advice}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn tables_that_are_no_stream_are_refused_with_advice() {
        assert!(check("events", &found()).unwrap().insist_on_always("events").is_ok());
        assert!(refused(|_, ids| ids.is_readable = false).contains("GRANT SELECT ON SEQUENCE"));
        assert!(refused(|_, ids| ids.cache = 50).contains("CACHE 1"));
        assert!(refused(|_, ids| ids.cycle = true).contains("NO CYCLE"));
        assert!(refused(|_, ids| ids.increment = -1).contains("counts down"));
        assert!(refused(|_, ids| ids.lowest = -5).contains("MINVALUE 0"));
        assert!(refused(|_, ids| ids.is_unique = false).contains("ADD PRIMARY KEY (id)"));
        assert!(refused(|found, _| found.kind = "v".to_owned()).contains("no table"));
        assert!(refused(|found, _| found.persistence = "u".to_owned()).contains("SET LOGGED"));
        assert!(refused(|found, _| found.has_policies = true).contains("BYPASSRLS"));
        let without = FoundTable { ids: None, ..found() };
        assert!(
            matches!(check("events", &without), Err(Error::Config { advice, .. }) if advice.contains("IDENTITY UNIQUE"))
        );
    }

    #[test]
    fn another_table_is_told_from_the_same_one() {
        let origin = check("events", &found()).unwrap().origin;
        assert_eq!(origin.differs(&origin.clone()), None);
        let others = [
            Origin { timeline: "00000002".to_owned(), ..origin.clone() },
            Origin { table: 9, ..origin.clone() },
            Origin { sequence: 9, ..origin.clone() },
            Origin { column: 9, ..origin.clone() },
            Origin { file: 9, ..origin.clone() },
        ];
        assert!(others.iter().all(|other| origin.differs(other).is_some()));
        let altered = Origin { file: 9, parameters: "(3,20,1,2,9,1,1,f)".to_owned(), ..origin.clone() };
        assert_eq!(origin.differs(&altered), None);
    }
}
