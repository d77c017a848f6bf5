//! `Debug` of an error.

use super::Error;
use crate::base::structure::structure;
use std::fmt;

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !f.alternate() {
            return f.write_str(&self.report());
        }
        structure!(
            self,
            f,
            [Config, Store],
            [
                InUse { name },
                Fenced { name, holder },
                Leased { name, holder, expires_in },
                Locked { path },
                NotFound { what, name },
                Truncated { next, first },
                Corrupt { name, reason },
                Codec { log, stored, asked },
                ReadOnly {},
                Format { found, known },
                Job { index, attempt, source },
                Source { index, source },
                Progress { source },
                Callback { index, source },
                StopTimeout { running },
                AttemptTimeout { index, attempt, after },
                EffectsTooLarge { limit },
                Counter { table, key, reason },
                Sql { sql, source },
                Crashed { index, crashes },
                NotParked { name, index },
                AlreadyDone { name, index },
                NothingSaved { name },
                NotReplaced { from, to, why },
                Replaced { log },
                Item { log, source },
                LogType { name, open, asked },
                Needed { log, index, last_processed },
                UpstreamEnded { upstream, last_processed, index },
                Stage { name, source },
                Stopped {},
                Thread {},
                Spawn { source },
                Runtime {},
                Refused { source },
            ]
        )
    }
}
