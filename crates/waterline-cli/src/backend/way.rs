//! The ways to a place: `--store`, `--url`, `--postgres` and `--redis`.

use super::Backend;
#[cfg(feature = "postgres")]
use super::database::Database;
use super::files::Files;
use super::page::Page;
#[cfg(feature = "redis")]
use super::redis::Redis;
use crate::args::{CommandLine, InRedis};
use crate::error::Fault;
use clap::error::ErrorKind;
use std::path::PathBuf;

/// The way to a place, as the command line names it.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    Store(PathBuf),
    Url(String),
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "a program without it only says so"))]
    Postgres {
        url: String,
        schema: String,
    },
    #[cfg_attr(not(feature = "redis"), expect(dead_code, reason = "a program without it only says so"))]
    Redis {
        urls: String,
        place: InRedis,
    },
}

impl Way {
    /// Reads the way from a command line. The error is its misuse: there is none, or more than one.
    pub(crate) fn of(line: &CommandLine) -> Result<Self, (ErrorKind, &'static str)> {
        let postgres = line.postgres.clone().map(|url| Self::Postgres { url, schema: line.schema.clone() });
        let redis = line.redis.clone().map(|urls| Self::Redis { urls, place: line.in_redis.clone() });
        let ways = [line.store.clone().map(Self::Store), line.url.clone().map(Self::Url), postgres, redis];
        let mut ways = ways.into_iter().flatten();
        match (ways.next(), ways.next()) {
            (Some(way), None) => Ok(way),
            (None, _) => Err((
                ErrorKind::MissingRequiredArgument,
                "say where it is: --store PATH, --url URL, --postgres URL or --redis URL",
            )),
            _ => Err((
                ErrorKind::ArgumentConflict,
                "one of --store, --url, --postgres and --redis is enough: they may be several places",
            )),
        }
    }
}

/// Opens a place for a look.
pub(crate) fn open(way: &Way) -> Result<Box<dyn Backend>, Fault> {
    Ok(match way {
        Way::Store(path) => Box::new(Files::look(path)?),
        Way::Url(url) => Box::new(Page::new(url)?),
        #[cfg(feature = "postgres")]
        Way::Postgres { url, schema } => Box::new(Database::connect(url, schema)?),
        #[cfg(not(feature = "postgres"))]
        Way::Postgres { .. } => {
            return Err(Fault::new("this program was built without PostgreSQL: build it with the feature `postgres`"));
        }
        #[cfg(feature = "redis")]
        Way::Redis { urls, place } => Box::new(Redis::connect(urls, place)?),
        #[cfg(not(feature = "redis"))]
        Way::Redis { .. } => {
            return Err(Fault::new("this program was built without Redis: build it with the feature `redis`"));
        }
    })
}
